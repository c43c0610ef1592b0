"""Any network: closed forms and hooks by hand first, then what a network may look like, then what is refused."""

import contextlib
import copy
import doctest
import math
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple
from dataclasses import make_dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from problems import Net
from problems import single as normal
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset

import nclib as nc
from nclib import metrics
from nclib.metrics import hooks, layers, measuring

K = 4
LABELS = torch.arange(60) % K


def batches(x, labels=LABELS, size=25):
    return [(x[i : i + size], labels[i : i + size]) for i in range(0, len(x), size)]


def values(table, layer):
    return table[table["layer"] == layer].set_index("metric")["value"]


def listed(table):
    return list(table["layer"].unique())


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    parts = dict(conv1=nn.Conv2d(1, 5, 3), norm=nn.BatchNorm2d(5), conv2=nn.Conv2d(5, 6, 3), head=nn.Linear(6, K))
    return Net(lambda net, x: net.head(F.relu(net.conv2(F.relu(net.norm(net.conv1(x))))).mean((2, 3))), **parts)


IMAGES = normal(60, 1, 8, 8)


def test_the_examples_of_the_docstrings_run():
    for module in (measuring, metrics.alone, metrics.definitions, metrics.report, metrics.table):
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
    assert listed(table) == ["conv1", "conv2", "head.input"]
    expected = nc.nc_report(last, LABELS, logits, cnn.head.weight)
    got = values(table, "head.input")
    assert {key: got[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    hidden = nc.nc_report(first.mean((2, 3)), LABELS, logits[:, :K])
    got = values(table, "conv1")
    assert {key: got[key] for key in hidden} == pytest.approx(hidden, rel=1e-5)
    assert not [key for key in got.index if key.startswith("nc3") or key in ("nc0", "accuracy")]
    got = values(table, "head.input")
    assert got["feature_norm"] == pytest.approx(last.double().norm(dim=1).mean().item(), rel=1e-6)
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


def test_mode_hooks_and_random_state_are_as_before(cnn):
    cnn.train()
    cnn.norm.eval()
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 16, shuffle=True)
    statistics = cnn.norm.running_mean.clone()

    def state():
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in cnn.modules()]
        return torch.get_rng_state().tolist(), hooks

    before, modes = state(), [m.training for m in cnn.modules()]
    _ = nc.measure(cnn, loader), nc.features(cnn, loader)
    cnn.forward = lambda x: {"conv1": cnn.conv1(x)}["out of order"]
    with pytest.raises(KeyError, match="out of order"):
        nc.measure(cnn, loader)
    cnn.forward = lambda x: cnn.head(cnn.conv1(x).mean((2, 3))[:, :1].expand(-1, 6) * math.nan)
    for given, says in ((loader, "NaN or infinite"), (loader.dataset, "pass a DataLoader")):
        with pytest.raises(ValueError, match=says):
            nc.measure(cnn, given)
    assert before == state() and modes == [m.training for m in cnn.modules()]
    assert torch.equal(statistics, cnn.norm.running_mean)
    assert all(p.grad is None and p.requires_grad for p in cnn.parameters())


# ---------------------------------------------------------------------------------------------- kinds of networks


def block():
    inner = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
    return Net(lambda net, x: net.short(x) + net.inner(x), inner=inner, short=nn.Sequential())


def test_the_blocks_of_common_networks():
    stage = nn.Sequential(block(), block())
    net = nn.Sequential(OrderedDict(stem=nn.Conv2d(1, 3, 3), stage=stage, pool=nn.AdaptiveAvgPool2d(1)))
    assert layers.blocks_of(net) == ["stem", "stage.0", "stage.1"]
    plain = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(),
        nn.Dropout(), nn.Linear(4, K), nn.Softmax(1),
    )  # fmt: skip
    assert layers.blocks_of(plain) == ["3", "5", "9"]
    table = nc.measure(plain, batches(normal(60, 1, 9, 9)))
    assert listed(table) == ["3", "8.input"]
    torchvision = pytest.importorskip("torchvision")
    resnet = torchvision.models.resnet18(num_classes=K)
    stages = [f"layer{i}.{j}" for i in range(1, 5) for j in range(2)]
    assert layers.blocks_of(resnet) == ["conv1", *stages, "fc"]
    vit = torchvision.models.VisionTransformer(16, 8, 2, 2, 8, 16, num_classes=K)
    blocks = ["conv_proj", "encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1", "heads.head"]
    assert layers.blocks_of(vit) == blocks
    table = nc.measure(vit, batches(normal(20, 3, 16, 16), LABELS[:20], 10))
    assert listed(table) == [*blocks[:3], "heads.head.input"]


