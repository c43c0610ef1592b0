"""The networks: sizes that the paper's architecture must have, what they have in common, and what is refused."""

import pytest
import torch
from torch import nn

from nclib import deq, solvers
from nclib.config import ConfigError, GradientConfig, ModelConfig, SolverConfig
from nclib.models import (
    BasicBlock,
    Output,
    ResidualCell,
    build_gradient,
    build_model,
    build_solver,
    count_parameters,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::nclib.deq.ForwardNotConverged"
)  # of noise, without training

ENCODER = 6_448_192
CELL = 2 * 9 * 512**2 + 4 * 512  # two 3×3 convolutions and two norms
ARMS = {
    "explicit": {},
    "deq": {},
    "explicit_matched": {},
    "weight_tied": {"unroll": 3},
    "explicit_flops": {"num_blocks": 2},
}
TIGHT = SolverConfig(method="fixed_point", tol=1e-12, max_steps=400)


def _build(kind, num_classes=10, in_channels=1, seed=0, width=2, **options):
    options = ARMS[kind] | options
    return build_model(
        ModelConfig(kind=kind, width=width, **options), num_classes, in_channels, seed
    )


def _images(count=6, side=16, channels=1, dtype=torch.float32):
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1)).to(
        dtype
    )


def _contract(model, scale=0.1):
    """Shrink the branch of the cell, so that its fixed point exists, is unique and easily reached."""
    with torch.no_grad():
        for name, parameter in model.block.named_parameters():
            if "norm2" in name:
                parameter.mul_(scale)
    return model


@pytest.mark.parametrize(
    ("kind", "options", "block"),
    [
        ("explicit", {}, CELL),
        ("deq", {}, CELL),
        ("explicit_matched", {}, CELL),
        ("weight_tied", {}, CELL),
        ("explicit_flops", {"num_blocks": 3}, 3 * CELL),
        ("deq", {"cell": "mdeq"}, CELL + 1024),
    ],
)
def test_full_width_arms_have_the_papers_number_of_parameters(kind, options, block):
    with torch.device("meta"):  # counting needs no numbers
        ten = build_model(ModelConfig(kind=kind, **options), 10, 3)
    assert count_parameters(ten.encoder) == ENCODER and count_parameters(ten.block) == block
    assert count_parameters(ten) == ENCODER + block + 512 * 10
    if kind == "explicit":
        assert count_parameters(ten) == 11_173_952
    if options.get("cell") == "mdeq":
        assert count_parameters(ten) == 11_174_976


@pytest.mark.parametrize("kind", ARMS)
@pytest.mark.parametrize(
    ("channels", "height", "width"), [(1, 8, 8), (1, 8, 16), (3, 32, 32), (1, 28, 28)]
)
def test_shapes(kind, channels, height, width):
    model = _build(kind, in_channels=channels).eval()
    with torch.no_grad():
        out = model(torch.randn(3, channels, height, width))
    assert isinstance(out, Output)
    assert out.logits.shape == (3, 10) and out.features.shape == (3, 16)
    assert (out.solution is not None) == (kind == "deq")
    torch.testing.assert_close(out.logits, out.features @ model.classifier.weight.T)


@pytest.mark.parametrize("seed", [0, 5])
def test_arms_of_one_seed_share_encoder_classifier_and_cell(seed):
    models = {kind: _build(kind, seed=seed) for kind in ARMS}
    reference = models["deq"]
    for kind, model in models.items():
        for part in ("encoder", "classifier"):
            ours, theirs = getattr(model, part).state_dict(), getattr(reference, part).state_dict()
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours), (kind, part)
    cell = reference.block.cell.state_dict()
    others = [models[kind].block.cell for kind in ("explicit_matched", "weight_tied")]
    for other in [*others, models["explicit_flops"].block.cells[0]]:
        assert all(torch.equal(other.state_dict()[name], value) for name, value in cell.items())
    # the explicit block has the convolutions of the cell as well: its own initialisation, not another draw
    assert torch.equal(models["explicit"].block.conv1.weight, reference.block.cell.conv1.weight)
    assert torch.equal(models["explicit"].block.conv2.weight, reference.block.cell.conv2.weight)


