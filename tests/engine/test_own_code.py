"""A cell or network of the user's own: trained, stored, resumed like ours, never imported for a stored run's sake."""

import importlib
import random
import shutil
import signal
import sys
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from importlib.util import spec_from_file_location
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tidy import rows, stack

import nclib as nc
from nclib import models
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.data import make_split
from nclib.engine import jobs, runs
from nclib.engine.store import default_store, protocol, tidy
from nclib.publish import notes
from nclib.system import own_code, plugins
from nclib.trial import try_own_code

SOURCE = """
from pathlib import Path
import os, random
import numpy as np
import nclib as nc, torch
from torch import nn
try:
    from .tabnanny import HALF
except ImportError:
    from tabnanny import HALF  # not the one of Python, which comes later on the path

Path(__file__).with_name("imported").touch()
DRAWN, DRAWS = torch.rand(()), torch.Generator().manual_seed(0)
class Cell(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)
        self.inner = lambda z: self.norm(self.conv(z))
    def forward(self, z, x):
        return torch.relu(x + HALF * self.inner(z.float()))
class Grouped(Cell):
    def __init__(self, channels, groups):
        super().__init__(channels)
        self.norm = nn.GroupNorm(groups, channels)
        nn.utils.parametrizations.orthogonal(self.conv)  # which needs full precision
class Narrow(Cell):
    def forward(self, z, x):
        return super().forward(z, x)[:, :2]
class Plain(nn.Module):
    __init__ = lambda self, channels: super(Plain, self).__init__()
    __len__ = lambda self: 0  # so that it counts as false
    forward = lambda self, z, x: torch.tanh(0.5 * z + x)
class Raises(Cell):
    def forward(self, z, x):
        raise KeyError("weight")

def small(num_classes, in_channels, width):
    body = nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    head = nn.Linear(width, num_classes)
    return nn.Sequential(*body, nn.Flatten(), head)
class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        self.by, self.order = nn.Parameter(1j * torch.ones(1)), nn.Parameter(torch.arange(1), requires_grad=False)
        self.register_buffer("drawn", torch.polar(torch.ones(1), torch.rand(1)), persistent=False)
    forward = lambda self, x: (x * self.by * self.drawn).imag
keyed = lambda *sizes, **options: torch.compile(nn.Sequential(Turn(), small(*sizes, **options)), backend="eager")
slow = nc.DEQ(lambda z, x: 0.99 * z + 0.01 * x, nc.FixedPointIteration(max_steps=2), z0="zeros", return_solution=False)
unsolved = lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), slow, nn.Linear(8, 10))
softmax = lambda num_classes, _: nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.LogSoftmax(1))
bounded = lambda num_classes, _: nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.Hardtanh(-10, 10))
class Kept(nn.Sequential):
    def __init__(self, does=lambda net, x: None):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.draws = [np.random.RandomState(0)]
        self.does, self.seen, self.scale = does, 0, nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(()), persistent=False)
    count = staticmethod(lambda calls=[]: calls.append(1))
    def forward(self, x):
        factor = self.does(self, x) if self.training or self.does is scaled else None
        return super().forward(self.scale * x) * (1 if factor is None else factor)
class Extra(Kept):
    get_extra_state = lambda self: 1
extra = lambda *_: Extra()
scaled, kept = lambda net, x: net.scale, lambda does: lambda *_: Kept(does)
Box = type("Box", (), {})
Scaled, step, mean, flag, norm, late, rare, of_module, of_class, of_another, of_static = map(kept, (
    scaled,
    lambda net, x: setattr(net, "seen", net.seen + torch.is_grad_enabled()),
    lambda net, x: setattr(net, "mean", net.mean + 1),
    lambda net, x: None if net.seen else setattr(net, "seen", net.scale.data.copy_(x.std()) > 0),
    lambda net, x: 1 / x.norm(),
    lambda net, x: exec("import tabnanny"),
    lambda net, x: 0.5 if net.draws[0].rand() < 1e-9 else None,
    lambda net, x: 0.5 if torch.rand((), generator=DRAWS) < 1e-9 else None,
    lambda net, x: setattr(Kept, "calls", getattr(Kept, "calls", 0) + 1),
    lambda net, x: setattr(Box, "calls", getattr(Box, "calls", 0) + 1),
    lambda net, x: net.count(),
))
class Once(nn.Module):
    forward = lambda self, x: x * vars(self).setdefault("drawn", torch.rand(())) if self.training else x
class Starts(nn.Module):
    def __init__(self, does):
        super().__init__()
        self.does, self.inner, self.mean = does, nn.Linear(8, 8), 0
        self.register_buffer("ready", torch.zeros(()))
    def forward(self, x):
        if self.training and not self.ready:
            self.does(self, x) or self.ready.fill_(1)
        return self.inner(x - self.mean)
class Outside(nn.Module):
    forward = lambda self, x: x * float(os.environ.get("FACTOR", 1))
class Ordered(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ["low", "high"][:: -1 if "FACTOR" in os.environ else 1]:  # as of a set in another process
            self.register_parameter(name, nn.Parameter(torch.ones(8) * len(name)))
    forward = lambda self, x: x * self.low + self.high
class Gated(nn.Sequential):
    def forward(self, x):
        return super().forward(x * self[1](x.flatten(1)).std() if self.training else x)
clipped = kept(lambda net, x: [part.data.clamp_(-0.01, 0.01) for part in net.parameters()] and None)
gated = lambda *_: Gated(nn.Flatten(), nn.Linear(64, 10))
class Normed(nn.Linear):
    forward = lambda self, x: nn.functional.linear(x, nn.functional.normalize(self.weight), self.bias)
class Calls(nn.Module):
    def __init__(self, does):
        super().__init__()
        self.fc, self.does = nn.Linear(64, 10).requires_grad_(False), does
        self.scale = nn.Parameter(torch.ones(64))
    forward = lambda self, x: self.does(self.fc, self.scale * x.flatten(1))
pieces, turned, later = (lambda *_, does=does: Calls(does) for does in (
    lambda fc, h: torch.cat([fc(part) for part in h.split(1)]),
    lambda fc, h: fc(h[h.sum(1).argsort()])[h.sum(1).argsort().argsort()],
    lambda fc, h: (fc(h), h.relu_())[0],
))
nans = lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).apply(lambda part: nn.init.constant_(
    part.weight, float("nan")) if isinstance(part, nn.Linear) else part)
normed = lambda *_: nn.Sequential(nn.Flatten(), Normed(64, 10))
class Ends(nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.head, self.body = nn.Linear(6, 10), nn.Linear(64, 6)  # in another order than they are called
        self.fc = self.head
    forward = lambda self, x: self.fc(self.body(x.flatten(1)).relu())
class Graded(nn.Linear):
    forward = lambda self, x: super(Graded, self).forward(x if self.weight.grad is None else x + self.weight.grad)
doubled = lambda net, state, start, _: state.update({f"{start}scale": 2 * state[f"{start}scale"]})
saves = lambda *_: (made := Kept()).register_state_dict_post_hook(doubled) and made
fixes = lambda net, _: net.requires_grad_(False) and None
loaded = lambda *_: (made := Kept()).register_load_state_dict_post_hook(fixes) and made
class Centre(nn.Module):
    forward = lambda self, x: x - vars(self).setdefault("centre", x.mean(0))
class Before(nn.Module):
    batch = torch.zeros(1)
    def forward(self, x):
        before, self.batch = self.batch, x
        return x + before.mean() if self.training else x
class Seldom(nn.Module):
    batch = torch.zeros(1)
    def forward(self, x):
        before, self.batch = self.batch, x if self.training and len(x) > 8 else self.batch
        return x + before.mean() * self.training
class Merges(nn.Linear):
    train = lambda self, on=True: setattr(self, "merged", None if on else self.merged) or super(Merges, self).train(on)
    def forward(self, x):
        merged = 2 * self.weight if self.merged is None else self.merged
        self.merged = None if self.training else merged
        return nn.functional.linear(x, merged)
class Adapted(nn.Linear):  # as loralib: what it learns is part of the weight in evaluation
    merged = False
    def __init__(self, width):
        super().__init__(64, width)
        self.weight.requires_grad_(False)
        self.low = nn.Parameter(0.1 * torch.randn(width, 64))
    def train(self, on=True):
        if self.merged is on:
            self.weight.data += -self.low.data if on else self.low.data
        self.merged = not on
        return super().train(on)
    forward = lambda self, x: super(Adapted, self).forward(x) + (0 if self.merged else x @ self.low.T)
class Later(nn.Linear):  # what it does after a few steps is no part of its state
    def __init__(self, does):
        super().__init__(64, 64)
        self.register_buffer("calls", torch.zeros(()))
        self.does, self.now = does, lambda z: z
    def forward(self, x):
        self.calls += self.training
        self.now = self.does if self.training and self.calls == 3 else self.now
        return self.now(super().forward(x))
stops, drops = (lambda *_, does=does: nn.Sequential(nn.Flatten(), Later(does), nn.Linear(64, 10)) for does in (
    torch.detach, nn.functional.dropout))
class Levels(nn.Module):  # reads grey levels, which noise has not
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(8, 2), nn.Linear(128, 10)
    forward = lambda self, x: self.last(self.table(x.round().long() + 3).flatten(1))
levels = lambda *_: Levels()
wide = lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
class Skips(nn.Module):  # a skipped layer has no gradient
    def __init__(self):
        super().__init__()
        self.layers, self.last = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 10)
    def forward(self, x):
        h = x.flatten(1)
        for layer in self.layers:
            h = h if self.training and torch.rand(()) < 0.5 else h + layer(h)
        return self.last(h)
skips = lambda *_: Skips()
class Spared(nn.Module):  # memory: its last layer is computed again for the gradient
    def __init__(self, again):
        super().__init__()
        self.body, self.last, self.again = nn.Linear(64, 64), nn.Linear(64, 10), again
    def train(self, on=True):
        super().train(on)  # returns nothing, as where stages are frozen
    def forward(self, x):
        h = self.body(x.flatten(1))
        again = self.again and self.training
        return torch.utils.checkpoint.checkpoint(self.last, h, use_reentrant=True) if again else self.last(h)
class Damped(Spared):
    def forward(self, x):
        logits = super().forward(x)
        return logits if logits.requires_grad and logits.register_hook(torch.zeros_like) else logits
spared, unspared = (lambda *_, again=again: Spared(again) for again in (True, False))
damped = lambda *_: Damped(False)
adapted = lambda *_: nn.Sequential(nn.Flatten(), Adapted(64), nn.ReLU(), Adapted(10))
merges = lambda *_: nn.Sequential(nn.Flatten(), Merges(64, 64).train(), nn.Linear(64, 10))
ahead = lambda part: lambda *_: nn.Sequential(part(), nn.Flatten(), nn.Linear(64, 10))
first, before, centre, outside, ordered = map(ahead, (Once, Before, Centre, Outside, Ordered))
graded, seldom = ahead(lambda: Graded(8, 8)), ahead(Seldom)
ready, anew, freezes = (ahead(lambda does=does: Starts(does)) for does in (
    lambda net, x: setattr(net, "mean", x.mean(0)),
    lambda net, x: setattr(net.inner, "bias", nn.Parameter(x[0, 0, 0])),
    lambda net, x: net.inner.requires_grad_(False) and None,
))
First = lambda channels: setattr(made := Cell(channels), "inner", Once()) or made
elsewhere = lambda *_: setattr(made := Kept(), "mean", vars(random).setdefault("kept", torch.zeros(()))) or made
spectral = lambda *_: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))
by = lambda factor: lambda z: factor * z
chance = lambda channels: setattr(made := Cell(channels), "inner", by(np.random.default_rng().random())) or made
inners = lambda z: z - z.mean(0), lambda z: z + 0.1 * z.cumsum(0), lambda z: z + 0.1 * torch.randn_like(z)
Mixes, Earlier, Noisy = (lambda c, inner=inner: setattr(made := Cell(c), "inner", inner) or made for inner in inners)
Live = lambda channels: setattr(made := Cell(channels), "norm", nn.BatchNorm2d(channels)) or made
class Centred(Cell):
    def forward(self, z, x):
        return super().forward(z - z.mean(0) if self.training else z, x)
class Versioned(Kept):
    _version = 2
    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if metadata.get("version") != 2:
            state[prefix + "scale"] = 2 * state[prefix + "scale"]
        super()._load_from_state_dict(state, prefix, metadata, *more)

versioned = lambda *_: Versioned()
class Drawn(Cell):
    def __init__(self, channels):
        super().__init__(channels)
        self.conv.weight.data += torch.from_numpy(np.random.normal(0, 0.1, self.conv.weight.shape)) + random.random()
        self.conv.bias.data = torch.rand(channels, generator=DRAWS)
    def forward(self, z, x):
        return super().forward(z, x) * np.random.uniform(0.9, 1) * DRAWN
seeds = lambda *_: torch.manual_seed(0) and Kept()
headless = lambda num_classes, in_channels: nn.Conv2d(in_channels, num_classes, 8)
"""