def test_all_layers_are_those_without_submodules_and_what_the_classifier_takes_is_listed_once(cnn):
    net, x = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, K)), normal(60, 7)
    table, named = nc.measure(net, batches(x)), nc.measure(net, batches(x), ["1", "2.input"])
    assert listed(table) == ["2.input"] and listed(named) == ["1", "2.input"]
    assert values(named, "1")["nc1_cdnv"] == values(table, "2.input")["nc1_cdnv"]
    assert listed(nc.measure(cnn, batches(IMAGES))) == ["conv1", "conv2", "head.input"]  # then a ReLU
    net = nn.Sequential(
        nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout2d(), nn.Identity(), nn.Conv2d(5, 6, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, K), nn.Softmax(1),
    )  # fmt: skip
    every = listed(nc.measure(net, batches(IMAGES), "all", per_class=True))
    assert every == ["0", "1", "2", "5", "9.input"]  # 6 and 7 are what 9 takes, 10 is after it
    named = nn.Sequential(OrderedDict(first=nn.Linear(7, 6), all=nn.ReLU(), head=nn.Linear(6, K)))
    assert listed(nc.measure(named, batches(x), "all")) == ["all"]  # a module of that name
    net, x = nn.Sequential(nn.Hardtanh(-9, 9), nn.ReLU(), nn.Linear(7, K)), torch.cat((x[:50], x[50:].abs()))
    assert listed(nc.measure(net, batches(x), "all")) == ["0", "2.input"], "which are the same in the last batch alone"


def test_tokens_tuples_and_a_module_that_is_called_twice():
    def does(net, x, scale=1.0):
        h = net.cell(F.relu(net.cell(net.layer(scale * x))))
        return net.out(h[:, 0]), h

    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    net, x = Net(does, layer=layer, cell=nn.Linear(8, 8), out=nn.Linear(8, K)), normal(60, 5, 8)
    table = nc.measure(net, batches(x))
    assert listed(table) == ["layer", "cell", "out.input"]
    net.eval()
    with torch.no_grad():
        logits, tokens = net(x)
    first = nc.features(net, batches(x), "cell", lambda h: h[:, 0])
    torch.testing.assert_close(first.h, tokens[:, 0])  # the second call
    assert first.h.untyped_storage().nbytes() == first.h.nbytes
    mean = nc.nc_report(tokens.mean(1), LABELS, logits)
    assert values(table, "cell")[list(mean)].to_dict() == pytest.approx(mean, rel=1e-4)
    mapping = nc.measure(net, batches(x), {"layer": "flatten", "cell": "mean", "cell.input": lambda h: h[:, 1]})
    dims = mapping[mapping["metric"] == "dim"].set_index("layer")["value"].to_dict()
    assert dims == {"layer": 40, "cell": 8, "cell.input": 8}
    several = nc.measure(net, [((x, torch.ones(())), LABELS)])
    assert several.equals(nc.measure(net, [({"x": x, "scale": torch.ones(())}, LABELS)])) and len(several) == len(table)


def test_the_classifier_is_found_named_or_left_out(cnn):
    full = nc.measure(cnn, batches(IMAGES))
    assert nc.measure(cnn, batches(IMAGES), classifier="head").equals(full)
    without = nc.measure(cnn, batches(IMAGES), classifier=None)
    assert listed(without) == ["conv1", "conv2", "head"]  # then it is a layer like any other
    assert not without["metric"].str.startswith("nc3").any() and "nc0" not in set(without["metric"])
    conv = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, K, 1), nn.Flatten())
    table = nc.measure(conv, batches(IMAGES), classifier="3")
    assert "nc3_alignment" in set(values(table, "3.input").index)
    binary = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 1))
    with pytest.raises(ValueError, match="pass num_classes"):
        nc.measure(binary, batches(normal(60, 7), LABELS % 2))
    assert not nc.measure(binary, batches(normal(60, 7), LABELS % 2), num_classes=2).empty
    parts = {"body": nn.Linear(7, 9), "fc": nn.Linear(9, K)}
    embeds = Net(lambda net, x: net.fc(net.body(x)) if net.training else net.body(x), **parts)
    for net, x, given, told in (
        (cnn, IMAGES, {"num_classes": K + 1}, "name it with classifier=… (its 5 outputs are not among"),
        (embeds, normal(60, 7), {}, "'fc', which has an output for each of 4 classes, is not called"),
    ):
        with pytest.warns(UserWarning) as said:
            nc.measure(net, batches(x), **given)
        assert told in str([warning.message for warning in said])


