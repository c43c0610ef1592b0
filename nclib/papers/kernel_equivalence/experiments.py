"""The runs of Ling et al.'s Figure 3."""

import dataclasses
from collections.abc import Callable

from nclib.config import DataConfig, RunConfig, SolverConfig, StoredConfig
from nclib.papers.kernel_equivalence.activations import coefficients, explicit_coefficients
from nclib.papers.kernel_equivalence.equivalents import match_htanh, match_leaky_relu
from nclib.papers.kernel_equivalence.networks import ShallowConfig, ShallowModelConfig, ShallowTrainConfig
from nclib.profiles import PROFILES, Profile, classifiers, model_config


def shallow_models(width: int, sigma_a2: float = 0.2) -> list[ShallowModelConfig]:
    """The six arms of Ling et al.'s Figure 3 at one width, matched for τ_0 = 1. The numbers are rounded, so that the
    identity of a run does not depend on the last bits of a machine."""
    deq = dict(sigma_a2=sigma_a2, solver=SolverConfig(method="fixed_point", tol=1e-4, max_steps=60))
    relu, pair = "relu", match_leaky_relu(sigma_a2)[-1]
    shifts = [explicit_coefficients(pair[:depth]).bias for depth in (1, 2)]
    numbers = {
        "tanh_deq": (),
        "h_tanh_enn": match_htanh(sigma_a2),
        "tanh_enn": (),
        "relu_deq": (coefficients(relu, sigma_a2).bias,),
        "l_relu_enn": (pair[0].a, pair[0].b, shifts[0], pair[1].a, pair[1].b, shifts[1]),
        "relu_enn": tuple(explicit_coefficients([relu] * depth).bias for depth in (1, 2)),
    }
    rounded = {kind: tuple(float(f"{value:.9g}") for value in values) for kind, values in numbers.items()}
    return [
        ShallowModelConfig(kind=kind, width=width, numbers=rounded[kind], **(deq if kind.endswith("deq") else {}))
        for kind in numbers
    ]


def _fig3(profile: Profile) -> list[StoredConfig]:
    """Every arm, width and seed; with recipe "paper" as in the released scripts, the readout alone."""
    sizes = dict(n_max=profile.images_per_class, test_per_class=profile.test_images_per_class)
    images = DataConfig(dataset=profile.grey_dataset, **sizes)
    train = ShallowTrainConfig(readout_epochs=100, epochs=0, batch_size=128, lr=1.0)
    if profile.recipe != "paper":
        epochs = dict(readout_epochs=profile.shallow_readout, epochs=profile.shallow_epochs)
        train = ShallowTrainConfig(**epochs, batch_size=profile.batch_size, lr=profile.shallow_lr)
    encoders: list[RunConfig | None] = [None] * profile.seeds
    if profile.inputs == "resnet18":
        resnet = dataclasses.replace(profile, width=PROFILES[profile.name].width, epochs=PROFILES[profile.name].epochs)
        encoders = list(classifiers(resnet, images, [model_config(resnet, "explicit")]))
    return [
        ShallowConfig(data=images, model=model, train=train, encoder=encoders[seed], seed=seed, profile=profile.name)
        for seed in range(profile.seeds)
        for width in profile.shallow_widths
        for model in shallow_models(width)
    ]


EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {"kernel_equivalence/fig3": _fig3}
PARTS = [("kernel_equivalence", "Ling et al.: equivalent kernels")]