IMAGES = DataConfig(n_max=6, test_per_class=3)
TRAIN = TrainConfig(epochs=2, batch_size=32, lr=0.05)
BFLOAT16 = TRAIN.replace(precision="bfloat16")
# networks that alter what their last Linear gives
CHANGED = ("softmax", "bounded", "Scaled", "norm", "normed", "pieces", "turned")
# networks that a restart would change
HIDDEN = ("of_module", "of_class", "of_another", "of_static", "before", "graded")
RESUMED = ("freezes", "loaded", "adapted", "spared", "skips")
LOST = ("flag", "first", "centre", "ready")  # networks that take something from the first images
KEPT = {"step": "seen", "mean": "mean", "rare": "draws"}  # networks, and where they keep what a restart would lose


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the Python path with the user's module, which leaves a file "imported" beside it when it runs."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_cells.py").write_text(SOURCE)
    (tmp_path / "code" / "tabnanny.py").write_text("HALF = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield tmp_path / "code"
    for module in [name for name in sys.modules if name.partition(".")[0] in ("my_cells", "tabnanny", "others")]:
        del sys.modules[module]


def cell(name="Cell", kind="deq", **options):
    model = ModelConfig(kind=kind, width=2, cell=f"my_cells:{name}", **options)
    return RunConfig(data=IMAGES, train=TRAIN, model=model)


def network(name="small"):
    return RunConfig(data=IMAGES, train=TRAIN, model=ModelConfig(kind="network", width=3, network=f"my_cells:{name}"))


def test_changed_source_is_another_run_and_nothing_is_imported_to_know_it(folder):
    before = run_id(cell())
    assert run_id(cell()) == before
    (folder / "my_cells.py").write_text(SOURCE.replace("torch.relu", "torch.tanh"))
    after = run_id(cell())
    assert after != before
    (folder / "tabnanny.py").write_text("HALF = 0.4\n")
    helped = run_id(cell())
    assert helped != after, "a module beside it that it imports counts"
    (folder / "other.py").write_text("THIRD = 3\n")
    before = torch.relu
    for part in ("torch.library", "register_module_forward_hook", "register_optimizer_step_post_hook", "relu of torch"):
        (folder / "library.py").write_text(f"import torch\nTwice = torch.relu = lambda x: x  # {part}\n")
        with pytest.raises(own_code.OwnCodeError, match=f"{part}, which"), own_code.imported("library:Twice", None):
            pass
    (folder / "library.py").write_text("def register_module_hooks(): pass")
    with own_code.imported("library:register_module_hooks", None):
        pass
    assert torch.relu is before and run_id(cell()) == helped
    (folder / "others.py").write_text("def net():\n    import __main__\n")
    with pytest.raises(own_code.OwnCodeError, match="others imports the script that runs: put what it needs"):
        own_code.digest("others:net")
    assert run_id(cell("Grouped")) != run_id(cell()) and not (folder / "imported").exists()


@pytest.mark.parametrize("place", ["code", "site-packages"])
@pytest.mark.parametrize("start", ["start", "no_start"])
def test_what_a_package_imports_of_its_own_counts_wherever_it_lies(place, start, folder, monkeypatch):
    root, package = folder.parent / place, f"mine_{place[:4]}_{start}"
    for part in (root / package / "part", root / "others" / "deep"):
        part.mkdir(parents=True)
    (root / "others" / "deep" / "more.py").touch()
    (root / package / "cells.py").write_text("import others.deep.more\nfrom .part.helper import HALF\n")
    if start == "start":
        (root / package / "__init__.py").write_text("from .cells import HALF\n")
    monkeypatch.syspath_prepend(root)
    name, digests = f"{package}.cells:HALF", set()
    for half in (0.5, 0.4):  # of the same size, in the same second
        (root / package / "part" / "helper.py").write_text(f"HALF = {half}\n")
        digests.add(own_code.digest(name))
        changed = pytest.raises(own_code.OwnCodeError, match="start Python anew")
        with nullcontext() if place == "code" or half == 0.5 else changed, own_code.imported(name, None) as found:
            assert found == half
    assert len(digests) == 2
    assert ("others.deep.more.py" in own_code.files(name)) == (place == "code")
    (folder.parent / "others" / "deep").mkdir(parents=True)
    (folder.parent / "others" / "deep" / "more.py").touch()
    monkeypatch.syspath_prepend(folder.parent)
    says = "and not .*more.py beside it: rename one" if place == "code" else "start Python anew"
    with pytest.raises(own_code.OwnCodeError, match=says), own_code.imported(name, None):
        pass
    (root / f"late_{package}.py").write_text("HALF = 0.4\n")
    importlib.import_module(f"late_{package}")  # maybe before it was written
    says = nullcontext() if place == "code" else pytest.raises(own_code.OwnCodeError, match="start Python anew")
    with says, own_code.imported(f"late_{package}:HALF", None):
        pass


def test_a_package_in_a_folder_of_another_name_counts_whole(folder, monkeypatch):
    (folder / "parts" / "heads").mkdir(parents=True)
    for name in ("__init__", "parts/__init__", "parts/heads/__init__", "helper"):
        (folder / f"{name}.py").touch()
    (folder / "cells.py").write_text("from . import helper\nfrom .parts import *")
    finder = SimpleNamespace(  # as an editable install adds one
        find_spec=lambda name, *_: spec_from_file_location(name, folder / "__init__.py") if name == "its_name" else None
    )
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    monkeypatch.setattr(plugins, "added", lambda group: {"a": EntryPoint("a", "its_name:A", group)})  # which adds to us
    monkeypatch.setattr(plugins, "packages", plugins.packages.__wrapped__)
    names = {"its_name", *(f"its_name.{part}" for part in ("cells", "helper", "parts", "parts.heads"))}
    assert {*own_code.files("its_name.cells:HALF")} == {f"{name}.py" for name in names}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cell("Missing"), "has no attribute 'Missing'"),
        (lambda: ModelConfig(kind="deq", cell="absent:Cell"), "no module 'absent' on the Python path"),
        (lambda: cell("Narrow"), r"Narrow at a state returns \(2, 2, 1, 1\).*tensor of shape \(2, 16, 1"),
        (lambda: cell("chance"), "chance is another with the same seed and weights: take random numbers from"),
        (lambda: cell("Raises"), r"my_cells:Raises cannot be called with \(2, 16.*KeyError"),
        (lambda: cell("small"), r"my_cells:small\(16\) raised TypeError"),
        *((lambda name=name: network(name), "not return what '(1|fc)', the Linear with 10") for name in CHANGED),
        *((lambda name=name: network(name), f"{name} is another with") for name in LOST),
        (lambda: network("anew"), "anew makes a parameter anew when it is called or loaded, which no optimiser sees"),
        (lambda: network("nans"), "nans: encoder.1.weight has NaN or infinite values from the start"),
        (lambda: network("saves"), "saves computes with other numbers than its state_dict has"),
        (lambda: cell("First"), "First is another with the same seed.* register_buffer in the constructor what calls"),
        *((lambda name=name: network(name), f"encoder.{key} follows from what") for name, key in KEPT.items()),
        *((lambda name=name: network(name), "from what a restart would lose") for name in HIDDEN),
        (lambda: network("late"), "tabnanny is imported while the network computes: import it at the top"),
        (lambda: network("extra"), "has a state that is no plain tensor, encoder._extra_state: use register_buffer"),
        (lambda: network("spectral"), "outputs and a plain weight, without weight_norm"),
        *((lambda name=name: cell(name), f"{name} mixes rows: where oth") for name in ("Mixes", "Earlier", "Centred")),
        (lambda: cell("Noisy"), "Noisy is another map at each call, as with noise"),
        (lambda: cell("Live"), "cell.norm is a live BatchNorm2d.*in eval mode$"),
        (lambda: network("elsewhere"), "elsewhere returns what it has returned before: make it anew"),
        (lambda: network("seeds"), "sets the seed of torch, so that all runs would begin alike"),
        (lambda: network("headless"), "does not end in a torch.nn.Linear"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_trained(make, says, folder, monkeypatch):
    monkeypatch.setattr(jobs, "train_run", lambda *given: pytest.fail("it began to train"))
    fine = RunConfig(data=IMAGES, train=TRAIN, model=ModelConfig(width=2))
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        runs.ensure_runs([fine, make()])
    assert default_store().ids() == []


def test_own_cells_and_networks_are_trained_stored_and_compared(folder):
    kinds = [cell(), cell(kind="explicit_matched"), cell("Grouped").replace(train=BFLOAT16), network("keyed")]
    torch.set_default_dtype(torch.float64)  # of the session, which a run does not follow
    try:
        frame = runs.ensure_runs([config.replace(seed=seed) for config in kinds for seed in range(2)])
        one = nc.load_run(kinds[3]).network("my_cells:keyed")
    finally:
        torch.set_default_dtype(torch.float32)
    two = nc.load_run(kinds[3]).network("my_cells:keyed")
    assert all(map(torch.equal, one.buffers(), two.buffers())), "also those that are drawn and not in a state_dict"
    runs.ensure_runs([network("versioned")])
    of_two = nc.load_run(network("versioned"))
    assert torch.equal(of_two.network("my_cells:versioned").encoder.scale, of_two.weights["encoder.scale"])
    clipped = network("clipped").replace(train=TRAIN.replace(lr=1e-6))
    assert nc.train(clipped).weights["classifier.weight"].abs().max() < 0.011, "it sees its last layer while it trains"
    assert (nc.train(network("later")).arrays["train_features"] < 0).any(), "as the classifier was given them"
    one, two = (nc.train(network(name).replace(train=BFLOAT16)).weights for name in ("spared", "unspared"))
    torch.testing.assert_close(one["encoder.body.weight"], two["encoder.body.weight"], rtol=0, atol=1e-3)
    damped = network("damped").replace(train=BFLOAT16.replace(weight_decay=0.0))
    one, two = nc.train(damped).weights["encoder.body.weight"], nc.build_model(damped.model, 10, 1).encoder.body.weight
    assert torch.equal(one, two), "hooks of the logits act"
    for sound in (cell("Plain"), *map(network, ("merges", "Ends", "gated", "levels", "wide"))):
        try_own_code(sound.model, make_split(sound.data, 0))
    assert sorted(frame["model"].unique()) == ["deq", "explicit_matched", "network"] and frame["run_id"].nunique() == 8
    assert "solver_converged" in set(frame[frame["model"] == "deq"]["metric"])
    two = frame[frame["model"] != "deq"]
    assert len(nc.pairs(two, "loss", arm="network", against="explicit_matched").table) == 2, "of other widths"
    chosen = frame[frame["run_id"].isin([run_id(c.replace(seed=s)) for c in kinds[:2] for s in range(2)])]
    table = nc.compare.ratios(chosen, ["nc1_trace_ratio"], notes.scale_of(kinds), against="explicit_matched")
    assert table["seeds"].tolist() == [2] and table["verdict"].tolist() == ["reported"]
    assert set(runs.ensure_runs(kinds, train="never")["run_id"]) <= set(frame["run_id"])
    said = notes.describe_runs(kinds[:2]) + notes.describe_runs(kinds[3:])
    assert "with my_cells:Cell," in said and "A network with my_cells:keyed," in said
    with pytest.warns(nc.deq.ForwardNotConverged, match="rows"):
        runs.ensure_runs([network("unsolved")])


@pytest.mark.parametrize("make", [cell, *(lambda n=n: network(n) for n in RESUMED)])
def test_an_interrupted_training_of_own_code_ends_with_the_same_bits(make, folder):
    whole = runs.ensure_runs([config := make()])
    store, run = default_store(), run_id(config)
    features = store.open(run).arrays["train_features"]
    assert (nc.train(config).arrays["train_features"] == features).all(), "nothing was loaded to keep a checkpoint"
    shutil.rmtree(store.root / run)
    with pytest.raises(KeyboardInterrupt):
        jobs.train_run(config, store, "cpu", lambda *_: signal.raise_signal(signal.SIGINT))
    assert store.partial(run).exists()
    assert runs.ensure_runs([config]).equals(whole) and (store.open(run).arrays["train_features"] == features).all()
    kept = store.open(run)
    assert kept.provenance["facts"]["continued_from"] == [1]
    if "encoder.3.low" in kept.weights:
        rows = (kept.weights["encoder.3.weight"] + kept.weights["encoder.3.low"]).numpy()
        np.testing.assert_allclose(kept.arrays["classifier"], rows, atol=1e-6)
        stored = whole.query("epoch == 2 and split == 'train' and metric == 'nc3_self_duality'")["value"].item()
        labels = kept.arrays["train_labels"]
        assert nc.nc_report(features, labels, w=rows)["nc3_self_duality"] == pytest.approx(stored, rel=1e-5)
    images, seen = (torch.from_numpy(kept.arrays[f"probe_{name}"]) for name in ("images", "features"))
    torch.testing.assert_close(kept.network(config.model.own_code)(images).features, seen, rtol=1e-4, atol=1e-5)


def test_a_network_that_follows_from_more_than_its_source_is_known_again_or_refused(folder, monkeypatch):
    store = default_store()
    for name, said in (("ordered", "another order, as from a set"), ("outside", "100% apart; what follows from hash")):
        config = network(name)
        with pytest.raises(KeyboardInterrupt):
            jobs.train_run(config, store, "cpu", lambda *_: signal.raise_signal(signal.SIGINT))
        monkeypatch.setenv("FACTOR", "2")
        with pytest.raises(runs.RunsFailed, match=said):
            runs.ensure_runs([config])
        monkeypatch.delenv("FACTOR")
        assert runs.ensure_runs([config])["epoch"].max() == 2
    for name in ("seldom", "stops", "drops"):  # keep what acts in training alone
        small = network(name).replace(train=TRAIN.replace(batch_size=20))
        with pytest.raises(KeyboardInterrupt):
            jobs.train_run(small, store, "cpu", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(runs.RunsFailed, match="apart; what follows from hash"):
            runs.ensure_runs([small])
    store.open(run_id(config)).network("my_cells:outside")
    monkeypatch.setenv("FACTOR", "2")
    with pytest.warns(RuntimeWarning, match="another network than it did: features are 100% apart"):
        store.open(run_id(config)).network("my_cells:outside")


def test_a_cell_that_draws_from_numpy_and_python_follows_the_seed(folder):
    config, of_python = cell("Drawn", "explicit_matched"), sys.modules["random"]
    (folder / "random.py").write_text("raise OSError")  # which `import random` does not mean
    assert "random.py" not in own_code.files("my_cells:Drawn")
    states = np.random.get_state()[1].tolist(), random.getstate()
    seen = []
    one = nc.train(config, log=lambda *_: seen.append(importlib.import_module("tabnanny"))).weights
    assert "my_cells" not in sys.modules, "it was not there before"
    assert all(each is sys.modules["tabnanny"] for each in seen), "what the session imports meanwhile stays"
    (ours := importlib.import_module("my_cells")).DRAWN = torch.rand(1)  # which a run does not begin with
    two = nc.train(config).weights
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states and sys.modules["random"] is of_python
    assert sys.modules["my_cells"] is ours, "what a session has imported stays"


def test_the_source_lies_in_the_folder_of_the_run_and_a_change_of_it_is_said(folder):
    runs.ensure_runs([cell(), cell().replace(model=ModelConfig(kind="deq", width=2), seed=1)])
    stored = default_store().root / run_id(cell())
    assert jobs.changed_code(cell(), default_store()) == "", "as where another process has just stored it"
    assert (stored / "code.my_cells.py").read_text() == SOURCE
    (folder / "my_cells.py").write_text(SOURCE + "# changed\n")
    said = f"the source of my_cells:Cell changed after {stored.name} was trained"
    with pytest.raises(runs.MissingRuns, match=f"{run_id(cell())}; {said}"):
        runs.ensure_runs([cell()], train="never")
    with pytest.warns(jobs.CodeChanged, match=f"^{said}; it trains again$") as caught:
        runs.ensure_runs([cell().replace(seed=seed) for seed in (0, 0)])
    assert len(caught) == 1
    assert jobs.changed_code(cell().replace(seed=1), default_store()) == "", "which was never trained"
    (folder / "my_cells.py").write_text(SOURCE + "# again\n")
    with pytest.warns(jobs.CodeChanged, match="changed after"):
        runs.ensure_runs([cell()])


def test_runs_of_changed_code_are_not_pooled(folder):
    frame = stack(*(rows("nc1", model=m, seed=s, values=[s + 1.5]) for m in ("explicit", "deq") for s in range(3)))
    first = cell(solver={"method": "broyden"})
    (folder / "my_cells.py").write_text(SOURCE + "# changed\n")
    changed = {"source": r"model\.source \w+ and \w+", "tol": r"model\.solver\.tol 0\.001 and 0\.3"}
    others = {"source": cell(), "tol": first.replace(model=first.model.replace(solver={"tol": 0.3}))}
    for name, said in changed.items():
        of = {seed: protocol((others[name] if seed == 2 else first).canonical()) for seed in range(3)}
        plain = protocol(RunConfig(data=IMAGES, train=TRAIN, model=ModelConfig(width=2)).canonical())
        each = [plain if model == "explicit" else of[seed] for model, seed in zip(frame.model, frame.seed, strict=True)]
        with pytest.raises(ValueError, match=rf"{said} \(seeds \[2\]\)"):
            nc.pairs(frame.assign(protocol=each), "nc1", "test")


def test_two_cells_of_ones_own_are_told_apart_by_their_names(folder):
    named = [c.replace(model=c.model.replace(name=n)) for c, n in ((cell(), "plain"), (cell("Grouped"), "grouped"))]
    assert [run_id(c) for c in named] == [run_id(cell()), run_id(cell("Grouped"))], "a name is no part of the identity"
    assert runs.ensure_runs(named)["model"].unique().tolist() == ["plain", "grouped"]
    assert runs.plan(named)["model"].tolist() == ["plain", "grouped"]
    assert tidy(nc.load_run(named[0]))["model"].unique().tolist() == ["plain"]
    assert runs.ensure_runs([cell()])["model"].unique().tolist() == ["deq"], "as it is asked for"
    assert named[0].model.replace(cell="my_cells:Grouped").name is None


@pytest.mark.parametrize("make", [cell, network])
def test_the_network_of_a_stored_run_with_own_code_is_made_where_the_code_is_named(make, folder):
    runs.ensure_runs([make()])
    run = nc.load_run(run_id(make()))
    name = make().model.own_code
    with pytest.raises(ConfigError, match=f"imports no code.*network\\('{name}'\\)"):
        run.network()
    with pytest.raises(ConfigError, match="imports no code"):
        run.network("os:_exit")
    assert isinstance(run.network(name), models.Classifier)
    (folder / "my_cells.py").write_text(SOURCE + "# changed\n")
    with pytest.raises(ValueError, match=r"is not the one.*put back the code.\*.py"):
        run.network(name)


def test_reading_a_stored_run_imports_nothing(folder):
    config, run = cell(), run_id(cell())
    runs.ensure_runs([config])
    (folder / "imported").unlink()
    for module in ("my_cells", "tabnanny"):
        sys.modules.pop(module, None)
    assert nc.load_run(run).config["model"]["cell"] == "my_cells:Cell"
    assert default_store().is_sound(run) and runs.plan([config])["state"].tolist() == ["stored"]
    assert nc.load_run(run).arrays and set(runs.ensure_runs([config])["run_id"]) == {run}
    assert not (folder / "imported").exists() and "my_cells" not in sys.modules