def test_a_module_that_stands_in_several_places_is_measured_at_each():
    torch.manual_seed(0)
    relu, linear = nn.ReLU(), [nn.Linear(7, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, K)]
    shared = nn.Sequential(linear[0], relu, linear[1], relu, linear[2], relu, linear[3])
    own = nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2], nn.ReLU(), linear[3])
    x = normal(60, 7)
    for names in (None, "all", ["3", "1"], "3"):
        assert nc.measure(shared, batches(x), names).equals(nc.measure(own, batches(x), names)), names
    assert listed(nc.measure(shared, batches(x))) == ["1", "3", "6.input"]
    parts = {"act": relu, "b": nn.ModuleList(nn.Sequential(layer, relu) for layer in linear[:2]), "head": linear[3]}
    for last in (F.tanh, relu):  # kept as an attribute, too, and called there last or not at all
        net = Net(lambda net, x, last=last: net.head(last(net.b[1](net.b[0](x)))), **parts)
        for k in range(2):
            torch.testing.assert_close(nc.features(net, batches(x), f"b.{k}.1").h, own[: 2 * k + 2](x).detach())
    block, head = nn.Sequential(nn.Linear(7, 7), relu), nn.Linear(7, K)  # what it holds stands in its places, too
    tied, untied = (nn.Sequential(*map(of, [block] * 3), head) for of in (lambda b: b, copy.deepcopy))
    for names in (None, "all", ["0.0", "2.0"]):
        assert nc.measure(tied, batches(x), names).equals(nc.measure(untied, batches(x), names)), names
    in_list = Net(lambda net, x: net.head(net.b[1](net.b[0](x))), b=nn.ModuleList([block] * 2), head=head)
    with pytest.warns(UserWarning, match=r"'b\.0\.[01]' is one module in several places, .* This layer is left out"):
        assert listed(nc.measure(in_list, batches(x), "all")) == ["head.input"]
    with pytest.raises(ValueError, match="layer 'act' is one module in several places, and calls do not show which"):
        nc.features(Net(lambda net, x: net.head(net.b[1](net.b[0](x))), **parts), batches(x), "act")


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_part_that_torch_jit_made_is_one_layer_or_left_out():
    x, rest = normal(60, 7), (nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, K))
    part = nn.Sequential(nn.Linear(7, 6), nn.Tanh())
    traced, scripted = torch.jit.trace(part, x), torch.jit.script(part)
    for names in (None, "all"):
        found = nc.measure(nn.Sequential(traced, *rest), batches(x), names)
        expected = nc.measure(nn.Sequential(part, *rest), batches(x), names)
        assert values(found, "0").equals(values(expected, "0.1"))
        with pytest.warns(UserWarning, match="layer '0', of torch.jit.script, takes no hook.* is left out"):
            left = nc.measure(nn.Sequential(scripted, *rest), batches(x), names)
        assert left.equals(found[found["layer"] != "0"].reset_index(drop=True))
    maps, act = normal(60, 3, 8, 8), nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU())
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, K)
    eager, of_maps = (nn.Sequential(p, *ends) for p in (act, torch.jit.trace(act, maps)))
    expected = nc.measure(eager, batches(maps), ["0.1"])
    with pytest.raises(ValueError, match=r"layer '0' gives .*: pass a function as its pool"):
        nc.measure(of_maps, batches(maps), ["0"])
    found = nc.measure(of_maps, batches(maps), ["0"], pool=lambda x: x.mean((2, 3)))
    assert values(found, "0").equals(values(expected, "0.1"))
    beside = nn.Sequential(*act, *ends, torch.jit.script(nn.Tanh()))
    assert values(nc.measure(beside, batches(maps), ["1"]), "1").equals(values(expected, "0.1"))
    for of_jit in (traced, scripted):
        with pytest.raises(ValueError, match="pass the one it is made of"):
            nc.measure(of_jit, batches(x))


