"""Any network: closed forms and hooks by hand first, then what a network may look like, then what is refused."""

import doctest
import math
import subprocess
import sys
import warnings
from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import nclib as nc
from nclib import metrics
from nclib.metrics import layers, measuring, ood

K = 4
LABELS = torch.arange(60) % K


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batches(x, labels=LABELS, size=25):
    return [(x[i : i + size], labels[i : i + size]) for i in range(0, len(x), size)]


def values(table, layer):
    return table[table["layer"] == layer].set_index("metric")["value"]


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 6, 3)
        self.head = nn.Linear(6, K)

    def forward(self, x):
        h = F.relu(self.conv2(F.relu(self.norm(self.conv1(x)))))
        return self.head(h.mean((2, 3)))


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    return CNN()


IMAGES = normal(60, 1, 8, 8)


# ------------------------------------------------------------------------------------------------ what is measured


def test_the_examples_of_the_docstrings_run():
    for module in (measuring, ood, metrics.alone, metrics.definitions, metrics.report):
        tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
        assert tests
        for test in tests:
            assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_a_layer_has_the_metrics_of_its_features_taken_by_hand(cnn):
    cnn.eval()
    with torch.no_grad():
        first = cnn.conv1(IMAGES)
        last = F.relu(cnn.conv2(F.relu(cnn.norm(first)))).mean((2, 3))
        logits = cnn.head(last)
    table = nc.measure(cnn, batches(IMAGES))
    assert list(table) == ["layer", "metric", "value"]
    assert list(table["layer"].unique()) == ["conv1", "conv2", "head.input"]
    expected = nc.nc_report(last, LABELS, logits, cnn.head.weight)
    got = values(table, "head.input")
    assert {key: got[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    hidden = nc.nc_report(first.mean((2, 3)), LABELS, logits[:, :K])
    got = values(table, "conv1")
    assert {key: got[key] for key in hidden} == pytest.approx(hidden, rel=1e-5)
    assert not [key for key in got.index if key.startswith("nc3") or key in ("nc0", "accuracy")]
    norms = last.double().norm(dim=1)
    got = values(table, "head.input")
    assert got["feature_norm"] == pytest.approx(norms.mean().item(), rel=1e-6)
    assert got["dim"] == 6 and got["samples"] == 60
    assert got["accuracy"] == pytest.approx((logits.argmax(1) == LABELS).double().mean().item())


def test_class_rows_add_up_to_the_layer(cnn):
    table = nc.measure(cnn, batches(IMAGES), per_class=True)
    assert list(table) == ["layer", "class", "metric", "value"]
    whole = values(table[table["class"].isna()], "head.input")
    of_classes = table[(table["layer"] == "head.input") & table["class"].notna()]
    wide = of_classes.pivot(index="class", columns="metric", values="value")
    assert list(wide.index) == list(range(K)) and wide["samples"].sum() == 60
    for metric in ("nc1_trace_ratio", "feature_norm", "nc4_ncc_mismatch", "accuracy"):
        mean = (wide[metric] * wide["samples"]).sum() / 60
        assert mean == pytest.approx(whole[metric], rel=1e-9), metric


# ------------------------------------------------------------------------------- the network is left as it was


class Failing(nn.Module):
    def forward(self, x):
        raise KeyError("out of order")


def test_mode_hooks_and_random_state_are_as_before(cnn):
    cnn.train()
    cnn.norm.eval()
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 16, shuffle=True)
    statistics = cnn.norm.running_mean.clone()

    def state():
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in cnn.modules()]
        return torch.get_rng_state().tolist(), hooks

    before, modes = state(), [m.training for m in cnn.modules()]
    nc.measure(cnn, loader)
    nc.features(cnn, loader)
    cnn.add_module("bad", Failing())
    cnn.forward = lambda x: cnn.bad(cnn.conv1(x))
    with pytest.raises(KeyError, match="out of order"):
        nc.measure(cnn, loader)
    cnn.forward = lambda x: cnn.head(cnn.conv1(x).mean((2, 3))[:, :1].expand(-1, 6) * math.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        nc.measure(cnn, loader)
    del cnn.bad
    after = state()
    assert before == after and modes == [m.training for m in cnn.modules()]
    assert torch.equal(statistics, cnn.norm.running_mean)
    assert all(p.grad is None and p.requires_grad for p in cnn.parameters())


# ---------------------------------------------------------------------------------------------- kinds of networks


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.short = nn.Sequential()

    def forward(self, x):
        return self.short(x) + self.inner(x)


class Adjusted(nn.Module):
    """Does something to the outputs of its last linear layer."""

    def __init__(self, after):
        super().__init__()
        self.head, self.after = nn.Linear(8, 3), after

    def forward(self, x):
        return self.after(self.head(x))


@pytest.mark.parametrize(
    "after",
    [torch.neg, lambda x: x + torch.tensor([0.0, 0.0, 9.0]), lambda x: x[:, [2, 0, 1]]],
    ids=["negated", "adjusted", "in another order"],
)
@pytest.mark.filterwarnings("ignore:the network's output does not follow")
def test_predictions_are_those_of_the_network_which_need_not_follow_from_its_classifier(after):
    net, x, labels = Adjusted(after), torch.randn(60, 8), torch.arange(60) % 3
    with pytest.warns(UserWarning, match=r"does not follow, row by row, from that of 'head'"):
        table = nc.measure(net, [(x, labels)], layers=["head.input"]).set_index("metric")["value"]
    assert table["accuracy"] == pytest.approx((net(x).argmax(1) == labels).double().mean().item())
    assert torch.equal(nc.features(net, [(x, labels)]).logits, net(x).detach())


def test_the_blocks_of_common_networks():
    stage = nn.Sequential(Block(3), Block(3))
    net = nn.Sequential(OrderedDict(stem=nn.Conv2d(1, 3, 3), stage=stage, pool=nn.AdaptiveAvgPool2d(1)))
    assert layers.blocks_of(net) == ["stem", "stage.0", "stage.1"]
    plain = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(),
        nn.Dropout(), nn.Linear(4, K), nn.Softmax(1),
    )  # fmt: skip
    assert layers.blocks_of(plain) == ["3", "5", "9"]
    table = nc.measure(plain, batches(normal(60, 1, 9, 9)))
    assert list(table["layer"].unique()) == ["3", "8.input"]
    torchvision = pytest.importorskip("torchvision")
    resnet = torchvision.models.resnet18(num_classes=K)
    stages = [f"layer{i}.{j}" for i in range(1, 5) for j in range(2)]
    assert layers.blocks_of(resnet) == ["conv1", *stages, "fc"]
    vit = torchvision.models.VisionTransformer(16, 8, 2, 2, 8, 16, num_classes=K)
    blocks = ["conv_proj", "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1", "heads.head"]
    assert layers.blocks_of(vit) == blocks
    table = nc.measure(vit, batches(normal(20, 3, 16, 16), LABELS[:20], 10))
    assert list(table["layer"].unique()) == [*blocks[:3], "heads.head.input"]


