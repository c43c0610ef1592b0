"""``nc.measure``: layers by hand, kinds of networks, what stays as it was, then what is refused."""

import math
import warnings

import pytest
import torch
from problems import Net, generator
from problems import single as normal
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import nclib as nc

K = 4
LABELS = torch.arange(60) % K
IMAGES = normal(60, 1, 8, 8)
ROWS = normal(60, 7)


def batches(x, labels=LABELS, size=25):
    return list(zip(x.split(size), labels.split(size), strict=True))


def values(table, layer):
    return table[table["layer"] == layer].set_index("metric")["value"]


def listed(table):
    return list(table["layer"].unique())


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    convolutions = {
        "conv1": nn.Conv2d(1, 5, 3),
        "norm": nn.BatchNorm2d(5),
        "conv2": nn.Conv2d(5, 6, 3),
    }

    def forward(net, x):
        inner = F.relu(net.norm(net.conv1(x)))
        return net.head(F.relu(net.conv2(inner)).mean((2, 3)))

    return Net(forward, **convolutions, head=nn.Linear(6, K))


@pytest.fixture
def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, K))


# --- values ---------------------------------------------------------------------------------------


def test_a_network_that_is_collapsed_has_the_ideal_values():
    etf = nc.simplex_etf(K, 6).float()
    head = nn.Linear(6, K, bias=False)
    head.weight.data = 3 * etf
    table = nc.measure(nn.Sequential(nn.Identity(), head), batches(2 * etf[LABELS]))
    got = values(table, "1.input")
    for metric in ("nc1_trace_ratio", "nc1_cdnv", "nc2_etf_distance", "nc3_self_duality", "nc0"):
        assert got[metric] == pytest.approx(0, abs=1e-6), metric
    assert got["nc4_ncc_mismatch"] == 0
    assert got["accuracy"] == 1 and got["rank_between"] == K - 1
    assert got["dim"] == 6
    assert got["samples"] == 60
    assert got["feature_norm"] == pytest.approx(2, rel=1e-6)