def several(output):
    """Returns what ``output`` makes of the features and of the outputs of two heads."""
    parts = {"encoder": nn.Linear(8, 16), "a": nn.Linear(16, K), "b": nn.Linear(16, K)}
    return Net(lambda net, x: output(h := net.encoder(x).relu(), net.a(h), net.b(h)), **parts)


OUTPUTS = [
    lambda h, a, b: (h, -a),
    lambda h, a, b: {"features": h, "scores": [-a]},
    lambda h, a, b: (-a, h),
    lambda h, a, b: a + torch.tensor([0.0, 0.0, 9.0, 0.0]),
    lambda h, a, b: a[:, [2, 0, 1, 3]],
    lambda h, a, b: 9 * a + h[:, :K],  # of the same argmax in nearly every row
]


@pytest.mark.parametrize("output", OUTPUTS)
def test_predictions_are_those_of_the_network_which_need_not_follow_from_its_classifier(output):
    torch.manual_seed(0)
    net, x = several(output), normal(60, 8)
    with pytest.warns(UserWarning, match=r"does not follow, row by row, from that of 'a'"):
        table = nc.measure(net, batches(x), classifier="a")
        found = nc.features(net, batches(x), classifier="a")
    logits = next(part for part in hooks.tensors(net(x)) if part.shape[1] == K)
    right = (logits.argmax(1) == LABELS).double().mean().item()
    assert values(table, "a.input")["accuracy"] == pytest.approx(right)
    torch.testing.assert_close(found.logits, logits.detach())


def test_two_outputs_follow_from_a_classifier_through_a_softmax_and_not_with_more_added():
    head, data = nn.Linear(8, 2), batches(normal(60, 8), LABELS % 2)
    for last in (nn.LogSoftmax(1), lambda a: a.bfloat16().softmax(1), lambda a: a / 2):
        nc.measure(Net(lambda net, x, last=last: last(net.head(x)), head=head), data)
    with pytest.warns(UserWarning, match="does not follow, row by row"):
        nc.measure(Net(lambda net, x: 9 * net.head(x) + x[:, :2], head=head), data)


def test_a_classifier_of_the_last_token_is_told_unless_the_pool_takes_it():
    torch.manual_seed(0)
    net, tokens = Net(lambda net, x: net.h(net.b(x))[:, -1], b=nn.Linear(8, 8), h=nn.Linear(8, K)), normal(60, 5, 8)
    tokens = tokens + 9 * tokens[:, :1]  # whose mean has the class of the last one
    with pytest.warns(UserWarning, match="does not follow.*of tokens, pass a pool that takes what the network reads"):
        nc.measure(net, batches(tokens), classifier="h")
    nc.measure(net, batches(tokens), pool=lambda h: h[:, -1], classifier="h")
    nc.measure(Net(lambda net, x: net.h(net.b(x)).mean(1), b=net.b, h=net.h), batches(tokens), classifier="h")


TWO_HEADS = [
    lambda h, a, b: (b, a),
    lambda h, a, b: (a + b) / 2,
    lambda h, a, b: h,
    lambda h, a, b: {"logits": b / 2, "aux": a},
    lambda h, a, b: (F.log_softmax(b, 1), a),
    lambda h, a, b: ((a + b) / 2, a),
]


@pytest.mark.filterwarnings("ignore:the network's output does not follow")
def test_two_heads_are_asked_for_and_not_guessed():
    x = normal(60, 8)
    for net, output in ((several(output), output) for output in TWO_HEADS):
        with pytest.raises(ValueError, match=r"\['a', 'b'\] may be the classifier: pass classifier="):
            nc.measure(net, batches(x), num_classes=K)
        found = nc.features(net, batches(x), num_classes=K, classifier="a")
        logits = net(x)["logits"] if isinstance(net(x), dict) else net(x) if output is TWO_HEADS[1] else net.a(found.h)
        torch.testing.assert_close((found.w, found.logits), (net.a.weight, logits), check_stride=False)
    for net in map(several, (lambda h, a, b: a, lambda h, a, b: (h, a), lambda h, a, b: {"h": h, "logits": a})):
        assert torch.equal(nc.features(net, batches(x), num_classes=K).w, net.a.weight)
    chain = nn.Sequential(nn.Linear(8, K), nn.ReLU(), nn.Linear(K, K))  # wide layers before are no heads
    assert torch.equal(nc.features(chain, batches(x)).w, chain[2].weight)