def test_building_leaves_the_global_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = _build("deq", seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    two = _build("deq", seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("cell", ["residual", "mdeq"])
def test_explicit_matched_is_one_step_from_the_input(cell):
    x = _images()
    matched, tied = (
        _build("explicit_matched", cell=cell).eval(),
        _build("weight_tied", cell=cell, unroll=1).eval(),
    )
    unrolled = _build("deq", cell=cell, gradient=GradientConfig(method="unrolled", steps=1)).eval()
    out = matched(x)
    assert torch.equal(out.logits, tied(x).logits)
    assert torch.equal(out.logits, unrolled(x).logits)
    inner = matched.encoder(x).contiguous()
    by_hand = unrolled.block.cell(inner, inner).mean(dim=(2, 3))
    assert torch.equal(out.features, by_hand)
    assert torch.equal(out.features, _build("explicit_flops", num_blocks=1).eval()(x).features) == (
        cell == "residual"
    )


def test_the_residual_cell_is_a_residual_block_with_group_norm():
    """f(x, x) = ReLU(GN(conv ReLU(GN(conv x))) + x), and the explicit block is the same with BatchNorm."""
    x = torch.randn(4, 16, 3, 3)
    cell, block = ResidualCell(16, 4), BasicBlock(16, 16).eval()
    functional = nn.functional
    inner = functional.relu(
        functional.group_norm(functional.conv2d(x, cell.conv1.weight, padding=1), 4)
    )
    wanted = functional.relu(
        functional.group_norm(functional.conv2d(inner, cell.conv2.weight, padding=1), 4) + x
    )
    torch.testing.assert_close(cell(x, x), wanted)
    block.conv1, block.conv2 = cell.conv1, cell.conv2
    block.norm1, block.norm2 = cell.norm1, cell.norm2
    assert torch.equal(block(x), cell(x, x))


@pytest.mark.parametrize("start", ["x", "zeros"])
def test_the_feature_of_a_deq_is_the_pool_of_a_fixed_point(start):
    x = _images(dtype=torch.float64)
    model = _contract(_build("deq", solver=TIGHT, start=start)).double().eval()
    inner = model.encoder(x)
    z, solution = model.transform(inner)
    torch.testing.assert_close(model.block.cell(z, inner), z, rtol=1e-10, atol=1e-10)
    out = model(x)
    assert torch.equal(out.features, z.mean(dim=(2, 3)))
    assert (z >= 0).all() and solution.residual.max() <= 1e-12


def test_implicit_gradient_is_that_of_the_unrolled_network():
    x = _images(dtype=torch.float64)
    grads = []
    for model in (_build("deq", solver=TIGHT), _build("weight_tied", unroll=200)):
        model = _contract(model).double().eval()
        model(x).logits.square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for implicit, unrolled in zip(*grads, strict=True):
        torch.testing.assert_close(implicit, unrolled, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("width", [2, 3, 8, 12, 16])
def test_gradients_of_narrow_networks_are_those_in_float64(width):
    """oneDNN's gradient of strided 1×1 convolutions of few channels, channels last, is wrong or ends the process."""
    images, grads = torch.randn(32, 1, 8, 8, dtype=torch.float64), []
    for dtype in (torch.float64, torch.float32):
        model = build_model(ModelConfig(width=width), 3, 1).to(dtype)
        model(images.to(dtype)).logits.square().mean().backward()
        grads.append([parameter.grad.double() for parameter in model.parameters()])
    for exact, grad in zip(*grads, strict=True):
        torch.testing.assert_close(grad, exact, rtol=1e-3, atol=1e-4 * exact.abs().max().item())


@pytest.mark.parametrize(("classes", "width", "need"), [(100, 8, 13), (100, 12, 13), (18, 2, 3)])
def test_too_narrow_a_network_names_the_width_to_use(classes, width, need):
    with pytest.raises(
        ConfigError, match=rf"width={width}.*{classes} classes.*{classes - 1}.*width={need} or more"
    ):
        _build("explicit", num_classes=classes, width=width)
    assert _build("explicit", num_classes=classes, width=need).classifier.weight.shape == (
        classes,
        8 * need,
    )


@pytest.mark.parametrize("kind", [kind for kind in ARMS if kind != "explicit"])
def test_groups_that_do_not_divide_the_channels_are_refused(kind):
    with pytest.raises(ConfigError, match=r"groups=5 does not divide the 16 channels"):
        _build(kind, groups=5)


@pytest.mark.parametrize("kind", [kind for kind in ARMS if kind != "explicit"])
def test_under_bfloat16_autocast_cells_stay_in_float32(kind):
    model, x = _contract(_build(kind)).eval(), _images()
    seen = []
    cell = next(m for m in model.block.modules() if isinstance(m, ResidualCell))
    for part in (cell, cell.conv1):
        part.register_forward_hook(
            lambda _, inputs, out: seen.extend([*(t.dtype for t in inputs), out.dtype])
        )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.encoder(x).dtype == torch.bfloat16
        out = model(x)
    assert set(seen) == {torch.float32} and out.features.dtype == torch.float32
    if kind == "deq":
        assert out.solution.converged.all() and out.solution.residual.dtype == torch.float32
        assert out.solution.residual.max() <= 1e-3
    out.logits.float().square().sum().backward()
    assert all(
        p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters()
    )


@pytest.mark.parametrize("method", ["broyden", "anderson", "fixed_point"])
def test_solver_options_reach_the_solver(method):
    kinds = {
        "broyden": solvers.Broyden,
        "anderson": solvers.Anderson,
        "fixed_point": solvers.FixedPointIteration,
    }
    built = build_solver(SolverConfig(method=method, tol=1e-5, max_steps=7))
    assert built == kinds[method](tol=1e-5, max_steps=7), (
        "other options left out mean the solver's own default"
    )
    assert build_solver(SolverConfig()) == solvers.paper_solver()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, deq.Implicit()),
        ({"steps": 2}, deq.Implicit(steps=2)),
        ({"method": "phantom"}, deq.Phantom(steps=1, damping=0.0)),
        ({"method": "neumann", "steps": 3}, deq.Neumann(terms=3)),
        ({"method": "unrolled", "steps": 3}, deq.Unrolled(steps=3, tol=1e-3)),
    ],
)
def test_gradient_options_reach_the_gradient(options, rule):
    assert build_gradient(GradientConfig(**options), 1e-3) == rule


