"""``diagnose`` names what is wrong with layers that are built wrong, and finds nothing wrong with healthy ones."""

import copy
import json
import warnings

import pytest
import torch
from cells import ConvCell, TanhCell, TwoPartCell, random, zeros_of_two_parts
from problems import Net
from torch import nn
from torch.nn import functional as F

import nclib as nc
from nclib.deq import Reversible

X = random(6, 4)


class Wrong(TanhCell):
    """A tanh cell with one fault in how it is differentiated."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.register_buffer("gain", torch.ones((), dtype=torch.float64))

    def forward(self, z, x):
        if self.fault == "buffer" and torch.is_grad_enabled():
            self.gain.mul_(0.5)
        z, x = z.detach() if self.fault == "z" else z, x.detach() if self.fault == "x" else x
        h = self.gain.clone() * z @ self.w.T + x @ (self.u.detach() if self.fault == "cell.u" else self.u).T
        return h / h.norm(dim=1, keepdim=True).detach() if self.fault == "norm" else torch.tanh(h)


class Expansive(nn.Module):
    def forward(self, z, x):
        return x - 1.02 * z


def dropped(z, x):
    return 0.5 * nn.functional.dropout(z, 0.5) + x


def expand(z, x):
    return z + 1


class Jitter(nn.Module):
    def forward(self, z):
        return z + 0.1 * torch.randn_like(z)


class Noisy(TanhCell):
    def __init__(self):
        super().__init__()
        self.jitter = Jitter()

    def forward(self, z, x):
        return super().forward(self.jitter(z), x)


def spiral(z, x):
    """To within 0.03 % of x, and round it for ever."""
    off = z - x
    turned = off.view(-1, 2, 2).flip(2) * torch.tensor([-1.0, 1.0])
    return x + 0.95 * off + 3e-4 * x.norm(dim=1, keepdim=True) * F.normalize(turned.flatten(1), dim=1)


def two(z, x):
    return 8 + torch.tanh(2 * (z - 8) + 0.2 * x)


def from_start(factor):
    return nc.DEQ(spiral, nc.Anderson(1e-2), z0=lambda x: factor * x)


def moved_by_input(gain):
    return nc.DEQ(lambda z, x: torch.tanh(0.5 * z + 0.3 + gain * x), nc.Anderson(1e-6))


plain = nc.FixedPointIteration
BROYDEN = nc.Broyden(1e-5, 99)
BAD = {
    "no fixed point, plain": (lambda: nc.DEQ(expand, plain()), {"converged", "fixed_point"}),
    "no fixed point, Broyden": (lambda: nc.DEQ(expand), {"fixed_point"}),
    "no fixed point, slow": (lambda: nc.DEQ(lambda z, x: F.softplus(z + 3), nc.Anderson(1e-3)), {"fixed_point"}),
    "no fixed point, a drift": (lambda: nc.DEQ(lambda z, x: z + F.softplus(-z) + 0.1), {"fixed_point"}),
    "no fixed point, started far away": (lambda: nc.DEQ(expand, z0=lambda x: 1e5 + 0 * x), {"fixed_point"}),
    "12 % from a fixed point": (lambda: from_start(1.13), {"fixed_point"}),
    "7 % from a fixed point": (lambda: from_start(1.08), {"spectral_radius"}),  # near x the map turns sharply
    "two fixed points": (lambda: nc.DEQ(two, nc.Anderson(), z0=lambda x: 8 + torch.sign(x)), {"starts"}),
    "expansive, Broyden": (lambda: nc.DEQ(Expansive(), nc.Broyden(1e-6)), {"spectral_radius"}),
    "expansive, plain": (lambda: nc.DEQ(Expansive(), plain()), {"converged", "spectral_radius", "gradient"}),
    "loose": (lambda: nc.DEQ(lambda z, x: 0.9 * z.flip(1) + x, nc.Anderson(tol=0.3)), {"fixed_point", "gradient"}),
    "few steps": (lambda: nc.DEQ(TanhCell(), plain(1e-6, 4)), {"converged", "gradient"}),
    "dead input": (lambda: moved_by_input(0.0), {"input"}),
    "input that moves z* by 0.09 %": (lambda: moved_by_input(1.7e-4), {"input"}),
    "input that moves z* by 0.12 %": (lambda: moved_by_input(2.3e-4), set()),  # which is fine
    "dropout": (lambda: nc.DEQ(dropped, nc.Anderson()), {"map", "converged"}),
    "a random part": (lambda: nc.DEQ(Noisy(), nc.Anderson()), {"map", "converged"}),
    "rows mixed after the first": (lambda: nc.DEQ(lambda z, x: 0.1 * z.cumsum(0) + x, nc.Anderson()), {"map"}),
    "rows mixed": (lambda: nc.DEQ(lambda z, x: 0.5 * (z - 1e-3 * z.mean(0)) + x, nc.Anderson()), {"map"}),  # by 0.04 %
    "one product": (lambda: nc.DEQ(TanhCell(rho=2.0), nc.Broyden(1e-8), nc.Implicit(plain(1e-8, 1))), {"gradient"}),
    "slow": (lambda: nc.DEQ(lambda z, x: 0.95 * z.roll(1, 1) + x, BROYDEN, nc.Implicit(plain(1e-5, 3))), {"gradient"}),
    "detach z": (lambda: nc.DEQ(Wrong("z"), nc.Anderson()), {"gradient"}),
    "detach x": (lambda: nc.DEQ(Wrong("x"), nc.Anderson()), {"gradient"}),
    "detach cell.u": (lambda: nc.DEQ(Wrong("cell.u"), nc.Anderson()), {"gradient"}),
    "a norm alone": (lambda: nc.DEQ(Wrong("norm"), nc.Anderson()), {"gradient"}),
    "a buffer that changes": (lambda: nc.DEQ(Wrong("buffer"), nc.Anderson()), {"gradient"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_layer_is_complained_about_for_what_is_wrong_with_it_alone(name):
    make, complaints = BAD[name]
    found = nc.diagnose(make(), X)
    assert set(found.complaints) == complaints, found
    assert ("buffer" in found.as_dict()["gradient"]["says"]) is (name == "a buffer that changes")
    assert name[:6] != "detach" or f"derivative by {name[7:]} is up to" in found.findings["gradient"]["says"]
    assert (", first in its Jitter, beside" in found.as_dict()["map"]["says"]) is (name == "a random part")
    assert name != "rows mixed" or "beside other rows by 0 " not in found.findings["map"]["says"]


@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_a_fixed_point_far_from_the_start_is_one(tol):
    for rho in (0.95, 0.99):
        layer = nc.DEQ(lambda z, x: rho * z.roll(1, 1) + x, nc.Anderson(tol, 200), z0="zeros")  # noqa: B023
        said = nc.diagnose(layer, X.float().abs()).findings["fixed_point"]
        assert said["ok"] and said["rows_with_one"] == len(X), said


@pytest.mark.parametrize("tol", [1e-2, 1e-5])
def test_a_map_that_contracts_slowly_has_one_fixed_point(tol):
    layer = nc.DEQ(lambda z, x: 0.9995 * z.roll(1, 1) + x, nc.Broyden(tol, 400))
    assert nc.diagnose(layer, X.float()).findings["starts"]["rows_with_several"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_the_solver_is_too_weak_the_fixed_point_is_found(dtype):
    turn = nn.utils.parametrizations.orthogonal(nn.Linear(64, 64, bias=False))
    cell = Net(lambda net, z, x: 0.999 * net.turn(z) + x, turn=turn).to(dtype)
    found = nc.diagnose(nc.DEQ(cell, nc.Anderson(1e-5)), random(6, 64).to(dtype))
    assert found.complaints == ["converged", "gradient"], found
    assert "Found for 6 of 6 rows, for 0 others what seems one; the solver misses 6 of them. " in repr(found)


def test_a_backward_pass_that_fails_is_reported():
    changed = Net(lambda net, z, x: torch.tanh(net.k.fill_(0.5) * net.w(z) + x), w=nn.Linear(4, 4), k=torch.ones(()))
    for cell in (changed, lambda z, x: torch.tanh(0.5 * z).add_(x)):
        found = nc.diagnose(nc.DEQ(cell, nc.Anderson()), random(9, 4).float())
        assert found.complaints == ["gradient"], found
        assert "modified by an inplace" in found.findings["gradient"]["says"]


def test_a_detach_in_a_relu_cell_of_float32_is_found():
    cell = Net(lambda net, z, x: torch.relu(x + net.w(z.detach())), w=nn.Linear(1024, 1024))
    assert "gradient" in nc.diagnose(nc.DEQ(cell, nc.Anderson()), random(6, 1024).float()).complaints


def test_a_detach_of_one_of_two_args_is_found():
    layer = nc.DEQ(lambda z, x, a, b: torch.tanh(0.5 * z + x + a.detach() + b), nc.Anderson())
    found = nc.diagnose(layer, X, args=(random(6, 4), random(6, 4))).findings["gradient"]
    assert "derivative by args[0] is up to" in found["says"], found


def test_a_detach_in_a_cell_with_a_state_of_several_tensors_is_found():
    cell = Net(lambda net, z, x: (torch.tanh(0.5 * z[1] + x), torch.tanh(net.w.detach() * z[0])), w=random(4) / 4)
    cell.w = nn.Parameter(cell.w)
    for dtype in (torch.float32, torch.float64):
        found = nc.diagnose(nc.DEQ(cell.to(dtype), z0=lambda x: (0 * x, 0 * x)), X.to(dtype))
        assert "derivative by cell.w is up to" in found.findings["gradient"]["says"], found


def test_under_autocast_it_is_the_precision_that_misses_the_tolerance():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=True)  # which in evaluation has a way of its own
    x = random(6, 5, 16).float()
    cell = Net(lambda net, z, x: net.norm(x + net.mix(z, z, z)[0] / 2), mix=attention, norm=nn.LayerNorm(16)).eval()
    for tol, complaints in ((2e-2, []), (1e-6, ["converged", "gradient"])):
        with torch.autocast("cpu", torch.bfloat16):
            found = nc.diagnose(nc.DEQ(cell, nc.Anderson(tol, 60)).eval(), x)
        assert found.complaints == complaints, found
        beyond = found.findings["fixed_point"]["rows_beyond_the_precision"]  # a row may be solved by chance
        assert 3 <= beyond <= 6 if complaints else beyond == 0
        assert (f"of them, and {beyond} are met in float64 alone. " in repr(found)) is bool(beyond)


def test_zeros_at_the_kinks_of_a_relu_are_no_fault():
    x = random(6, 10, 16)
    x[:, 6:] = 0  # padded
    cell = Net(lambda net, z, x: torch.relu(0.5 * net.w(z) + x), w=nn.Linear(16, 16, bias=False))
    for dtype in (torch.float32, torch.float64):
        found = nc.diagnose(nc.DEQ(cell.to(dtype), nc.Anderson(1e-5, 100)), x.to(dtype))
        assert found.complaints == [] and found.findings["gradient"]["ok"], found


class Normed(nn.Module):
    """With the former weight_norm, whose weight torch does not copy."""

    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.linear = nn.utils.weight_norm(nn.Linear(4, 4).double())

    def forward(self, z, x):
        return torch.tanh(0.3 * self.linear(z) + x)


class Fourier(TanhCell):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.full((3,), 0.3 + 0.1j, dtype=torch.complex128))

    def forward(self, z, x):
        return torch.tanh(torch.fft.irfft(self.filter * torch.fft.rfft(z), n=z.shape[-1]) + x)


ZERO = torch.cat([X, 0 * X[:1]])
HEALTHY = {
    "weight_norm": (lambda: nc.DEQ(Normed(), nc.Anderson()), X),
    "a complex parameter": (lambda: nc.DEQ(Fourier(), nc.Anderson()), X),
    "linear": (lambda: nc.DEQ(lambda z, x: 0.5 * z + x), X),
    "tanh": (lambda: nc.DEQ(TanhCell(dtype=torch.float32), nc.Anderson()), X.float()),
    "images": (lambda: nc.DEQ(ConvCell(), nc.Broyden(1e-3)), random(3, 8, 6, 6, dtype=torch.float32)),
    "zero": (lambda: nc.DEQ(lambda z, x: torch.tanh(0.7 * z.roll(1, 1) + x), nc.Anderson(), z0=torch.ones_like), ZERO),
    "one row": (lambda: nc.DEQ(TanhCell()), X[:1]),
    "half": (lambda: nc.DEQ(lambda z, x: 0.5 * z + x, nc.Anderson(1e-2)), X.bfloat16()),
    "at zero": (lambda: nc.DEQ(lambda z, x: 0.5 * torch.tanh(z) + x), torch.zeros(3, 2)),
    **{
        str(rule): (lambda rule=rule: nc.DEQ(TanhCell(), gradient=rule), X)
        for rule in (nc.Neumann(2), nc.Phantom(), nc.Phantom(4, 0.5), nc.Unrolled(30), Reversible(30))
    },
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_healthy_layer_gets_no_complaint(name, mode):
    make, x = HEALTHY[name]
    found = nc.diagnose(getattr(make(), mode)(), x)
    assert found.complaints == [], found
    assert found.findings["converged"]["ok"] and found.findings["gradient"]["ok"], found


def test_numbers_are_those_of_a_linear_map():
    found = nc.diagnose(nc.DEQ(lambda z, x: 0.8 * z + x, nc.FixedPointIteration(1e-6, 200)), X).as_dict()
    assert found["spectral_radius"]["radius"] == pytest.approx([0.8] * 6)
    assert found["converged"]["rows_converged"] == found["converged"]["rows"] == 6
    assert len(found["converged"]["residual_worst"]) == found["converged"]["evaluations"]["most"]
    assert found["gradient"]["error"] < 1e-3 and found["gradient"]["cosine"] == pytest.approx(1)
    assert found["starts"]["rows_with_several"] == 0 and found["starts"]["solves"] == 30
    assert found["cost"]["ratio"] > 1 and found["cost"]["ok"] is None


def test_a_gradient_is_not_judged_where_plain_steps_leave_the_fixed_point():
    found = nc.diagnose(nc.DEQ(lambda z, x: torch.tanh(3 * z + 0.05 * x), nc.Anderson(), z0="zeros"), X)
    assert found.as_dict()["spectral_radius"]["radius"][0] > 1 and found.findings["gradient"]["ok"] is None


def test_a_state_of_several_tensors_with_args():
    class Cell(TwoPartCell):
        def forward(self, z, x, gain):
            return super().forward(z, gain * x)

    layer = nc.DEQ(Cell(), nc.Anderson(1e-6))
    x, gain = random(5, 7), 1 + random(5, 1).abs()
    found = nc.diagnose(layer, x, zeros_of_two_parts(5), (gain,))
    assert found.complaints == [] and found.findings["gradient"]["ok"]


class Keeping(TanhCell):
    def forward(self, z, x):
        self.kept = {"before": [z], "after": super().forward(z, x)}
        return self.kept["after"]


def test_a_cell_that_keeps_what_it_computes_is_copied():
    layer = nc.DEQ(Keeping(), nc.Anderson())
    layer(X)[0].sum().backward()
    assert nc.diagnose(layer, X).complaints == []


def test_a_part_of_a_state_counts_however_small_it_is_beside_others():
    first = lambda z, x: 3000 * torch.tanh(z[0] / 6000 + x)  # noqa: E731
    start = lambda x: (0 * x, 0 * x + 0.1)  # noqa: E731
    two = nc.DEQ(lambda z, x: (first(z, x), torch.tanh(3 * z[1] + 0.05 * x)), nc.Anderson(1e-4, 100), z0=start)
    mixed = nc.DEQ(lambda z, x: (first(z, x), torch.tanh(0.5 * z[1] + x - 0.3 * x.mean(0))), nc.Anderson(), z0=start)
    fine = nc.DEQ(lambda z, x: (3000 * torch.tanh(z[1] / 2 + x), torch.tanh(z[0] / 6000 - x)), z0=start)
    halved = lambda z: z / (2 + torch.is_grad_enabled())  # noqa: E731
    changed = nc.DEQ(lambda z, x: (first(z, x), torch.tanh(halved(z[1]) + x)), z0=start)
    drift = nc.DEQ(lambda z, x: (first(z, x), z[1] + 0.1), nc.Broyden(1e-4, 100), z0=start)
    detached = nc.DEQ(lambda z, x: (first(z, x), torch.tanh(0.5 * z[1].detach() + x)), z0=start)
    late = nc.DEQ(lambda z, x: (z[0] / 2 + x, torch.tanh(z[0] - z[1] / 2)), z0=lambda x: (0 * x, 0 * x))
    input_of_one = nc.DEQ(lambda z, x: (first(z, 0 * x + 1), torch.tanh(0.5 * z[1] + x)), z0=start)
    sick = {two: "starts", mixed: "map", changed: "gradient", detached: "gradient", drift: "fixed_point"}
    assert [nc.diagnose(layer, X.float()).complaints for layer in sick] == [[name] for name in sick.values()]
    assert [nc.diagnose(layer, X.float()).complaints for layer in (fine, late, input_of_one)] == [[], [], []]


@pytest.mark.parametrize("gradient", [nc.Implicit(), nc.Unrolled(20)])
def test_integers_for_x(gradient):
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mix = nn.Embedding(7, 4), nn.Linear(4, 4)
            nn.init.orthogonal_(self.mix.weight, 0.4)

        def forward(self, z, x):
            return torch.tanh(self.mix(z) + self.table(x).mean(1))

    layer = nc.DEQ(Tokens(), None if isinstance(gradient, nc.Unrolled) else nc.Anderson(5e-3), gradient)
    layer.z0 = lambda x: torch.zeros(len(x), 4)
    found = nc.diagnose(layer, torch.arange(12).view(4, 3) % 7)
    assert found.complaints == [] and found.findings["gradient"]["ok"], found


def test_rows_that_are_never_finite_are_counted_and_the_others_judged():
    x = X.clone()
    x[1] = torch.nan
    found = nc.diagnose(nc.DEQ(TanhCell(), nc.Anderson()), x)
    told = found.as_dict()
    assert found.complaints == ["converged", "fixed_point"]
    assert told["converged"]["rows_never_finite"] == 1 and told["fixed_point"]["rows_with_one"] == 5
    assert told["gradient"]["ok"] and told["converged"]["worst_residual"] is None
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("fault", [None, "buffer"])
@pytest.mark.parametrize("recorded", [False, True])
def test_nothing_of_the_layer_changes(fault, recorded):
    layer = nc.DEQ(Wrong(fault), nc.Anderson(), return_solution=False).train()
    x = X.clone().requires_grad_()
    z, before = layer(x), copy.deepcopy(layer.state_dict())
    kept = {name: dict(vars(module)) for name, module in layer.named_modules()}
    versions = [t._version for t in layer.buffers()]
    state = torch.get_rng_state()
    layer.register_forward_hook(lambda *_: pytest.fail("the layer's own hook was called"))
    with torch.set_grad_enabled(recorded), warnings.catch_warnings():
        warnings.simplefilter("error")
        nc.diagnose(layer, x)
    with pytest.raises(ValueError, match="x has no rows"):
        nc.diagnose(layer, x[:0])
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: dict(vars(module)) for name, module in layer.named_modules()} == kept
    assert all(torch.equal(t, before[name]) for name, t in layer.state_dict().items())
    assert [t._version for t in layer.buffers()] == versions
    assert x.grad is None and all(p.grad is None for p in layer.parameters())
    z.sum().backward()


def test_the_picture_is_the_trace():
    pytest.importorskip("matplotlib").use("agg")
    x = X.clone()
    x[1] = torch.nan
    found = nc.diagnose(nc.DEQ(TanhCell(), nc.Anderson()), x)
    ax = found.plot()
    assert ax.get_yscale() == "log" and len(ax.lines) == 6 + 1
    assert ax.lines[0].get_ydata().tolist() == found.trace[:, 0].tolist()
    assert found.plot(ax) is ax
