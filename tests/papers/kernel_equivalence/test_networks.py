"""Shallow networks: their features have the kernels, and what they are trained by."""

import typing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nclib.config import ConfigError, DataConfig, RunConfig, run_id
from nclib.papers import kernel_equivalence as ke
from nclib.papers.kernel_equivalence import networks
from nclib.papers.kernel_equivalence.experiments import shallow_models
from nclib.papers.kernel_equivalence.networks import (
    ShallowConfig,
    ShallowNetwork,
    ShallowTrainConfig,
)
from nclib.profiles import experiment
from nclib.runs import Job, ensure_runs
from nclib.store import default_store, load_run

KINDS = typing.get_args(networks.ShallowKind)
CPU = torch.device("cpu")


def model_of(kind, width):
    return next(model for model in shallow_models(width) if model.kind == kind)


def config_of(kind="tanh_deq", width=6, **changes):
    options = {"readout_epochs": 4, "epochs": 2, "batch_size": 32} | changes
    images = DataConfig(n_max=20, test_per_class=10)
    train = ShallowTrainConfig(**options)
    return ShallowConfig(data=images, model=model_of(kind, width), train=train, profile="smoke")


def trained(config, state=None):
    """The result of a run, and the states that it would have gone on from."""
    states = []

    def save(state):
        weights = {name: value.clone() for name, value in state["net"].items()}
        states.append(state | {"net": weights})

    checkpoint = SimpleNamespace(load=lambda: state, save=save)
    job = Job(None, None, CPU, lambda *_: None, checkpoint)
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
    if isinstance(layers, str):
        exact = ke.implicit_ck(x, layers, 0.2)
    else:
        exact = ke.explicit_kernels(x, layers)[0]
    mean = np.zeros_like(exact)
    for seed in range(8):
        net = ShallowNetwork(model_of(kind, 1200), 25, 3, seed)
        with torch.no_grad():
            z, _ = net.features(torch.tensor(x.T, dtype=torch.float32))
        mean += (z @ z.T).double().numpy() / 8
    assert ke.spectral_norm(mean - exact) < 0.09 * ke.spectral_norm(exact)


def test_arms_of_one_seed_share_their_weights():
    nets = {kind: ShallowNetwork(model_of(kind, 7), 7, 3, seed=4) for kind in KINDS}
    for net in nets.values():
        assert torch.equal(net.inputs, nets["tanh_enn"].inputs)
        assert not net.readout.any()
    matrix = nets["relu_enn"].matrix
    assert torch.equal(nets["l_relu_enn"].matrix, matrix)
    assert torch.equal(nets["tanh_deq"].deq.cell.matrix, matrix)
    assert torch.equal(nets["relu_deq"].deq.cell.matrix, matrix)
    assert not torch.equal(nets["tanh_enn"].inputs, matrix)


def test_the_readout_is_the_softmax_regression_that_autograd_gives():
    config = config_of("tanh_enn", readout_epochs=3)
    x, labels = networks.load_inputs(config, None, CPU)["train"]
    net = ShallowNetwork(config.model, 64, 10, 0)
    networks.fit_readout(net, x, labels, config)
    other = ShallowNetwork(config.model, 64, 10, 0)
    optimiser = torch.optim.SGD([other.readout], lr=config.train.lr)
    for epoch in range(3):
        for batch in networks.order_of(200, 32, 0, -1 - epoch, CPU):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(other(x[batch]), labels[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(net.readout, other.readout, rtol=1e-4, atol=1e-5)
    assert torch.equal(net.inputs, other.inputs)


def test_each_epoch_has_an_order_of_its_own_and_sees_each_image_once():
    orders = [torch.cat([*networks.order_of(50, 8, 0, epoch, CPU)]) for epoch in (-2, -1, 0, 1, 2)]
    assert all(order.sort().values.tolist() == list(range(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_and_says_how_the_equilibria_went(kind):
    history = trained(config_of(kind, 24, readout_epochs=40, epochs=6))[0].tables["history"]
    values = history.set_index(["split", "metric"])["value"]
    assert values["train", "accuracy_readout"] > 0.5
    assert values["train", "accuracy_all"] > values["train", "accuracy_readout"]
    assert values["train", "loss_all"] < values["train", "loss_readout"]
    converged = history.query("metric == 'solver_converged'")["value"]
    assert len(converged) == (4 if kind in networks.DEQS else 0)
    assert (converged == 1).all()


def test_an_interrupted_run_ends_with_the_same_bits():
    config = config_of("relu_deq", epochs=3)
    whole, states = trained(config)
    resumed, _ = trained(config, states[0])
    assert resumed.facts["resumed"] == 1
    assert torch.equal(whole.weights["readout"], resumed.weights["readout"])
    assert whole.tables["history"].equals(resumed.tables["history"])


def test_features_of_a_resnet_take_the_place_of_pixels():
    overrides = {"images_per_class": 8, "test_images_per_class": 4, "epochs": 1}
    configs = experiment("kernel_equivalence/fig3", "smoke", inputs="resnet18", **overrides)
    config = next(config for config in configs if config.model.kind == "tanh_enn")
    assert isinstance(config.encoder, RunConfig)
    assert config.encoder.model.kind == "explicit"
    ensure_runs([config])
    assert load_run(config).provenance["facts"]["inputs"] == 8 * config.encoder.model.width
    assert default_store().has(run_id(config.encoder))
    assert f"features of a ResNet-18 of width {config.encoder.model.width}" in ke.describe_shallow(
        configs
    )


def test_a_loss_that_is_nan_asks_for_a_smaller_rate():
    config = config_of("tanh_enn")
    _, states = trained(config)
    states[0]["net"]["readout"].fill_(float("nan"))
    with pytest.raises(ConfigError, match="use a smaller lr"):
        trained(config, states[0])