def test_a_cosine_classifier_gives_thirty_times_the_cosines():
    model = _build("explicit", head="cosine").eval()
    output = model(_images())
    cosines = nn.functional.cosine_similarity(
        output.features[:, None], model.classifier.weight[None], dim=2
    )
    torch.testing.assert_close(output.logits, 30 * cosines)


# -- A cell of a user's own --------------------------------------------------------------------------------------------

CELL_FILE = """
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, z, x):
        return torch.tanh(x + FACTOR * self.conv(z))


class Narrow(Cell):
    def forward(self, z, x):
        return super().forward(z, x)[:, :2]


class Raises(Cell):
    def forward(self, z, x):
        raise KeyError("weight")
"""


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """The name of a module of a user's own, and its file."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"cells_{tmp_path.name.replace('-', '_')}"
    file = tmp_path / f"{name}.py"
    file.write_text(CELL_FILE.replace("FACTOR", "0.5"))
    return name, file


def test_a_cell_of_ones_own_stands_in_every_arm_and_draws_its_own_weights(cells):
    module, _ = cells
    x = _images()
    outputs = {}
    for kind in ("deq", "explicit_matched"):
        model = _build(kind, seed=4, cell=f"{module}:Cell").eval()
        inner = model.encoder(x)
        torch.manual_seed(3 * 4 + 1)
        same = type(model.block.cell)(16)
        assert torch.equal(same.conv.weight, model.block.cell.conv.weight)
        outputs[kind] = model.block.cell(inner, inner)
    assert torch.equal(outputs["deq"], outputs["explicit_matched"])


def test_a_changed_file_is_another_cell(cells):
    module, file = cells
    before = ModelConfig(kind="explicit_matched", width=2, cell=f"{module}:Cell")
    assert build_model(before, 10, 1).block.cell.forward.__code__.co_consts.count(0.5) == 1
    file.write_text(CELL_FILE.replace("FACTOR", "0.25"))
    with pytest.raises(ValueError, match="changed since this run was configured"):
        build_model(before, 10, 1)
    after = ModelConfig(kind="explicit_matched", width=2, cell=f"{module}:Cell")
    assert after.source != before.source and before.replace(cell=f"{module}:Cell") == after
    assert build_model(after, 10, 1).block.cell.forward.__code__.co_consts.count(0.25) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Narrow",
            r"must return a tensor of the shape of its state, \(2, 16, 4, 4\), and returned \(2, 2, 4, 4\)",
        ),
        ("Raises", "raised KeyError: 'weight'"),
        ("Misspelt", "cannot be imported .*Misspelt"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused(cells, name, says):
    module, _ = cells
    with pytest.raises(ValueError, match=says):
        _build("explicit_matched", cell=f"{module}:{name}")