def test_a_layer_that_gives_what_the_classifier_takes_is_listed_once(cnn):
    net = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, K))
    x = normal(60, 7)
    table = nc.measure(net, batches(x))
    assert list(table["layer"].unique()) == ["2.input"]
    named = nc.measure(net, batches(x), ["1", "2.input"])
    assert list(named["layer"].unique()) == ["1", "2.input"]
    assert values(named, "1")["nc1_cdnv"] == values(table, "2.input")["nc1_cdnv"]
    assert list(nc.measure(cnn, batches(IMAGES))["layer"].unique()) == ["conv1", "conv2", "head.input"]  # then a ReLU


def test_all_layers_are_those_without_submodules(cnn):
    net = nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout2d(), nn.Conv2d(5, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, K), nn.Softmax(1),
    )  # fmt: skip
    table = nc.measure(net, batches(IMAGES), "all", per_class=True)
    assert list(table["layer"].unique()) == ["0", "1", "2", "4", "8.input"]  # 5 and 6 are what 8 takes, 9 is after it
    assert list(nc.measure(cnn, batches(IMAGES), "all")["layer"].unique()) == ["conv1", "norm", "conv2", "head.input"]
    named = nn.Sequential(OrderedDict(first=nn.Linear(7, 6), all=nn.ReLU(), head=nn.Linear(6, K)))
    assert list(nc.measure(named, batches(normal(60, 7)), "all")["layer"].unique()) == ["all"]  # a module of that name