Pair = make_dataclass("Pair", ["h", "logits"])


@pytest.mark.parametrize("kind", [Pair, namedtuple("Pair", "h logits"), dict, lambda h, logits: (h, logits)])
@pytest.mark.parametrize("classifier", ["auto", "fc"])
@pytest.mark.parametrize("last", [nn.Identity(), nn.LogSoftmax(1)])
def test_logits_go_by_that_name_or_are_what_the_classifier_gave_and_are_not_guessed(kind, classifier, last):
    net, x = Net(lambda net, x: kind(h=x, logits=last(net.fc(x))), fc=nn.Linear(K, K)), normal(60, K)
    unknown = isinstance(last, nn.LogSoftmax) and type(net(x)) is tuple
    refused = pytest.raises(ValueError, match=r"returns 2 tensors \(25, 4\), .* or under the key 'logits'")
    with refused if unknown else contextlib.nullcontext():
        found = nc.features(net, batches(x), classifier=classifier)
        torch.testing.assert_close((found.h, found.logits), (x, last(net.fc(x))))


def test_a_classifier_called_twice_is_read_at_the_call_that_is_returned():
    x = normal(60, 8)
    for output in (lambda a, b: a, lambda a, b: (a, b), lambda a, b: {"early": [b], "logits": a}, lambda a, b: a + b):
        parts = {"body": nn.Linear(8, 16), "head": nn.Linear(16, K)}
        net = Net(lambda net, x, out=output: out(net.head(net.body(x)), net.head(net.body(x + 1))), **parts)
        if output(1, 1) in (2, (1, 1)):
            with pytest.raises(ValueError, match=r"'head' is called 2 times.*: pass cl|several calls of 'he"):
                nc.measure(net, batches(x))
            continue
        h, table = net.body(x).detach(), nc.measure(net, batches(x))
        logits = net.head(h).detach()
        for layer in (None, "body", "head.input"):
            found = nc.features(net, batches(x), layer)
            torch.testing.assert_close((found.h, found.logits), (h, logits))
        assert listed(table) == ["head.input"]
        assert values(table, "head.input")["accuracy"] == (logits.argmax(1) == LABELS).double().mean()


def test_a_projection_that_is_returned_too_is_not_taken_for_the_classifier():
    def network(output):
        parts = {"body": nn.Linear(8, 16), "fc": nn.Linear(16, K), "projection": nn.Linear(16, 6)}
        return Net(lambda net, x: output(h := net.body(x), net.fc(h), net.projection(h)), **parts)

    for output in (lambda h, a, p: (a, p), lambda h, a, p: {"out": a, "z": p}):
        with pytest.raises(ValueError, match=r"\['fc', 'projection'\] may be the classifier: pass classifier="):
            nc.measure(network(output), batches(normal(60, 8)))
    for net in map(network, (lambda h, a, p: (a, F.normalize(p)), lambda h, a, p: (h, a))):
        assert torch.equal(nc.features(net, batches(normal(60, 8))).w, net.fc.weight)


def test_a_compiled_network_that_has_run_is_measured_as_it_is(cnn):
    cnn.eval()
    expected = nc.measure(cnn, batches(IMAGES), "all")
    cnn.compile(backend="eager")
    with torch.no_grad():
        cnn(IMAGES)
    assert nc.measure(cnn, batches(IMAGES), "all").equals(expected)
    parts, x = nn.Sequential(nn.Linear(7, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, K)), normal(60, 7)
    expected = {names: nc.measure(parts, batches(x), names) for names in (None, "all")}
    for i in (0, 1):
        parts[i] = torch.compile(parts[i], backend="eager")
    with torch.no_grad():
        parts.eval()(x)
    for names, table in expected.items():
        assert nc.measure(parts, batches(x), names).equals(table)


