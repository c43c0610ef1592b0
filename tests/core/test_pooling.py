"""How feature maps become vectors, and which layers are found: maps with channels last, tokens, equilibria."""

import contextlib
import warnings

import pytest
import torch
from problems import Net
from torch import nn
from torch.nn import functional as F

import nclib as nc

K = 4
LABELS = torch.arange(60) % K


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


IMAGES = normal(60, 1, 16, 12)


def batches(x):
    return list(zip(x.split(25), LABELS.split(25), strict=True))


def channels_last():
    """As a Swin transformer: a strided convolution, then maps (B, H, W, D)."""

    def does(net, x):
        h = net.patch(x).permute(0, 2, 3, 1)
        for block in net.blocks:
            h = h + block(h)
        return net.head(h.mean((1, 2)))

    blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
    return Net(does, patch=nn.Conv2d(1, 6, 2, 2), blocks=blocks, head=nn.Linear(6, K))


def test_maps_with_channels_last_are_averaged_over_positions():
    net = channels_last()
    table = nc.measure(net, batches(IMAGES))
    assert set(table[table["metric"] == "dim"]["value"]) == {6} and table["layer"].nunique() == 4
    h = nc.features(net, batches(IMAGES), "blocks.0").h
    full = nc.features(net, batches(IMAGES), "blocks.0", lambda h: h.flatten(1)).h
    torch.testing.assert_close(h, full.reshape(len(h), -1, 6).mean(1))


def test_a_map_as_high_as_its_channels_is_read_by_the_nearest_block_that_shows_its_axis():
    square = batches(IMAGES[:, :, :12])
    conv = nn.Sequential(nn.Conv2d(1, 6, 2, 2), nn.ReLU())
    first = nn.Sequential(conv, nn.Flatten(2), Net(lambda _, x: x.mean(-1)), nn.Linear(6, K))
    for net, layer, axes in ((channels_last(), "blocks.0.2", (1, 2)), (first, "0.1", (2, 3))):
        h = nc.features(net, square, layer).h
        full = nc.features(net, square, layer, lambda h: h.flatten(1)).h
        torch.testing.assert_close(h, full.reshape(len(h), 6, 6, 6).mean(axes))
    own = Net(lambda net, x: F.conv2d(x, net.weight), weight=nn.Parameter(torch.ones(8, 1, 7, 3)))
    tokens = nn.Sequential(nn.Conv2d(1, 40, 2, 2), nn.Flatten(2))  # (B, 40, 48), where another has (B, 40, 40)
    turned = Net(lambda net, x: net.a(x).mT, a=nn.Linear(12, 7))
    same, rows = Net(lambda net, x: net.a(x).mT, a=nn.Linear(12, 16)), IMAGES[:, 0]
    branches = Net(lambda net, x: torch.cat([net.a(x)] * 2, 1), a=nn.Conv2d(1, 12, 1))
    for layer, x in ((own, IMAGES), (tokens, IMAGES[..., :10]), (turned, rows), (same, rows), (branches, IMAGES)):
        net = Net(lambda net, x: net.head(net.layer(x).flatten(1)[:, :10]), layer=layer, head=nn.Linear(10, K))
        with pytest.raises(ValueError, match=r"which may be .*: pass a function"):
            nc.features(net, batches(x), "layer")
    net = channels_last()
    net.blocks = nn.ModuleList([nn.Tanh()])  # between a convolution and a linear layer
    with pytest.raises(ValueError, match=r"\(25, 6, 6, 6\), which may be .*: pass a function"):
        nc.features(net, square, "blocks.0")