class Transformer(nn.Module):
    """Tokens (B, T, D); a tuple as output; the same cell twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
        self.cell = nn.Linear(8, 8)
        self.out = nn.Linear(8, K)

    def forward(self, x, scale=1.0):
        h = self.layer(scale * x)
        h = self.cell(F.relu(self.cell(h)))
        return self.out(h[:, 0]), h


def test_tokens_tuples_and_a_module_that_is_called_twice():
    net, x = Transformer(), normal(60, 5, 8)
    table = nc.measure(net, batches(x))
    assert list(table["layer"].unique()) == ["layer", "cell", "out.input"]
    net.eval()
    with torch.no_grad():
        logits, tokens = net(x)
    first = nc.features(net, batches(x), "cell", lambda h: h[:, 0])
    torch.testing.assert_close(first.h, tokens[:, 0])  # the second call
    assert first.h.untyped_storage().nbytes() == first.h.nbytes
    mean = nc.nc_report(tokens.mean(1), LABELS, logits)
    assert values(table, "cell")[list(mean)].to_dict() == pytest.approx(mean, rel=1e-4)
    mapping = nc.measure(net, batches(x), {"layer": "flatten", "cell": "mean", "cell.input": lambda h: h[:, 1]})
    assert mapping[mapping["metric"] == "dim"].set_index("layer")["value"].to_dict() == {
        "layer": 40, "cell": 8, "cell.input": 8
    }  # fmt: skip
    several = nc.measure(net, [((x, torch.ones(())), LABELS)])
    named = nc.measure(net, [({"x": x, "scale": torch.ones(())}, LABELS)])
    assert several.equals(named) and len(several) == len(table)


def test_the_classifier_is_found_named_or_left_out(cnn):
    full = nc.measure(cnn, batches(IMAGES))
    assert nc.measure(cnn, batches(IMAGES), classifier="head").equals(full)
    without = nc.measure(cnn, batches(IMAGES), classifier=None)
    assert list(without["layer"].unique()) == ["conv1", "conv2", "head"]  # then it is a layer like any other
    assert not without["metric"].str.startswith("nc3").any() and "nc0" not in set(without["metric"])
    conv = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, K, 1), nn.Flatten())
    table = nc.measure(conv, batches(IMAGES), classifier="3")
    assert "nc3_alignment" in set(values(table, "3.input").index)
    binary = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 1))
    with pytest.raises(ValueError, match="pass num_classes"):
        nc.measure(binary, batches(normal(60, 7), LABELS % 2))
    assert not nc.measure(binary, batches(normal(60, 7), LABELS % 2), num_classes=2).empty


def test_a_module_that_stands_in_several_places_is_measured_at_each():
    torch.manual_seed(0)
    relu, linear = nn.ReLU(), [nn.Linear(7, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, K)]
    shared = nn.Sequential(linear[0], relu, linear[1], relu, linear[2], relu, linear[3])
    own = nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2], nn.ReLU(), linear[3])
    x = normal(60, 7)
    for names in (None, "all", ["3", "1"], "3"):
        assert nc.measure(shared, batches(x), names).equals(nc.measure(own, batches(x), names)), names
    assert list(nc.measure(shared, batches(x))["layer"].unique()) == ["1", "3", "6.input"]


class Several(nn.Module):
    """Returns what ``output`` makes of the features and of the outputs of two heads."""

    def __init__(self, output):
        super().__init__()
        self.encoder, self.a, self.b, self.output = nn.Linear(8, 16), nn.Linear(16, K), nn.Linear(16, K), output

    def forward(self, x):
        h = self.encoder(x).relu()
        return self.output(h, self.a(h), self.b(h))


@pytest.mark.parametrize(
    "output",
    [
        lambda h, a, b: (h, -a),
        lambda h, a, b: {"features": h, "scores": [-a]},
        lambda h, a, b: (-a, h),
    ],
)
@pytest.mark.filterwarnings("ignore:the network's output does not follow")
def test_predictions_of_a_network_that_returns_several_tensors_are_its_own(output):
    net, x = Several(output), normal(60, 8)
    table = nc.measure(net, batches(x), classifier="a")
    right = (-net.a(net.encoder(x).relu())).argmax(1) == LABELS
    assert values(table, "a.input")["accuracy"] == pytest.approx(right.double().mean().item())


@pytest.mark.filterwarnings("ignore:the network's output does not follow")
def test_two_heads_are_asked_for_and_not_guessed():
    x = normal(60, 8)
    for output in (lambda h, a, b: (a, b), lambda h, a, b: (a + b) / 2, lambda h, a, b: h):
        net = Several(output)
        with pytest.raises(ValueError, match=r"several layers have 4 outputs .*'a', 'b'\. Name it with classifier=…"):
            nc.measure(net, batches(x), num_classes=K)
        assert "a.input" in set(nc.measure(net, batches(x), num_classes=K, classifier="a")["layer"])
    for output in (lambda h, a, b: a, lambda h, a, b: (h, a), lambda h, a, b: {"h": h, "logits": a}):
        net = Several(output)
        assert torch.equal(nc.features(net, batches(x), num_classes=K).w, net.a.weight)
    chain = nn.Sequential(nn.Linear(8, K), nn.ReLU(), nn.Linear(K, K))  # wide layers before are no heads
    assert torch.equal(nc.features(chain, batches(x)).w, chain[2].weight)


def test_a_compiled_network_that_has_run_is_measured_as_it_is(cnn):
    cnn.eval()
    expected = nc.measure(cnn, batches(IMAGES), "all")
    cnn.compile(backend="eager")
    with torch.no_grad():
        cnn(IMAGES)
    assert nc.measure(cnn, batches(IMAGES), "all").equals(expected)
    torch.manual_seed(0)
    parts, x = (
        nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, K)),
        normal(60, 7),
    )
    expected = {names: nc.measure(parts, batches(x), names) for names in (None, "all")}
    for i in (0, 2):
        parts[i] = torch.compile(parts[i], backend="eager")
    with torch.no_grad():
        parts.eval()(x)
    for names, table in expected.items():
        assert nc.measure(parts, batches(x), names).equals(table)


def test_empty_batches_are_passed_over(cnn):
    expected = nc.measure(cnn, batches(IMAGES))
    empty = (IMAGES[:0], LABELS[:0])
    assert nc.measure(cnn, [empty, *batches(IMAGES), empty]).equals(expected)
    found = nc.features(cnn, [empty, *batches(IMAGES), (IMAGES[:0], [])])
    assert torch.equal(found.labels, LABELS)


def test_features_hand_labels_back_as_they_are(cnn):
    for labels in (LABELS.double() / 3, F.one_hot(LABELS)):
        assert torch.equal(nc.features(cnn, [(IMAGES[:25], labels[:25]), (IMAGES[25:], labels[25:])]).labels, labels)
    texts = [f"class {k}" for k in LABELS]
    found = nc.features(cnn, [(IMAGES[:25], texts[:25]), (IMAGES[25:], texts[25:])]).labels
    assert isinstance(found, np.ndarray) and found.tolist() == texts


def test_cls_takes_the_first_token():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(1, 8, 2, 2)
            self.stage = nn.Sequential(*[nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)])
            self.head = nn.Linear(8, K)

        def forward(self, x):
            return self.head(self.stage(self.patches(x).flatten(2).mT)[:, 0])

    net = Tokens()
    table = nc.measure(net, batches(IMAGES), ["patches", "stage.0", "stage.1", "head.input"], pool="cls")
    by_hand = {"patches": "mean", "stage.0": lambda h: h[:, 0], "stage.1": lambda h: h[:, 0], "head.input": "mean"}
    pd.testing.assert_frame_equal(table, nc.measure(net, batches(IMAGES), by_hand))
    assert list(nc.measure(net, batches(IMAGES), pool="cls")["layer"].unique()) == ["patches", "stage.0", "head.input"]
    assert "stage.1" in set(nc.measure(net, batches(IMAGES))["layer"])


# ------------------------------------------------------------------------------------------------ equilibrium layers


class Equilibrium(nn.Module):
    """Rows of size ``hard`` take more evaluations than others."""

    def __init__(self, cell=None, **choices):
        super().__init__()
        self.linear, self.head = nn.Linear(6, 6, bias=False), nn.Linear(6, K)
        self.linear.weight.data = torch.linalg.qr(normal(6, 6)).Q
        self.cell = nn.Sequential(self.linear, nn.Tanh()) if cell is None else cell
        self.deq = nc.DEQ(
            _Injected(self.cell), **(choices or {"solver": nc.FixedPointIteration(tol=1e-5, max_steps=60)})
        )

    def forward(self, x):
        return self.head(self.deq(x)[0] * 2)


class _Injected(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, z, x):
        return self.inner(0.1 + 0.9 * z) * (0.1 + 0.85 * (x[:, :1].abs() > 1)) + x


@pytest.mark.parametrize("hard", [slice(0, 60), slice(30, 31)])  # in every batch, and in the second alone
@pytest.mark.parametrize("several_names", [True, False])
def test_a_layer_that_is_said_to_be_left_out_is_left_out(hard, several_names):
    x = 0.5 * normal(60, 6).clamp(-1, 1)
    x[hard] = 2 * normal(60, 6)[hard]
    net, names = Equilibrium(), ("linear", "cell.0", "cell.1")
    if not several_names:
        del net.linear, net.cell
        names = ("deq.cell.inner.0", "deq.cell.inner.1")
    with pytest.warns(UserWarning) as said:
        table = nc.measure(net, batches(x), layers="all")
    told = [str(warning.message) for warning in said]
    left = {name for name in names if any(f"layer '{name}' gives" in text for text in told)}
    assert left and all("This layer is left out" in text for text in told if "gives" in text)
    assert len(told) == len({text.partition(" gives")[0] for text in told})  # once each
    measured = set(table["layer"])
    assert measured == {"head.input"} and not left & measured


def test_rows_that_did_not_converge_are_counted():
    x = normal(60, 6)
    few = {"solver": nc.FixedPointIteration(tol=1e-5, max_steps=10)}
    net = Equilibrium(**few)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the layer may say so too
        missed = int((~net.eval().deq(x)[1].converged).sum())
    assert 0 < missed < 60
    for function in (nc.measure, nc.features):
        with pytest.warns(
            UserWarning, match=rf"layer 'deq' did not converge on {missed} of 60 rows \(worst res"
        ) as said:
            function(net, batches(x), *(["head.input"],) * (function is nc.measure))
        assert len(said) == 1
    alone = nn.Sequential(nc.DEQ(net.deq.cell, return_solution=False, **few), nn.Linear(6, K))
    with pytest.warns(UserWarning, match=rf"layer '0' did not converge on {missed} of 60 rows"):
        nc.measure(alone, batches(x), ["1.input"], second_pass=True)
    nc.measure(Equilibrium(), batches(0.1 * x), ["head.input"])  # nothing to say
    nc.measure(Equilibrium(gradient=nc.Unrolled(3)), batches(x), ["head.input"])  # a fixed number of steps


def test_a_broken_equilibrium_does_not_look_healthy():
    net, x = Equilibrium(), normal(60, 6)
    net.linear.weight.data *= math.nan
    with pytest.warns(UserWarning, match=r"'deq' did not converge on \d+ of \d+ rows \(worst residual inf\)"):
        try:
            nc.measure(net, batches(x), ["head.input"])
        except ValueError as error:
            assert "NaN" in str(error)  # where the layer returns NaN


# --------------------------------------------------------------------------------------- test data, a second pass


def test_test_data_are_measured_against_the_class_means_of_the_training_data(cnn):
    x, y = normal(40, 1, 8, 8, seed=5), torch.arange(40) ** 2 % K % 3  # class 3 is absent, and 2 too
    table = nc.measure(cnn, batches(IMAGES), test=batches(x, y))
    plain = nc.measure(cnn, batches(IMAGES))
    assert table[~table["metric"].str.endswith("_test")].reset_index(drop=True).equals(plain)
    train, test = (nc.features(cnn, loader) for loader in (batches(IMAGES), batches(x, y)))
    means = torch.stack([train.h[k == LABELS].double().mean(0) for k in range(K)])
    gaps = torch.cdist(test.h.double(), means)
    between = (means - means.mean(0)).square().sum(1).mean()
    got = values(table, "head.input")
    expected = {
        "samples_test": 40,
        "absent_classes_test": K - y.unique().numel(),
        "nc1_trace_ratio_test": float(gaps[torch.arange(40), y].square().mean() / between),
        "ncc_accuracy_test": float((gaps.argmin(1) == y).double().mean()),
        "nc4_ncc_mismatch_test": float((gaps.argmin(1) != test.logits.argmax(1)).double().mean()),
        "accuracy_test": float((test.logits.argmax(1) == y).double().mean()),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected["nc1_cdnv_test"] = metrics.nc1_cdnv(nc.class_moments(test.h, y, K))
    assert {key: value for key, value in got.items() if key.endswith("_test")} == pytest.approx(expected, rel=1e-6)
    assert "accuracy_test" not in values(table, "conv1") and "ncc_accuracy_test" in values(table, "conv1")
    same = nc.measure(cnn, batches(IMAGES), test=batches(IMAGES))
    for metric in ("nc1_trace_ratio", "nc4_ncc_mismatch", "nc1_cdnv"):
        for layer in ("conv1", "head.input"):
            here = values(same, layer)
            assert here[f"{metric}_test"] == pytest.approx(here[metric], rel=1e-9), (metric, layer)


def test_a_second_pass_has_what_is_kept_otherwise(cnn):
    expected = nc.measure(cnn, batches(IMAGES), per_class=True)
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 16, shuffle=True)
    for given in (batches(IMAGES), loader):
        table = nc.measure(cnn, given, per_class=True, keep=0, second_pass=True)
        pd.testing.assert_frame_equal(table, expected, rtol=1e-5)

    class Shrinking(list):
        def __iter__(self):
            yield from [self.pop() for _ in range(len(self))][: len(self) or 2]
            self.append((IMAGES[:1], LABELS[:1]))

    with pytest.raises(ValueError, match="gave other samples the second time"):
        nc.measure(cnn, Shrinking(batches(IMAGES)), second_pass=True)


def test_layers_without_room_for_a_simplex_are_told(cnn):
    labels = torch.arange(60) % 12
    net = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 12))
    with pytest.warns(
        UserWarning, match=r"no simplex of 12 classes in fewer than 11 dimensions.*: '1' \(d = 5: 0\.807\)\."
    ) as said:
        table = nc.measure(net, batches(normal(60, 8), labels))
    assert len(said) == 1 and values(table, "1")["nc2_etf_distance"] >= 0.807


STREAM = """
import torch, psutil, warnings, nclib as nc
warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)
net, seen = torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.Linear(512, 10)), []
def stream():
    for i in range(3000):
        if i in (100, 1000, 2999):
            seen.append(psutil.Process().memory_info().rss / 2**20)
        yield torch.randn(64, 8), torch.randint(10, (64,))
