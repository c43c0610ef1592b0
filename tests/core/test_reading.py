"""What a network may do while it is read: memory used again, modes that act, calls that fail, a head out of sight."""

import warnings

import numpy as np
import pytest
import torch
from problems import Net
from problems import single as normal
from torch import nn
from torch.nn import functional as F

import nclib as nc

K = 3
LABELS = torch.arange(60) % K


X = normal(60, 8) + normal(K, 8, seed=1)[LABELS]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, K))


@pytest.mark.parametrize("kind", [lambda b: b, lambda b: b.numpy()], ids=["torch", "numpy"])
def test_a_loader_may_write_every_batch_into_the_same_memory(kind):
    def reused():
        x, labels = torch.empty(20, 8), torch.empty(20, dtype=torch.long)
        for i in range(0, 60, 20):
            x.copy_(X[i : i + 20]), labels.copy_(LABELS[i : i + 20])
            yield x, kind(labels)

    net, own = network(), list(zip(X.split(20), LABELS.split(20), strict=True))
    assert torch.equal(nc.features(net, reused()).labels, LABELS)
    assert nc.measure(net, reused()).equals(nc.measure(net, own))


class Merging(nn.Linear):
    """As an adapter that is added to the weight in evaluation mode and taken out in training mode."""

    def __init__(self):
        super().__init__(8, 8)
        self.adapter, self.merged = nn.Parameter(torch.ones(8, 8)), False

    def train(self, mode=True):
        if mode == self.merged:
            self.weight.data += -self.adapter if mode else self.adapter
            self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        return super().forward(x) if self.merged else super().forward(x) + x @ self.adapter.T


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("root", [True, False])
def test_what_a_change_of_mode_does_is_undone(root, own):
    shared = nn.Dropout()
    net = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared), Merging(), nn.Linear(8, K)).train(root)
    net[1].training = not root  # a flag of one module, under which another has its own
    net[2].train(own)
    weight, modes = net[2].weight.clone(), [m.training for m in net.modules()]
    nc.measure(net, [(X, LABELS)])
    assert [m.training for m in net.modules()] == modes and net[2].merged is not own
    torch.testing.assert_close(net[2].weight, weight)


def test_a_block_that_differs_in_small_features_alone_is_listed():
    def scale(factor):
        return Net(lambda _, h: torch.cat([h[:, :1], h[:, 1:] * factor], 1), identity=nn.Identity())

    blocks = nn.Sequential(scale(5.0), scale(0.01), scale(1.0))
    parts = {"stem": nn.Linear(8, 8), "blocks": blocks, "head": nn.Linear(9, K)}
    net = Net(lambda net, x: net.head(net.blocks(torch.cat([3e6 + x[:, :1], net.stem(x)], 1))), **parts)
    table = nc.measure(net, [(X[:59], LABELS[:59]), (X[59:], LABELS[59:])])
    assert list(table["layer"].unique()) == ["stem", "blocks.0", "head.input"]


def test_logits_that_are_nan_are_refused_as_by_the_report():
    net = Net(lambda net, x: net.head(x).index_fill(0, torch.arange(5), torch.nan), head=nn.Linear(8, K))
    with pytest.raises(ValueError, match="logits has NaN or infinite values in 5 of 60 rows"):
        nc.measure(net, [(X, LABELS)])
    with pytest.raises(ValueError, match="logits has NaN or infinite values in 5 of 60 rows"):
        nc.nc_report(*nc.features(net, [(X, LABELS)]))


def solved(*factors):
    """Its equilibrium layer solves negative numbers alone."""

    def does(net, x):
        h = net.stem(x)
        for factor in factors:
            h = net.deq(factor * h.abs())
        return net.head(h)

    cell, solver = lambda z, x: torch.where(x > 0, 1.5, 0.1) * z + x, nc.FixedPointIteration(max_steps=8)
    deq = nc.DEQ(cell, solver, return_solution=False, on_failure="ignore")
    return Net(does, deq=deq, stem=nn.Linear(8, 8), head=nn.Linear(8, K))


def test_rows_that_did_not_converge_are_counted_at_each_call():
    net = solved(1.0, -1e-3)
    with pytest.warns(UserWarning, match=r"'deq' did not converge on 60 of 120 rows"):
        nc.measure(net, [(X[:30], LABELS[:30]), (X[30:], LABELS[30:])], "head.input", second_pass=True)
    idle = solved()
    idle.deq(X.abs())
    nc.measure(idle, [(X, LABELS)], "head.input")  # its solve of before counts for nothing
    assert not any(m._forward_hooks for m in (*net.modules(), *idle.modules()))
    net.deq.on_failure = "raise"
    with pytest.raises(nc.ForwardNotConverged):
        nc.measure(net, [(X, LABELS)], "head.input")


def test_a_second_pass_over_other_features_is_refused():
    class Scaled:
        factor = 1.0

        def __iter__(self):
            self.factor *= 1.1
            return iter([(self.factor * X, LABELS)])

    with pytest.raises(ValueError, match="gave other samples the second time"):
        nc.measure(network(), Scaled(), second_pass=True)
    unlike = LABELS[LABELS > 0]  # class 0 is absent
    with pytest.warns(nc.metrics.EmptyClassWarning):
        nc.measure(network(), [(X[LABELS > 0], unlike)], second_pass=True)


def test_labels_may_be_of_any_integer_type():
    data = X, LABELS
    expected = nc.measure(network(), [data], test=[data])
    for labels in (LABELS.numpy().astype(np.uint16), LABELS.to(torch.uint64)):
        assert nc.measure(network(), [(X, labels)], test=[(X, labels)]).equals(expected)


@pytest.mark.parametrize("call", ["forward", "functional", "parameter"])
def test_a_head_that_no_hook_sees_is_told(call):
    def does(net, x):
        h = net.stem(x)
        return net.head.forward(h) if call == "forward" else F.linear(h, next(net.head.parameters()))

    head = nn.Linear(8, K)
    net = Net(does, stem=nn.Linear(8, 8), head=nn.ParameterList([head.weight]) if call == "parameter" else head)
    with pytest.warns(UserWarning, match="no classifier was found"):
        nc.measure(net, [(X, LABELS)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nc.measure(net, [(X, LABELS)], classifier=None)
    if call != "parameter":
        with pytest.raises(ValueError, match="not every batch calls the classifier 'head' as a module"):
            nc.measure(net, [(X, LABELS)], classifier="head")