@pytest.mark.parametrize("times", [1, 2])
def test_a_map_as_high_as_another_convolution_has_channels_is_read_by_the_layer_before_or_asked_for(times):
    def forward(x):  # (B, 8, 6, 6) with channels last, where 8 and 6 are channels of convolutions
        h = net.act(net.patch(net.stem(x)).permute(0, 2, 3, 1)).mean((1, 2))
        return net.head(torch.cat([h] * times, 1))

    net = nn.Module()
    net.stem, net.patch, net.act = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 6, 2, 2), nn.Tanh()
    net.head, net.forward = nn.Linear(6 * times, K), forward
    if times == 2:  # no layer has six features
        with pytest.raises(ValueError, match=r"\(25, 8, 6, 6\), which may be .*: pass a function"):
            nc.features(net, batches(IMAGES), "act")
    else:
        by_hand = nc.features(net, batches(IMAGES), "act", lambda h: h.mean((1, 2))).h
        torch.testing.assert_close(nc.features(net, batches(IMAGES), "act").h, by_hand)


def test_tokens_after_a_convolution_have_their_features_last():
    parts = {"patch": nn.Conv1d(3, 6, 2, 2), "block": nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 6))}
    net = Net(lambda n, x: n.head(n.block(n.patch(x).transpose(1, 2)).mean(1)), **parts, head=nn.Linear(6, K))
    table = nc.measure(net, batches(normal(60, 3, 8)))
    assert table[table["metric"] == "dim"].set_index("layer")["value"].to_dict() == {"patch": 6, "head.input": 6}


def test_features_are_as_wide_as_a_recurrent_layer_gives_or_the_layer_before():
    rnn = Net(lambda net, x: net.lstm(x.mT)[0], lstm=nn.LSTM(8, 10, batch_first=True, bidirectional=True))
    turn, flat = Net(lambda _, x: x.permute(0, 2, 3, 1)), nn.Flatten()
    parts = {"enc": nn.Linear(3, 7), "act": nn.Tanh(), "dec": nn.Linear(7, K)}
    state_space = Net(lambda net, x: net.dec(net.act(net.enc(x).mT).mean(2)), **parts)
    for net, layer, x, axes in (
        (nn.Sequential(nn.Conv1d(3, 8, 1), rnn, flat, nn.Linear(160, K)), "1", normal(60, 3, 8), 1),
        (nn.Sequential(nn.Conv2d(1, 5, 2, 2), turn, flat, nn.Linear(240, K)), "1", IMAGES, (1, 2)),
        (state_space, "act", normal(60, 9, 3), 2),
    ):
        by_hand = nc.features(net, batches(x), layer, lambda h, axes=axes: h.mean(axes)).h
        torch.testing.assert_close(nc.features(net, batches(x), layer).h, by_hand)
    frames = Net(lambda net, x: net.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2]), conv=nn.Conv2d(1, 5, 2, 2))
    with pytest.raises(ValueError, match=r"\(25, 5, 5, 3, 4\), which may be .*: pass a function"):
        nc.features(nn.Sequential(frames, flat, nn.Linear(300, K)), batches(normal(60, 5, 1, 6, 8)), "0")


def test_sizes_that_two_axes_may_have_are_asked_for_and_one_axis_is_kept_for_every_batch():
    own = Net(lambda _, x: x.relu(), last_solution=None, normalized_shape=(8,), num_features=[3, 5])  # of either axis
    inside = Net(lambda net, x: net.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), conv=nn.Conv2d(8, 8, 1))
    biased = Net(lambda _, x: x.relu(), norm=nn.LayerNorm(8), heads=nn.Embedding(9, 6))  # as wide as the map
    turn = Net(lambda _, x: x.permute(0, 2, 3, 1))
    turning = type("Turning", (nn.LayerNorm,), {"forward": lambda _, x: x.movedim(1, -1).relu().movedim(-1, 1)})(8)
    for layer in (own, turning, turn, inside, biased):
        x = IMAGES if layer is biased else normal(60, 1, 16, 16)
        net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 8, 2, 2), layer), nn.Flatten(), nn.LazyLinear(K))
        with pytest.raises(ValueError, match=r"which may be .*: pass a function"):
            nc.features(net, batches(x), "0.1")
    net = nn.Sequential(nn.Conv1d(3, 6, 1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, K))
    loader = [(normal(25, 3, length), LABELS[:25]) for length in (9, 6, 12)]
    assert nc.features(net, loader, "1").h.shape == (75, 6)