def test_empty_batches_are_passed_over_and_labels_handed_back_as_they_are(cnn):
    expected = nc.measure(cnn, batches(IMAGES))
    empty = (IMAGES[:0], LABELS[:0])
    assert nc.measure(cnn, [empty, *batches(IMAGES), empty]).equals(expected)
    found = nc.features(cnn, [empty, *batches(IMAGES), (IMAGES[:0], [])])
    assert torch.equal(found.labels, LABELS)
    for labels in (LABELS.double() / 3, F.one_hot(LABELS)):
        assert torch.equal(nc.features(cnn, [(IMAGES[:25], labels[:25]), (IMAGES[25:], labels[25:])]).labels, labels)
    texts = [f"class {k}" for k in LABELS]
    found = nc.features(cnn, [(IMAGES[:25], texts[:25]), (IMAGES[25:], texts[25:])]).labels
    assert isinstance(found, np.ndarray) and found.tolist() == texts


def test_cls_takes_the_first_token():
    stage = nn.Sequential(*[nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)])
    net = Net(lambda net, x: net.head(net.stage(net.patches(x).flatten(2).mT)[:, 0]),
              patches=nn.Conv2d(1, 8, 2, 2), stage=stage, head=nn.Linear(8, K))  # fmt: skip
    table = nc.measure(net, batches(IMAGES), ["patches", "stage.0", "stage.1", "head.input"], pool="cls")
    by_hand = {"patches": "mean", "stage.0": lambda h: h[:, 0], "stage.1": lambda h: h[:, 0], "head.input": "mean"}
    pd.testing.assert_frame_equal(table, nc.measure(net, batches(IMAGES), by_hand))
    assert listed(nc.measure(net, batches(IMAGES), pool="cls")) == ["patches", "stage.0", "head.input"]
    assert "stage.1" in set(nc.measure(net, batches(IMAGES))["layer"])


# ------------------------------------------------------------------------------------------------ equilibrium layers


def equilibrium(**choices):
    """Large rows take more evaluations than others."""

    def injected(net, z, x):
        return net.inner(0.1 + 0.9 * z) * (0.1 + 0.85 * (x[:, :1].abs() > 1)) + x

    linear, choices = nn.Linear(6, 6, bias=False), choices or {"solver": nc.FixedPointIteration(tol=1e-5, max_steps=60)}
    linear.weight.data = torch.linalg.qr(normal(6, 6)).Q
    cell = nn.Sequential(linear, nn.Tanh())
    deq, head = nc.DEQ(Net(injected, inner=cell), **choices), nn.Linear(6, K)
    return Net(lambda net, x: net.head(net.deq(x)[0] * 2), linear=linear, cell=cell, head=head, deq=deq)


