"""The GPU path without a GPU: the same bits on an emulated device, and what makes the host wait there."""

import emulated
import pytest
import torch
from cells import with_rule
from marks import slow

import nclib as nc
from nclib import deq, training
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.models import ResidualCell
from nclib.solvers import Anderson, Broyden, FixedPointIteration, fixed_point

GPU = "cuda:0"


@pytest.fixture
def waits(monkeypatch):
    with emulated.device(monkeypatch) as waits:
        yield waits


@pytest.fixture
def problem():
    torch.manual_seed(0)
    cell = ResidualCell(8, 2)
    torch.nn.init.constant_(cell.norm2.weight, 0.5)
    return cell, torch.randn(6, 8, 4, 4) * torch.logspace(-1, 1, 6).view(-1, 1, 1, 1)


def _there(tensors):
    return [tensor.to(GPU) for tensor in tensors]


def test_the_emulated_device_refuses_and_notices_what_a_gpu_would(waits):
    here, there = torch.ones(3), torch.ones(3).to(GPU)
    assert there.device == torch.device(GPU) and there.is_cuda and waits == ["from pageable memory"]
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()
    waits.clear()
    there *= 2.0
    assert (there + torch.tensor(1.0)).shape == (3,) and not waits, (
        "a number of the host may take part"
    )
    torch.ones(3).pin_memory().to(GPU, non_blocking=True)
    torch.zeros(3, device=GPU)[torch.arange(2, device=GPU)] = 1
    assert not waits
    assert (
        there.sum().item() == 6 and there.cpu().tolist() == [2.0, 2.0, 2.0] and bool(there[0] > 1)
    )
    there[there > 1], there[torch.arange(2)]
    assert waits == ["_local_scalar_dense", "to the host", "_local_scalar_dense", "index by a mask",
                     "index by host indices"]  # fmt: skip
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            there.cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("method", "halve"),
    [(Broyden, True), *slow((Broyden, False), (Anderson, True), (FixedPointIteration, True))],
)
def test_a_solve_waits_once_a_step(waits, problem, method, halve):
    cell, x = problem
    solver = method(1e-4, 30)
    expected = fixed_point(cell, solver, x, (x,), halve=halve)
    assert len(set(expected.steps.tolist())) > 1, "rows must leave at different steps"
    (there,), cell = _there([x]), cell.to(GPU)
    waits.clear()
    found = fixed_point(cell, solver, there, (there,), halve=halve)
    assert waits == ["to the host"] * expected.num_evals
    for name in ("value", "residual", "converged", "status", "steps", "trace"):
        tensor = getattr(found, name)
        assert tensor.device == torch.device(GPU) and torch.equal(
            tensor.cpu(), getattr(expected, name)
        ), name


RULES = [
    deq.Implicit(Broyden(1e-5, 200)),
    *slow(deq.Phantom(3, 0.5), deq.Neumann(3), deq.Unrolled(3)),
]