def test_layers_have_the_report_of_their_features_taken_by_hand(cnn):
    cnn.eval()
    with torch.no_grad():
        first = cnn.conv1(IMAGES)
        last = F.relu(cnn.conv2(F.relu(cnn.norm(first)))).mean((2, 3))
        logits = cnn.head(last)
    table = nc.measure(cnn, batches(IMAGES))
    assert list(table) == ["layer", "metric", "value"]
    assert listed(table) == ["conv1", "norm", "conv2", "head.input"]
    expected = nc.nc_report(last, LABELS, logits, cnn.head.weight)
    got = values(table, "head.input")
    assert {key: got[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert got["accuracy"] == pytest.approx((logits.argmax(1) == LABELS).double().mean().item())
    expected = nc.nc_report(first.mean((2, 3)), LABELS, logits)
    got = values(table, "conv1")
    assert {key: got[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert not [key for key in got.index if key.startswith("nc3") or key in ("nc0", "accuracy")]


def test_the_rows_of_classes_add_up_to_the_layer(cnn):
    table = nc.measure(cnn, batches(IMAGES), per_class=True)
    whole = values(table[table["class"].isna()], "head.input")
    of_classes = table[(table["layer"] == "head.input") & table["class"].notna()]
    wide = of_classes.pivot(index="class", columns="metric", values="value")
    assert list(wide.index) == list(range(K)) and wide["samples"].sum() == 60
    for metric in ("nc1_trace_ratio", "feature_norm", "nc4_ncc_mismatch", "accuracy"):
        mean = (wide[metric] * wide["samples"]).sum() / 60
        assert mean == pytest.approx(whole[metric], rel=1e-9), metric


def test_neither_the_order_nor_the_size_of_the_batches_matters(mlp):
    expected = nc.measure(mlp, batches(ROWS))
    order = torch.randperm(60, generator=generator(1))
    for given in (
        batches(ROWS, size=7),
        batches(ROWS[order], LABELS[order]),
        [(ROWS[:0], LABELS[:0]), (ROWS, LABELS)],
    ):
        table = nc.measure(mlp, given)
        assert table["value"].to_numpy() == pytest.approx(
            expected["value"].to_numpy(), rel=1e-5, nan_ok=True
        )


def test_the_sample_weighting_moves_the_centre(mlp):
    labels = torch.cat([torch.arange(K), torch.zeros(56, dtype=torch.int64)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes with one sample
        by_class, by_sample = (
            nc.measure(mlp, batches(ROWS, labels), weighting=w) for w in ("class", "sample")
        )
    assert (
        values(by_class, "4.input")["nc2_etf_distance"]
        != values(by_sample, "4.input")["nc2_etf_distance"]
    )


# --- which layers ---------------------------------------------------------------------------------


def test_containers_are_opened_and_what_comes_after_the_classifier_is_no_layer():
    stage = nn.Sequential(nn.Conv2d(5, 6, 3), nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
    net = nn.Sequential(nn.Conv2d(1, 5, 3), stage, nn.Flatten(), nn.Linear(6, K), nn.Softmax(1))
    layers = listed(nc.measure(net, batches(IMAGES)))
    assert layers == ["0", "1.0", "1.1.0", "1.1.1", "2", "3.input"]
    held = Net(lambda net, x: net.top(net.body(x)), body=nn.Linear(7, 5),
               top=Net(lambda top, x: top.head(x.relu()), head=nn.Linear(5, K)))  # fmt: skip
    assert listed(nc.measure(held, batches(ROWS))) == ["body", "top.head.input"]


def test_named_layers_are_read_in_the_order_of_their_calls(mlp):
    layers = listed(nc.measure(mlp, batches(ROWS), ["4.input", "3", "1.input"]))
    assert layers == ["1.input", "3", "4.input"]
    assert listed(nc.measure(mlp, batches(ROWS), "4")) == ["4"]
    table = nc.measure(mlp, batches(ROWS), ["3", "4.input"])
    assert values(table, "3")["nc1_cdnv"] == values(table, "4.input")["nc1_cdnv"]


def test_of_several_calls_the_last_is_read_and_what_works_in_place_comes_after():
    net = Net(
        lambda net, x: net.head(net.act(net.cell(net.cell(x)))),
        cell=nn.Linear(7, 7),
        act=nn.ReLU(inplace=True),
        head=nn.Linear(7, K),
    )
    with torch.no_grad():
        expected = nc.nc_report(net.cell(net.cell(ROWS)), LABELS)
    got = values(nc.measure(net, batches(ROWS), "cell"), "cell")
    assert got["nc1_trace_ratio"] == pytest.approx(expected["nc1_trace_ratio"], rel=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_tokens_are_averaged_and_a_function_takes_what_it_is_given(half):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    net = Net(lambda net, x: net.out(net.layer(x)[:, 0]), layer=layer, out=nn.Linear(8, K))
    x = normal(60, 5, 8)
    if half:
        net, x = net.bfloat16(), x.bfloat16()
    with torch.no_grad():
        tokens = net.eval().layer(x).float()
    pools = {"tokens": tokens.mean(1)} | {at: tokens[:, at] for at in range(2)}
    for pool, h in pools.items():
        how = pool if pool == "tokens" else lambda given, at=pool: given[:, at]
        table = nc.measure(net, batches(x), pool=how)
        expected = nc.nc_report(h, LABELS)
        assert listed(table) == ["layer", "out.input"]
        assert values(table, "layer")["nc1_trace_ratio"] == pytest.approx(
            expected["nc1_trace_ratio"], rel=1e-2 if half else 1e-5
        )


def test_a_function_may_flatten_maps_and_is_not_given_what_is_flat_already(cnn):
    flat = nc.measure(cnn, batches(IMAGES), pool=lambda maps: maps.flatten(1))
    assert values(flat, "conv1")["dim"] == 5 * 36 and values(flat, "head.input")["dim"] == 6


def test_a_deq_is_read_at_its_equilibrium():
    cell = Net(lambda cell, z, x: torch.tanh(cell.linear(z)) / 2 + x, linear=nn.Linear(7, 7))
    net = Net(
        lambda net, x: net.head(net.deq(x)[0]),
        deq=nc.DEQ(cell, nc.Anderson(tol=1e-6)),
        head=nn.Linear(7, K),
    )
    z = nc.fixed_point(cell, nc.Anderson(tol=1e-9), ROWS, (ROWS,)).value.detach()
    table = nc.measure(net, batches(ROWS))
    assert listed(table) == ["deq", "head.input"]
    expected = nc.nc_report(z, LABELS)
    assert values(table, "deq")["nc1_cdnv"] == pytest.approx(expected["nc1_cdnv"], rel=1e-4)


def test_the_models_of_the_library_are_measured(mlp):
    model = nc.build_model(nc.ModelConfig(kind="deq", width=2), num_classes=K, in_channels=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that do not converge before training
        assert "classifier.input" in listed(nc.measure(model, batches(IMAGES)))


def test_several_arguments_and_names_are_handed_on(mlp):
    net = Net(lambda net, x, scale=1.0: net.mlp(scale * x), mlp=mlp)
    expected = nc.measure(mlp, batches(ROWS), "4.input")["value"].tolist()
    two = torch.tensor(2.0)
    for inputs in ((ROWS / 2, two), {"x": ROWS / 2, "scale": two}):
        got = nc.measure(net, [(inputs, LABELS)], "mlp.4.input")["value"].tolist()
        assert got == pytest.approx(expected, rel=1e-5)


COMPILED = pytest.param(lambda net: torch.compile(net, backend="eager"), marks=pytest.mark.slow)


BOTH = pytest.param(
    lambda net: nn.DataParallel(torch.compile(net, backend="eager")), marks=pytest.mark.slow
)


@pytest.mark.parametrize("wrap", [nn.DataParallel, COMPILED, BOTH])
def test_wrappers_are_looked_through(cnn, wrap):
    expected = nc.measure(cnn, batches(IMAGES))
    wrapped = wrap(cnn)
    with torch.no_grad():
        wrapped.eval()(IMAGES)
    assert nc.measure(wrapped, batches(IMAGES)).equals(expected)


def test_a_module_called_input_is_a_layer_of_its_own(mlp):
    renamed = nn.Sequential()
    for name, module in mlp.named_children():
        renamed.add_module("input" if name == "0" else name, module)
    expected = nc.measure(mlp, batches(ROWS))
    expected = expected.assign(layer=expected["layer"].replace("0", "input"))
    assert nc.measure(renamed, batches(ROWS)).equals(expected)
    named = nc.measure(renamed, batches(ROWS), ["input", "input.input"])
    assert values(named, "input")["dim"] == 6 and values(named, "input.input")["dim"] == 7


def test_a_network_without_a_classifier_has_what_needs_none(mlp):
    table = nc.measure(mlp, batches(ROWS), classifier=None)
    assert listed(table) == ["0", "1", "2", "3", "4"]
    assert not table["metric"].str.match("nc0|nc3|nc4|accuracy").any()


# --- the network is left as it was ----------------------------------------------------------------


def test_mode_hooks_random_state_and_statistics_are_as_before_also_after_an_error(cnn):
    cnn.train()
    cnn.norm.eval()
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 16, shuffle=True)

    def state():
        hooks = [
            len(module._forward_hooks) + len(module._forward_pre_hooks) for module in cnn.modules()
        ]
        modes = [module.training for module in cnn.modules()]
        return torch.get_rng_state().tolist(), hooks, modes, cnn.norm.running_mean.tolist()

    before = state()
    nc.measure(cnn, loader)
    assert state() == before
    cnn.does = lambda net, x: {"conv1": net.conv1(x)}["out of order"]
    with pytest.raises(KeyError, match="out of order"):
        nc.measure(cnn, loader)
    assert state() == before
    assert all(p.grad is None and p.requires_grad for p in cnn.parameters())


def test_training_with_measure_is_training_without_bit_for_bit():
    def trained(measures):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(7, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, K)
        )
        loader = DataLoader(TensorDataset(ROWS, LABELS), 16, shuffle=True)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            for x, y in loader:
                optimiser.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimiser.step()
                if measures:
                    nc.measure(net, loader)
        return net.state_dict()

    plain, measured = trained(False), trained(True)
    assert all(torch.equal(plain[name], measured[name]) for name in plain)


# --- what is refused ------------------------------------------------------------------------------


def test_the_last_linear_of_an_embedding_network_is_not_taken_for_its_classifier():
    net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 16))
    with pytest.raises(
        ValueError, match=r"'2' has 16 rows.* 4 classes.*the last nn\.Linear.*classifier=None"
    ):
        nc.measure(net, batches(ROWS))
    assert listed(nc.measure(net, batches(ROWS), classifier=None)) == ["0", "1", "2"]
    with pytest.warns(UserWarning, match="12 of 16 classes have no samples"):
        table = nc.measure(net, batches(ROWS), "2.input", classifier="2")
    assert values(table, "2.input")["absent_classes"] == 12


TOKENS = normal(60, 5, 8)
TOKEN_NET = Net(
    lambda net, x: net.out(net.embed(x)[:, 0]), embed=nn.Linear(8, 8), out=nn.Linear(8, K)
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": "conv3"}, "no module 'conv3': did you mean 'conv2'"),
        ({"layers": ["conv1", "spare"]}, "layer 'spare' is not called"),
        ({"classifier": "conv1"}, r"classifier 'conv1' has no weight \(K, d\)"),
        ({"classifier": "spare"}, "classifier 'spare' is not called"),
        ({"num_classes": 3}, "num_classes=3, but the classifier 'head' has 4 rows"),
        ({"pool": "mean"}, 'pool must be "tokens", or a function'),
        (
            {"pool": lambda maps: maps.mean()},
            r"layer 'conv1' gives \(\), and not \(B, d\) features of the 25 samples",
        ),
        ({"pool": lambda maps: maps.flatten(0, 1).flatten(1)}, r"layer 'conv1' gives \(125, 36\)"),
        ({"loader": []}, "the loader gave no batches"),
        ({"loader": TensorDataset(IMAGES, LABELS)}, "labels must be integers|labels"),
        ({"loader": IMAGES}, r"a batch must be \(inputs, labels\)"),
        ({"loader": batches(IMAGES, LABELS.double())}, r"labels must be integers \(B,\)"),
        ({"loader": batches(IMAGES, LABELS + 1)}, "labels must lie in 0 … 3"),
        (
            {"loader": batches(IMAGES * math.nan)},
            "layer 'conv1' gives NaN or infinite values: name other layers",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_name(cnn, change, message):
    cnn.spare = nn.Linear(6, K)
    given = {"loader": batches(IMAGES), "layers": None, "classifier": "head"} | change
    with pytest.raises(ValueError, match=message):
        nc.measure(cnn, **given)


def test_tokens_are_asked_for_with_the_shape_and_the_choices():
    with pytest.raises(
        ValueError,
        match=r'layer \'embed\' gives \(25, 5, 8\).*pool="tokens" for \(B, T, D\), or a func',
    ):
        nc.measure(TOKEN_NET, batches(TOKENS))
    recurrent = Net(
        lambda net, x: net.out(net.rnn(x)[0][:, -1]),
        rnn=nn.GRU(8, 8, batch_first=True),
        out=nn.Linear(8, K),
    )
    with pytest.raises(ValueError, match=r"layer 'rnn' gives a tuple"):
        nc.measure(recurrent, batches(TOKENS))
    table = nc.measure(recurrent, batches(TOKENS), pool=lambda given: given[0][:, -1])
    assert values(table, "rnn")["nc1_cdnv"] == pytest.approx(values(table, "out.input")["nc1_cdnv"])


def test_a_first_axis_that_is_not_the_batch_is_refused():
    net = Net(
        lambda net, x: net.out(net.swap(x.mT).mT[:, :8]),
        swap=nn.Linear(25, 25),
        out=nn.Linear(8, K),
    )
    with pytest.raises(
        ValueError,
        match=r"layer 'swap' gives \(8, 25\), and not \(B, d\) features of the 25 samples",
    ):
        nc.measure(net, [(normal(25, 8), LABELS[:25])])


def test_logits_that_are_no_rows_of_classes_are_refused():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, K))
    with pytest.raises(
        ValueError, match=r"classifier '1' gives \(25, 5, 4\), and not logits \(25, 4\)"
    ):
        nc.measure(net, batches(TOKENS), pool="tokens")


def test_networks_without_linear_and_with_one_logit_are_asked_about():
    with pytest.raises(
        ValueError, match=r"no nn\.Linear: name its classifier, or pass classifier=None"
    ):
        nc.measure(nn.Sequential(nn.Conv2d(1, K, 8), nn.Flatten()), batches(IMAGES))
    with pytest.raises(ValueError, match=r"has 1 rows, and the labels have 2 classes"):
        nc.measure(nn.Sequential(nn.Linear(7, 1)), batches(ROWS, LABELS % 2))


def test_a_layer_that_some_batches_do_not_call_is_refused():
    net = Net(
        lambda net, x: net.out(net.a(x) if len(x) == 25 else x),
        a=nn.Linear(7, 7),
        out=nn.Linear(7, K),
    )
    with pytest.raises(ValueError, match="layer 'a' is not called in every batch"):
        nc.measure(net, batches(ROWS))