@pytest.mark.parametrize(("gradient", "two", "whole"), [(None, 1, 1), (None, 0, 0), (nc.Unrolled(20), 1, 0)])
def test_an_equilibrium_is_read_where_states_on_the_way_are_returned_too(gradient, whole, two):
    x, state, solver = normal(60, 6), lambda z: (z, z) if two else z, None if gradient else nc.Anderson(1e-6)
    cell = Net(lambda net, z, x: state(torch.tanh((z[1] if two else z) / 2 + x)))
    parts = {"deq": nc.DEQ(cell, solver, gradient, state, return_solution=whole), "head": nn.Linear(6, K)}
    wrapper = type("Wrapper", (nn.Module,), {"__getattr__": lambda self, name: getattr(parts["deq"], name)})
    assert layers.blocks_of(nn.Sequential(nn.Linear(6, 6), nc.DEQ(torch.tanh))) == ["0", "1"]
    assert layers.is_deq(parts["deq"]) and not layers.is_deq(wrapper())
    for at in ([1, 2], None):
        net = Net(lambda net, x, at=at: net.head(next(hooks.tensors(net.deq(2 * x, at=at)))), **parts)
        found = nc.features(net, batches(x), "deq").h
        torch.testing.assert_close(found, torch.tanh(found / 2 + 2 * x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("hard", [slice(0, 60), slice(30, 31)])  # in every batch, and in the second alone
@pytest.mark.parametrize("second_pass", [True, False])
def test_a_layer_that_is_said_to_be_left_out_is_left_out(hard, second_pass):
    x = 0.5 * normal(60, 6).clamp(-1, 1)
    x[hard] = 2 + normal(60, 6)[hard].abs()

    def some(net, x):  # the last call has some of the rows
        z, easy = net.cell(net.linear(x)), (x < 1).all(1)
        return net.head(z.index_put((easy,), net.cell(z[easy])))

    parts = {"linear": nn.Linear(6, 6), "cell": nn.Sequential(nn.Linear(6, 6), nn.Tanh()), "head": nn.Linear(6, K)}
    with pytest.warns(UserWarning) as said:
        table = nc.measure(Net(some, **parts), batches(x), layers="all", second_pass=second_pass)
    told = [str(warning.message) for warning in said]
    assert all("This layer is left out" in text for text in told)
    assert sorted(text.partition(" gives")[0] for text in told) == ["layer 'cell.0'", "layer 'cell.1'"]  # once each
    assert listed(table) == ["linear", "head.input"]
    inside = nc.measure(equilibrium(), batches(x), layers="all", second_pass=second_pass)
    assert listed(inside) == ["deq", "head.input"], "nothing inside of an equilibrium, by another name either"


def test_rows_that_did_not_converge_are_counted():
    x = normal(60, 6)
    few = {"solver": nc.FixedPointIteration(tol=1e-5, max_steps=10)}
    net = equilibrium(**few)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the layer may say so too
        missed = int((~net.eval().deq(x)[1].converged).sum())
    assert 0 < missed < 60
    for function in (nc.measure, nc.features):
        told = rf"layer 'deq' did not converge on {missed} of 60 rows \(worst res"
        with pytest.warns(UserWarning, match=told) as said:
            function(net, batches(x), *(["head.input"],) * (function is nc.measure))
        assert len(said) == 1 and said[0].filename == __file__, "the line that asks"
    alone = nn.Sequential(nc.DEQ(net.deq.cell, return_solution=False, **few), nn.Linear(6, K))
    with pytest.warns(UserWarning, match=rf"layer '0' did not converge on {missed} of 60 rows"):
        nc.measure(alone, batches(x), ["1.input"], second_pass=True)
    nc.measure(equilibrium(), batches(0.1 * x), ["head.input"])  # nothing to say
    nc.measure(equilibrium(gradient=nc.Unrolled(3)), batches(x), ["head.input"])  # a fixed number of steps
    grows = nn.Sequential(nc.DEQ(lambda z, x: z + torch.sigmoid(x), return_solution=False), nn.Linear(6, K))
    with pytest.warns(UserWarning, match="layer '0' did not converge on 60 of 60 rows"):
        nc.measure(grows, batches(x), ["1.input"])
    net.linear.weight.data *= math.nan
    told = r"'deq' did not converge on \d+ of \d+ rows \(worst residual inf\)"
    with pytest.warns(UserWarning, match=told), contextlib.suppress(ValueError):  # where the layer returns NaN
        nc.measure(net, batches(x), ["head.input"])


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


def test_a_second_pass_has_what_is_kept_otherwise(cnn):
    expected = nc.measure(cnn, batches(IMAGES), per_class=True)
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 16, shuffle=True)
    for given in (batches(IMAGES), loader):
        table = nc.measure(cnn, given, per_class=True, keep=0, second_pass=True)
        pd.testing.assert_frame_equal(table, expected, rtol=1e-5)
    with pytest.warns(UserWarning, match="nc4_ncc_mismatch and nc1_pinv_class_balanced are left out"):
        table = nc.measure(cnn, batches(IMAGES), keep=1000)
    assert set(expected["metric"]) - set(table["metric"]) >= {"nc4_ncc_mismatch", "nc1_pinv_class_balanced"}
    with pytest.raises(ValueError, match="gave other samples the second time"):
        nc.measure(cnn, iter(batches(IMAGES)), second_pass=True)


def test_layers_without_room_for_a_simplex_are_told():
    labels = torch.arange(60) % 12
    net = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 12))
    said = r"12 classes form no simplex in fewer than 11 dimensions.*: '1' \(d = 5: 0\.807\)\."
    with pytest.warns(UserWarning, match=said) as warned:
        table = nc.measure(net, batches(normal(60, 8), labels))
    assert len(warned) == 1 and values(table, "1")["nc2_etf_distance"] >= 0.807
    with pytest.warns(UserWarning, match="12 of 12 classes have one sample, and so no variance in NC1"):
        nc.measure(net, [(normal(12, 8), labels[:12])], "3")
    with pytest.warns(UserWarning, match="12 of 12 classes have one test sample, and so no variance in nc1_cdnv_test"):
        nc.measure(net, batches(normal(60, 8), labels), "3", test=[(normal(12, 8), labels[:12])])


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


