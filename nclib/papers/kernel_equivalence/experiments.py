"""The runs of Ling et al.'s Figure 3."""

import dataclasses
from collections.abc import Callable

from nclib.config import DataConfig, RunConfig, SolverConfig, StoredConfig
from nclib.papers.kernel_equivalence.kernels import coefficients, explicit_coefficients
from nclib.papers.kernel_equivalence.matching import match_htanh, match_leaky_relu
from nclib.papers.kernel_equivalence.networks import (
    DEQS,
    ShallowConfig,
    ShallowModelConfig,
    ShallowTrainConfig,
)
from nclib.profiles import PROFILES, Profile, classifiers, model_config


def shallow_models(width: int, sigma_a2: float = 0.2) -> list[ShallowModelConfig]:
    """The six arms of Ling et al.'s Figure 3 at one width, matched for τ_0 = 1.

    The numbers are rounded, so that the identity of a run does not depend on the last bits of a
    machine.
    """
    first, second = match_leaky_relu(sigma_a2)[-1]
    first_shift = explicit_coefficients([first]).bias
    second_shift = explicit_coefficients([first, second]).bias
    relu_shift = explicit_coefficients(["relu"]).bias
    second_relu_shift = explicit_coefficients(["relu", "relu"]).bias
    numbers = {
        "tanh_deq": (),
        "h_tanh_enn": match_htanh(sigma_a2),
        "tanh_enn": (),
        "relu_deq": (coefficients("relu", sigma_a2).bias,),
        "l_relu_enn": (first.a, first.b, first_shift, second.a, second.b, second_shift),
        "relu_enn": (relu_shift, second_relu_shift),
    }
    solver = SolverConfig(method="fixed_point", tol=1e-4, max_steps=60)
    models = []
    for kind, values in numbers.items():
        rounded = tuple(float(f"{value:.9g}") for value in values)
        model = ShallowModelConfig(kind=kind, width=width, numbers=rounded)
        if kind in DEQS:
            model = model.replace(sigma_a2=sigma_a2, solver=solver)
        models.append(model)
    return models


def figure3(profile: Profile) -> list[StoredConfig]:
    """Every arm, width and seed; with recipe "paper" the readout alone, as in its scripts."""
    images = DataConfig(
        dataset=profile.grey_dataset,
        n_max=profile.images_per_class,
        test_per_class=profile.test_images_per_class,
    )
    if profile.recipe == "paper":
        train = ShallowTrainConfig(readout_epochs=100, epochs=0, batch_size=128, lr=1.0)
    else:
        train = ShallowTrainConfig(
            readout_epochs=profile.shallow_readout,
            epochs=profile.shallow_epochs,
            batch_size=profile.batch_size,
            lr=profile.shallow_lr,
        )
    encoders: list[RunConfig | None] = [None] * profile.seeds
    if profile.inputs == "resnet18":
        preset = PROFILES[profile.name]
        resnet = dataclasses.replace(profile, width=preset.width, epochs=preset.epochs)
        encoders = list(classifiers(resnet, images, [model_config(resnet, "explicit")]))
    configs = []
    for seed in range(profile.seeds):
        for width in profile.shallow_widths:
            for model in shallow_models(width):
                config = ShallowConfig(
                    data=images,
                    model=model,
                    train=train,
                    encoder=encoders[seed],
                    seed=seed,
                    profile=profile.name,
                )
                configs.append(config)
    return configs


EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {
    "kernel_equivalence/fig3": figure3
}
PARTS = [("kernel_equivalence", "Ling et al.: equivalent kernels")]
