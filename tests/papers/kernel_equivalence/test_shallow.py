"""Fully connected DEQs and shallow networks: their kernels, and what they are trained by."""

import typing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nclib.config import DataConfig, RunConfig, run_id
from nclib.papers import kernel_equivalence as ke
from nclib.papers.kernel_equivalence import networks
from nclib.papers.kernel_equivalence.experiments import shallow_models
from nclib.papers.kernel_equivalence.networks import ShallowConfig, ShallowNetwork, ShallowTrainConfig
from nclib.profiles import experiment
from nclib.runs import Job, ensure_runs
from nclib.store import default_store, load_run

KINDS = typing.get_args(networks.ShallowKind)
SMALL = DataConfig(n_max=20, test_per_class=10)


def _models(width):
    return {model.kind: model for model in shallow_models(width)}


def _config(kind="tanh_deq", width=6, seed=0, data=SMALL, **train):
    protocol = ShallowTrainConfig(**{"readout_epochs": 4, "epochs": 2, "batch_size": 32} | train)
    return ShallowConfig(data=data, model=_models(width)[kind], train=protocol, seed=seed, profile="smoke")


def _trained(config, state=None):
    """The run, and the states that it would have gone on from."""
    states = []
    keep = lambda now: states.append({**now, "net": {name: value.clone() for name, value in now["net"].items()}})  # noqa: E731
    job = Job(None, None, torch.device("cpu"), lambda *_: None, SimpleNamespace(load=lambda: state, save=keep))
    return networks.train_shallow(config, job), states


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("h_tanh_enn", [ke.HardTanh(*ke.match_htanh(0.2))]),
        ("tanh_enn", ["tanh"]),
        ("l_relu_enn", ke.match_leaky_relu(0.2)[1]),
        ("relu_enn", ["relu", "relu"]),
        ("tanh_deq", "tanh"),
        ("relu_deq", "relu"),
    ],
)
def test_features_of_wide_networks_have_the_kernels(kind, layers):
    x = ke.gaussian_mixture(20, 25)[0]
    x /= ke.empirical_tau0(x)
    exact = ke.implicit_ck(x, layers, 0.2) if isinstance(layers, str) else ke.explicit_kernels(x, layers)[0]
    found = np.zeros_like(exact)
    for seed in range(8):
        net = ShallowNetwork(_models(1500)[kind], 25, 3, seed)
        with torch.no_grad():
            z, _ = net.features(torch.tensor(x.T, dtype=torch.float32))
        found += (z @ z.T).double().numpy() / 8
    assert ke.spectral_norm(found - exact) < 0.08 * ke.spectral_norm(exact)


def test_arms_of_one_seed_share_their_weights():
    nets = [ShallowNetwork(model, 7, 3, 4) for model in _models(7).values()]
    assert all(torch.equal(net.inputs, nets[0].inputs) for net in nets)
    matrices = [net.deq.cell.matrix if net.deq else net.matrix for net in nets if net.deq or net.matrix is not None]
    assert [torch.equal(each, matrices[0]) for each in (*matrices, nets[0].inputs)] == [True] * 4 + [False]


def test_the_readout_is_the_softmax_regression_that_autograd_gives():
    config = _config("tanh_enn", readout_epochs=3)
    x, labels = networks.load_inputs(config, None, torch.device("cpu"))["train"]
    net, other = (ShallowNetwork(config.model, 64, 10, 0) for _ in range(2))
    networks._fit_readout(net, x, labels, config)
    optimiser = torch.optim.SGD([other.readout], lr=config.train.lr)
    for epoch in range(3):
        for batch in networks._order(200, 32, 0, -1 - epoch, torch.device("cpu")):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(other(x[batch]), labels[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(net.readout, other.readout, rtol=1e-4, atol=1e-5)
    assert torch.equal(net.inputs, other.inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_and_says_how_the_equilibria_went(kind):
    run, _ = _trained(_config(kind, 24, readout_epochs=40, epochs=6))
    values = run.tables["history"].set_index(["split", "metric"])["value"]
    assert values["train", "accuracy_readout"] > 0.5
    assert values["train", "accuracy_all"] > values["train", "accuracy_readout"]
    assert values["train", "loss_all"] < values["train", "loss_readout"]
    solved = run.tables["history"].query("metric == 'solver_converged'")
    assert len(solved) == (4 if kind.endswith("deq") else 0) and (solved["value"] == 1).all()


def test_an_interrupted_run_ends_with_the_same_bits():
    config = _config("relu_deq", epochs=3)
    whole, states = _trained(config)
    resumed, _ = _trained(config, states[0])
    assert resumed.facts["resumed"] == 1
    assert torch.equal(whole.weights["readout"], resumed.weights["readout"])
    assert whole.tables["history"].equals(resumed.tables["history"])


def test_features_of_a_resnet_take_the_place_of_pixels():
    overrides = {"inputs": "resnet18", "images_per_class": 8, "test_images_per_class": 4, "epochs": 1}
    configs = experiment("kernel_equivalence/fig3", "smoke", **overrides)
    tanh = next(config for config in configs if config.model.kind == "tanh_enn")
    assert isinstance(tanh.encoder, RunConfig) and tanh.encoder.model.kind == "explicit"
    ensure_runs([tanh])
    assert load_run(tanh).provenance["facts"]["inputs"] == 8 * tanh.encoder.model.width
    assert default_store().has(run_id(tanh.encoder))