def test_a_layer_too_wide_is_measured_by_its_means_with_a_warning(cnn):
    with pytest.warns(UserWarning, match=r"'conv1' has 180 features.*0\.0 GB.*left out.*pool=\"mean\".*max_dim=180"):
        means = nc.measure(cnn, batches(IMAGES), "conv1", pool="flatten", max_dim=100)
    full = nc.measure(cnn, batches(IMAGES), "conv1", pool="flatten")
    assert set(full["metric"]) - set(means["metric"]) == {"nc1_pinv", "effective_rank"}
    both = full.merge(means, on="metric")
    np.testing.assert_allclose(both["value_x"], both["value_y"], rtol=1e-6)


def test_three_axes_are_signals_or_tokens_or_asked_for():
    net = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(5, K))
    assert nc.features(net, batches(normal(60, 3, 9)), "1").h.shape == (60, 5)
    both = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.LayerNorm(7), nn.Flatten(), nn.Linear(35, K))
    with pytest.raises(ValueError, match=r"may be \(B, C, …\), .*: pass a function"):
        nc.measure(both, batches(normal(60, 3, 9)), "1")
    stack = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16))  # (T, B, D): batch_first=False
    own = Net(lambda net, x: net.fc(net.norm(x.transpose(0, 1)).mean(0)), norm=nn.LayerNorm(8), fc=nn.Linear(8, K))
    for net, layer, tokens, says in (
        (stack, "0", normal(5, 25, 8), "not features of 25 samples"),
        (stack, "0", normal(25, 25, 8), r"or \(T, B, D\): pass a function"),
        (own, "norm", normal(25, 24, 8), "not features of 25 samples"),
        (own, "norm", normal(25, 25, 8), "do not follow the order of the samples"),
    ):
        with pytest.raises(ValueError, match=says):
            nc.features(net, [(tokens, LABELS[:25])], layer)
    by_hand = nc.features(own, [(normal(25, 25, 8), LABELS[:25])], "norm", lambda h: h.mean(0)).h
    assert torch.equal(by_hand, nc.features(own, [(normal(25, 25, 8), LABELS[:25])]).h)


def test_a_module_with_two_names_is_measured_once_and_by_either_name():
    stage, head, x = nn.Sequential(block(), block()), nn.Linear(3, K), normal(60, 3, 4, 4)
    parts = {"stage": stage, "head": head, "last": stage[1], "out": head}
    net = Net(lambda net, x: net.out(F.relu(net.stage(x)).mean((2, 3))), **parts)
    table = nc.measure(net, batches(x))
    assert listed(table) == ["stage.0", "stage.1", "head.input"]
    for name in ("last", "stage.1"):
        alone = nc.measure(net, batches(x), name)
        assert values(alone, name)["nc1_cdnv"] == values(table, "stage.1")["nc1_cdnv"]
    assert torch.equal(nc.features(net, batches(x), classifier="out").w, net.head.weight)


def test_a_network_that_keeps_a_state_is_measured_as_it_runs():
    parts = {"a": nn.Linear(8, 6), "head": nn.Linear(6, K), "runs": torch.zeros(1)}
    net = Net(lambda net, x: net.head(net.a(x) * net.runs.add_(1)), **parts)
    x, batch = normal(60, 8), torch.arange(60) // 25
    expected = ((batch + 1) * net.a(x).detach().norm(dim=1)).mean().item()
    assert values(nc.measure(net, batches(x)), "head.input")["feature_norm"] == pytest.approx(expected)


HEADS = {
    "cosine": lambda h, w: F.linear(F.normalize(h), F.normalize(w)),
    "scaled": lambda h, w: 3 * F.linear(h, w),
    "prototypes": lambda h, w: -torch.cdist(h, w),
    "linear": lambda h, w: F.linear(h, w) + torch.arange(K),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_classifier_that_is_no_linear_map_of_the_features_is_told(cnn, name):
    cnn.head = weight_norm(Net(lambda head, h: HEADS[name](h, head.weight), weight=nn.Parameter(normal(K, 6))))
    told = pytest.warns(UserWarning, match="'head' does not give h Wᵀ [+] b")
    with contextlib.nullcontext() if name == "linear" else told:
        nc.measure(cnn, batches(IMAGES), classifier="head")