def test_inputs_within_inputs_are_read_and_one_logit_is_of_no_layer_of_two():
    net = Net(lambda net, batch: net.fc(net.gate(batch["x"])), gate=nn.Linear(8, 2), fc=nn.Linear(2, 1))
    with pytest.warns(UserWarning, match="no classifier was found") as told:
        table = nc.measure(net, [(({"x": normal(60, 8)},), LABELS % 2)], num_classes=2)
    assert "order of the samples" not in str([w.message for w in told]) and "gate.input" not in set(table["layer"])


def _sorted_inside(net, x):
    order = x.sum(1).argsort()
    return net.fc(net.proj(x[order])[order.argsort()])


def _wants_order(net, x):
    assert x[0, 0] > x[-1, 0], "the first row is the longest"
    return net.fc(net.proj(x))


@pytest.mark.parametrize(
    ("does", "left"),
    [
        (lambda net, x: net.proj(x) @ net.other(net.prompts).T, ["other"]),  # K prompts in batches of K
        (_sorted_inside, ["proj"]),
        (lambda net, x: net.fc(net.proj(net.prompts @ x)), []),  # a graph of the samples
        (_wants_order, []),
    ],
)
def test_layers_whose_rows_are_not_the_samples_are_left_out(does, left):
    net = Net(does, **{name: nn.Linear(K, 8) for name in ("proj", "other")}, fc=nn.Linear(8, K), prompts=normal(K, K))
    x = normal(8, K, K).sort(1, descending=True).values
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = [(rows, LABELS[: len(rows)]) for rows in ([x[0, :1]] if does is _sorted_inside else []) + [*x]]
        layers = set(nc.measure(net, loader, classifier=None, num_classes=K)["layer"])
    assert str([w.message for w in told]).count("do not follow the order of the samples") == len(left)
    assert layers.isdisjoint(left) and ("proj" in layers) == ("proj" not in left)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_layer_that_gives_nested_tensors_is_left_out_and_a_head_of_tokens_is_named():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    lengths = torch.randint(2, 6, (60, 1), generator=torch.Generator().manual_seed(0))
    inputs = {"src": normal(60, 5, 8), "src_key_padding_mask": torch.arange(5)[None] >= lengths}
    with pytest.warns(UserWarning, match="gives a nested tensor"), contextlib.suppress(ValueError):
        nc.measure(net, [(inputs, LABELS)], classifier=None, num_classes=K)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    per_token = Net(lambda net, x: net.fc(net.layer(x)).mean(1), layer=layer, fc=nn.Linear(8, K))
    with pytest.warns(UserWarning, match="name it with classifier='fc'"):
        nc.measure(per_token, batches(normal(60, 5, 8)))


def test_an_equilibrium_layer_is_one_block():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
    cell = Net(lambda net, z, x: 0.3 * net.blocks[1](0.3 * net.blocks[0](z)) + x, blocks=blocks)
    parts = {"deq": nc.DEQ(cell, nc.Anderson(), return_solution=False), "out": nn.Linear(8, 6), "head": nn.Linear(6, K)}
    net = Net(lambda net, x: net.head(F.relu(net.out(net.deq(x)))), **parts)
    for layers in (None, "all"):
        table = nc.measure(net, batches(normal(60, 8)), layers)
        assert list(table["layer"].unique()) == ["deq", "out", "head.input"]
    outer = Net(lambda outer, x: outer.head(outer.n.deq(x) / 2), n=net, head=nn.Linear(8, K))
    with pytest.warns(UserWarning, match="no block is called, as n are not: name layers"):
        nc.measure(outer, batches(normal(60, 8)))