nc.measure(net, stream(), keep=0)
print(*seen)
"""


@pytest.mark.slow
def test_a_stream_of_any_length_takes_the_memory_of_its_first_batches():
    done = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True, timeout=300, check=True)
    early, thousand, last = map(float, done.stdout.split())
    assert thousand < 1.1 * early and last < 1.1 * thousand, (early, thousand, last)


# ------------------------------------------------------------------------------------------- wide layers and memory


def test_a_layer_too_wide_is_measured_by_its_means_with_a_warning(cnn):
    with pytest.warns(UserWarning, match=r"'conv1' has 180 features.*0\.0 GB.*left out.*pool=\"mean\".*max_dim=180"):
        means = nc.measure(cnn, batches(IMAGES), "conv1", pool="flatten", max_dim=100)
    full = nc.measure(cnn, batches(IMAGES), "conv1", pool="flatten")
    assert set(full["metric"]) - set(means["metric"]) == {"nc1_pinv", "effective_rank"}
    both = full.merge(means, on="metric")
    np.testing.assert_allclose(both["value_x"], both["value_y"], rtol=1e-6)


def test_beyond_keep_the_metrics_that_need_the_features_are_left_out(cnn):
    with pytest.warns(UserWarning, match="nc4_ncc_mismatch and nc1_pinv_class_balanced are left out"):
        table = nc.measure(cnn, batches(IMAGES), keep=1000)
    full = nc.measure(cnn, batches(IMAGES))
    assert set(full["metric"]) - set(table["metric"]) == {"nc4_ncc_mismatch", "nc1_pinv_class_balanced"}


def test_signals_have_channels_first():
    net = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.Conv1d(5, 6, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                        nn.Linear(6, K))  # fmt: skip
    x = normal(60, 3, 9)
    table = nc.measure(net, batches(x))
    assert table[table["metric"] == "dim"].set_index("layer")["value"].to_dict() == {"1": 5, "5.input": 6}
    both = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.LayerNorm(7), nn.Flatten(), nn.Linear(35, K))
    with pytest.raises(ValueError, match=r"may be \(B, C, L\), .*: pass a function"):
        nc.measure(both, batches(x), "1")


def test_tokens_along_the_first_axis_are_not_taken_for_the_batch():
    net = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16))  # (T, B, D): batch_first=False
    for tokens, says in ((5, "not features of 25 samples"), (25, r"or \(T, B, D\): pass a function")):
        with pytest.raises(ValueError, match=says):
            nc.features(net, [(normal(tokens, 25, 8), LABELS[:25])], "0")


def test_a_module_with_two_names_is_measured_once_and_by_either_name():
    class Aliased(nn.Module):
        def __init__(self):
            super().__init__()
            self.stage, self.head = nn.Sequential(Block(3), Block(3)), nn.Linear(3, K)
            self.last, self.out = self.stage[1], self.head

        def forward(self, x):
            return self.out(F.relu(self.stage(x)).mean((2, 3)))

    net, x = Aliased(), normal(60, 3, 4, 4)
    table = nc.measure(net, batches(x))
    assert list(table["layer"].unique()) == ["stage.0", "stage.1", "head.input"]
    for name in ("last", "stage.1"):
        alone = nc.measure(net, batches(x), name)
        assert values(alone, name)["nc1_cdnv"] == values(table, "stage.1")["nc1_cdnv"]
    assert torch.equal(nc.features(net, batches(x), classifier="out").w, net.head.weight)