@pytest.mark.parametrize("gradient", RULES, ids=str)
def test_an_equilibrium_waits_once_an_evaluation_a_product_and_a_solve(waits, problem, gradient):
    """Steps whose number is fixed wait for nothing."""
    cell, x = problem

    def gradients(x):
        layer = with_rule(cell, Broyden(1e-4, 200), gradient)
        layer(x)  # the first call looks for tensors that are not the cell's
        waits.clear()
        z, solution = layer(x)
        z.square().sum().backward()
        products = layer.last_backward.num_evals if isinstance(gradient, deq.Implicit) else 0
        found = [p.grad.cpu() for p in cell.parameters()]
        cell.zero_grad()
        return 0 if isinstance(gradient, deq.Unrolled) else solution.num_evals + products, found

    _, expected = gradients(x)
    (there,), cell = _there([x]), cell.to(GPU)
    evaluations, found = gradients(there)
    steps = [
        wait for wait in waits[: -len(found)] if wait == "to the host"
    ]  # then the gradients, by this test
    assert len(steps) == evaluations and len(waits) - len(found) - evaluations <= 2, (
        "whether all rows converged"
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _config(kind, *, epochs=2, train=None, **model):
    if kind == "deq":
        model = {"groups": 2} | model
    return RunConfig(
        data=DataConfig(n_max=9, test_per_class=3, imbalance="step", num_majority=3, ratio=3.0),
        model=ModelConfig(kind=kind, width=2, **model),
        train=TrainConfig(**{"epochs": epochs, "batch_size": 16, "lr": 0.05} | (train or {})),
    )


def _same(found, expected):
    assert found.history.equals(expected.history)
    for name in ("weights", "arrays"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.keys() == b.keys() and all(
            (torch.as_tensor(a[k]) == torch.as_tensor(b[k])).all() for k in a
        )


@pytest.mark.parametrize("kind", ["explicit", *slow("deq", "explicit_matched", "weight_tied")])
def test_training_there_gives_the_same_bits_and_waits_for_solves_and_the_norm_of_the_gradient(
    waits, monkeypatch, kind
):
    config, epochs = _config(kind), []
    original = training.Training.train_epoch

    def watched(self):
        waits.clear()
        original(self)
        epochs.append(list(waits))

    expected = training.train(config, device="cpu")
    monkeypatch.setattr(training.Training, "train_epoch", watched)
    found = training.train(config, device=GPU)
    _same(found, expected)
    steps = found.facts["updates"] // config.train.epochs
    for epoch in epochs:
        assert epoch.count("_local_scalar_dense") == steps + 1, "the loss of the epoch"
        assert epoch.count("from pageable memory") <= 3, (
            "the order of the images and how each is moved"
        )
        if kind != "deq":
            assert epoch.count("to the host") < 10, "the sums of the epoch"


@pytest.mark.parametrize(
    ("kind", "model", "train"),
    [
        *slow(
            ("deq", {"start": "zeros", "cell": "mdeq", "gradient": {"method": "phantom"}}, {}),
            ("deq", {"gradient": {"method": "neumann"}}, {"loss": "class_balanced"}),
            ("explicit_flops", {"num_blocks": 2, "groups": 2}, {"loss": "balanced_softmax"}),
            ("deq", {"gradient": {"method": "unrolled", "steps": 3}}, {"precision": "float64"}),
            ("explicit", {"head": "etf", "feature_norm": "batchnorm"}, {}),
            ("explicit", {}, {"nc_on_test": True, "clip": None}),
        ),
        ("explicit", {"head": "cosine"}, {"loss": "ldam_drw"}),
    ],
)
def test_every_option_works_there(waits, kind, model, train):
    config = _config(kind, train=train, epochs=1, **model)
    _same(training.train(config, device=GPU), training.train(config, device="cpu"))


def test_few_sizes_of_batch_are_seen_there(waits, problem):
    cell, x = problem
    (there,), cell, seen = _there([x]), cell.to(GPU), []
    watch = cell.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    with torch.no_grad():
        _, solution = deq.DEQ(cell, Broyden(1e-4, 30), on_failure="ignore")(there)
    watch.remove()
    assert set(seen) <= {6, 3, 1} and len(set(solution.steps.cpu().tolist())) > 3


def test_batches_and_class_ids_may_be_anywhere(waits):
    """An ordinary loader has its batches on the CPU, and class ids come from counts on the GPU."""
    torch.manual_seed(0)
    config = _config("explicit")
    images, labels = torch.rand(12, 1, 8, 8), torch.arange(12) % 4
    counts = torch.tensor([9, 9, 3, 3])
    model = nc.build_model(config.model, 4, in_channels=1)
    expected = nc.evaluate(model, [(images, labels)], counts)
    found = nc.evaluate(model.to(GPU), [(images, labels)], counts)
    assert found == pytest.approx(expected, nan_ok=True)
    moments = nc.class_moments(images.flatten(1).to(GPU), labels.to(GPU), 4)
    rare = (moments.counts < 4).nonzero().flatten()
    assert moments.select(rare).counts.tolist() == [3, 3, 3, 3]
