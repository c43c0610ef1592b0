"""What each notebook needs, at each size, and how the missing part gets trained.

A profile is a size, an experiment a list of run configurations made from it, and `ensure_runs` returns their results
from the run store, training what is not there on whatever executor it is given.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch

from nclib import (
    data,
    imbalance,
    kernels,
    paths,
    probes,
    processes,
    provenance,
    regression,
    saliency,
    shallow,
    training,
)
from nclib.config import (
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    StoredConfig,
    TrainConfig,
    recipe,
    run_id,
    suggest,
)
from nclib.probes import ProbeConfig
from nclib.regression import RegressionConfig
from nclib.saliency import CamConfig
from nclib.shallow import ShallowConfig, ShallowModelConfig, ShallowTrainConfig
from nclib.store import DamageWarning, ReferenceStore, RunStore, StoredRun, identity_columns, stack, tidy

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Profile:
    """A size at which everything runs; the code path is the same for all.

    dataset, hundred_dataset : what stands for CIFAR-10 and CIFAR-100; an empty name leaves that column out ("not run")
    images_per_class : n_A; None means as many as the smallest class has. test_images_per_class : None means all
    seeds : the runs are repeated with seeds 0 … seeds−1
    hundred_tenths : K_A of the 100-class column of Tables 2–4, in tenths of the classes; the others read "not run"
    beyond : K_A in tenths and R of the notebooks beyond the paper
    equal_blocks : untied blocks that cost what an equilibrium costs here (`compute_in_blocks`, measured, rounded)
    recipe : name of the training protocol; epochs, batch_size, lr and log_every are set on top of it
    grey_dataset : what stands for MNIST in the fully connected networks of the sister paper
    shallow_widths, shallow_epochs, shallow_readout, shallow_lr : of those; epochs of all weights, of the readout alone
    inputs : of those networks, "pixels" or "resnet18", the features of the balanced explicit run of the same seed
    """

    name: str
    description: str
    dataset: str
    hundred_dataset: str
    width: int
    epochs: int
    batch_size: int
    lr: float
    seeds: int
    log_every: int
    images_per_class: int | None = None
    hundred_images_per_class: int | None = None
    test_images_per_class: int | None = None
    hundred_tenths: tuple[int, ...] = (3, 5, 7)
    beyond: tuple[int, float] = (5, 100.0)
    equal_blocks: int = 6
    recipe: str = "workable"
    grey_dataset: str = "digits"
    shallow_widths: tuple[int, ...] = (16, 32, 64, 256)
    shallow_epochs: int = 10
    shallow_readout: int = 100
    shallow_lr: float = 1.0
    inputs: str = "pixels"


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="smoke",
            description="a slice of digits and two epochs: tests, no science",
            dataset="digits",
            hundred_dataset="",
            width=2,
            epochs=2,
            batch_size=32,
            lr=0.05,
            seeds=1,
            log_every=1,
            images_per_class=20,
            test_images_per_class=10,
            beyond=(3, 10.0),
            shallow_widths=(4, 8),
            shallow_epochs=1,
            shallow_readout=3,
        ),
        Profile(
            name="quick",
            description="scikit-learn's 8×8 digits and pairs of them, narrow ResNet-18: real training on a laptop",
            dataset="digits",
            hundred_dataset="digit_pairs",
            width=16,
            epochs=20,
            batch_size=64,
            lr=0.05,
            seeds=3,
            log_every=2,
            hundred_images_per_class=16,
            hundred_tenths=(5,),
            beyond=(3, 10.0),  # at R = 100 a minority class would be a single digit
            equal_blocks=5,
        ),
        Profile(
            name="lite",
            description="real images, narrow ResNet-18, fewer images and epochs: hours on a CPU, minutes on a GPU",
            dataset="cifar10",
            hundred_dataset="",
            width=16,
            epochs=30,
            batch_size=64,
            lr=0.05,
            seeds=2,
            log_every=5,
            images_per_class=500,
            test_images_per_class=200,
            grey_dataset="mnist",
            shallow_widths=(32, 128, 512),
            shallow_epochs=5,
        ),
        Profile(
            name="paper",
            description="CIFAR-10 and CIFAR-100, ResNet-18, 100 epochs, three seeds: the paper's scale, on a GPU",
            dataset="cifar10",
            hundred_dataset="cifar100",
            width=64,
            epochs=100,
            batch_size=128,
            lr=0.1,
            seeds=3,
            log_every=5,
            grey_dataset="mnist",
            shallow_widths=(32, 128, 256, 1024, 4096),
            shallow_epochs=20,
        ),
    )
}


def get_profile(name: str) -> Profile:
    """The profile of that name; raises `ConfigError` with the nearest name for another."""
    if name not in PROFILES:
        raise ConfigError(suggest(name, PROFILES, "profile"))
    return PROFILES[name]


OVERRIDES: dict[str, type] = {
    "dataset": str,
    "epochs": int,
    "width": int,
    "seeds": int,
    "images_per_class": int,
    "test_images_per_class": int,
    "batch_size": int,
    "lr": float,
    "recipe": str,
    "inputs": str,
}
"""Notebook parameters that change which runs are made; 0 or "" stands for the profile's own value."""


def override(profile: Profile, **values: Any) -> Profile:
    """The profile with some settings changed; 0 and "" leave the profile's own.

    A `dataset` other than the profile's replaces the 10-class data set and leaves the 100-class column out, because
    nothing is known about a second one. Naming the profile's 100-class data set leaves the 10-class column out.

    Raises
    ------
    ConfigError
        For an unknown name (with the nearest one), a wrong type or an impossible number.
    """
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in OVERRIDES:
            raise ConfigError(suggest(name, OVERRIDES, "parameter"))
        wanted = OVERRIDES[name]
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            raise ConfigError(f"parameter {name} must be {wanted.__name__}, got {value!r}")
        if wanted is not str and value < 0:
            raise ConfigError(f"parameter {name} must be positive, or 0 for the profile's own, got {value}")
        if value:
            changes[name] = value
    if "dataset" in changes:
        name = data.resolve_dataset(changes["dataset"])
        if name == profile.hundred_dataset:
            changes |= {"dataset": ""}
        elif name != profile.dataset:
            changes |= {"dataset": name, "hundred_dataset": ""}
        changes |= {"grey_dataset": name}
    for name, own in (("epochs", "shallow_epochs"), ("lr", "shallow_lr")):
        if name in changes:
            changes[own] = changes[name]
    if "width" in changes:
        changes["shallow_widths"] = (changes["width"],)
    if changes.get("inputs", "pixels") not in INPUTS:
        raise ConfigError(suggest(changes["inputs"], INPUTS, "kind of inputs"))
    if "images_per_class" in changes:
        changes["hundred_images_per_class"] = changes["images_per_class"]
    changed = dataclasses.replace(profile, **changes)
    if "lr" in changes and changed.recipe == "paper":
        raise ConfigError("recipe 'paper' states its own lr (0.0001); leave lr out, or use recipe 'workable'")
    return changed


ARMS = ("explicit", "deq")
INPUTS = ("pixels", "resnet18")


def _images(profile: Profile, hundred: bool = False, **imbalance: Any) -> DataConfig | None:
    """The profile's 10-class data set, or its 100-class one, at some imbalance; None when it has no such data set."""
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    return DataConfig(
        dataset=dataset,
        n_max=profile.hundred_images_per_class if hundred else profile.images_per_class,
        test_per_class=profile.test_images_per_class,
        **imbalance,
    )


def _step(profile: Profile, tenths: int, ratio: float, hundred: bool = False, **options: Any) -> DataConfig | None:
    dataset = profile.hundred_dataset if hundred else profile.dataset
    if not dataset:
        return None
    step = {"imbalance": "step", "num_majority": majority_of(dataset, tenths), "ratio": float(ratio)}
    return _images(profile, hundred, **step, **options)


def _model(profile: Profile, kind: str, **options: Any) -> ModelConfig:
    return ModelConfig(kind=kind, width=profile.width, **options)


def _runs(
    profile: Profile, images: DataConfig | None, models: Sequence[ModelConfig] = (), loss: str = "cross_entropy"
) -> list[RunConfig]:
    """Every model, both arms if none is named, with every seed on these images."""
    train = recipe(
        profile.recipe,
        epochs=profile.epochs,
        batch_size=profile.batch_size,
        log_every=profile.log_every,
        loss=loss,
        **({"lr": profile.lr} if profile.recipe == "workable" else {}),
    )
    models = models or [_model(profile, kind) for kind in ARMS]
    return [
        RunConfig(data=images, model=model, train=train, seed=seed, profile=profile.name)
        for seed in range(profile.seeds if images else 0)
        for model in models
    ]


class Outline(NamedTuple):
    """What planning needs to know of a data set: classes, training images in the smallest class, height and width."""

    classes: int
    per_class: int
    size: tuple[int, int]


_ORIGINALS = {
    "cifar10": Outline(10, 5000, (32, 32)),
    "cifar100": Outline(100, 500, (32, 32)),
    "mnist": Outline(10, 5421, (28, 28)),
    "fashion_mnist": Outline(10, 6000, (28, 28)),
}
"""Known without the files, so that a plan can be made before anything is downloaded."""


@functools.cache
def outline(dataset: str) -> Outline:
    """Outline of a data set; a folder must have been decoded (`nclib.data.resolve_dataset` does it), unless reference
    results were made from it."""
    if dataset in _ORIGINALS:
        return _ORIGINALS[dataset]
    facts = data.describe(dataset)
    if not facts["present"]:
        known = reference_store().datasets().get(dataset)
        if known is not None:
            return Outline(known["classes"], known["per_class"], tuple(known["size"]))
        data.load_dataset(dataset, "train")  # says what is missing and what to type
    return Outline(facts["classes"], min(facts["train"]), tuple(facts["shape"][1:]))


def majority_of(dataset: str, tenths: int) -> int:
    """K_A for `tenths` tenths of a data set's classes: the paper's K_A = 3, 5, 7 of 10 and 30, 50, 70 of 100."""
    classes = outline(dataset).classes
    return min(max(round(classes * tenths / 10), 1), classes - 1)


RATIOS = (10.0, 50.0, 100.0)
"""The paper's R."""


def _balanced(profile: Profile) -> list[RunConfig]:
    return _runs(profile, _images(profile))


def _table1(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + _runs(profile, _images(profile, hundred=True))


def _table(profile: Profile, tenths: int) -> list[RunConfig]:
    """Tables 2–4: one K_A, every R, both data sets. Where so few images are left that a larger R draws the same ones,
    it is not run again."""
    runs, seen = [], set()
    for hundred in (False, True) if tenths in profile.hundred_tenths else (False,):
        for ratio in RATIOS:
            images = _step(profile, tenths, ratio, hundred)
            drawn = images and (images.dataset, tuple(class_counts(images).tolist()))
            if drawn not in seen:
                runs += _runs(profile, images)
            seen.add(drawn)
    return runs


def _fig3(profile: Profile) -> list[RunConfig]:
    return _balanced(profile) + _runs(profile, _step(profile, 5, 100))


def _controls(profile: Profile) -> list[RunConfig]:
    kinds = ("explicit", "deq", "explicit_matched", "weight_tied")
    models = [_model(profile, kind) for kind in kinds]
    models.append(_model(profile, "explicit_flops", num_blocks=profile.equal_blocks))
    return _runs(profile, _step(profile, *profile.beyond), models)


def _nc_definitions(profile: Profile) -> list[RunConfig]:
    """Output stages: ReLU in both arms; GroupNorm, the multiscale cell, as an equilibrium and applied once; BatchNorm1d
    on the features of both arms."""
    models = [_model(profile, kind) for kind in ARMS]
    models += [_model(profile, kind, cell="mdeq") for kind in ("explicit_matched", "deq")]
    models += [_model(profile, kind, feature_norm="batchnorm") for kind in ARMS]
    return _runs(profile, _step(profile, *profile.beyond), models)


REMEDIES: dict[str, dict[str, str]] = {
    "none": {},
    "balanced softmax": {"loss": "balanced_softmax"},
    "class-balanced weights": {"loss": "class_balanced"},
    "LDAM-DRW": {"loss": "ldam_drw", "head": "cosine"},
    "fixed ETF classifier": {"head": "etf"},
}
"""Names of the trainings of `remedies`, with their loss and classifier. Logit adjustment needs none of its own."""


def _remedies(profile: Profile) -> list[RunConfig]:
    images = _step(profile, *profile.beyond)
    return [
        run
        for remedy in REMEDIES.values()
        for run in _runs(
            profile,
            images,
            [_model(profile, kind, head=remedy.get("head", "linear")) for kind in ARMS],
            loss=remedy.get("loss", "cross_entropy"),
        )
    ]


def _long_tail(profile: Profile) -> list[RunConfig]:
    return [run for ratio in RATIOS for run in _runs(profile, _images(profile, imbalance="exponential", ratio=ratio))]


def _seeds_and_subsets(profile: Profile) -> list[RunConfig]:
    """Three ways to repeat a setting: other images, initial weights and order (as everywhere else); other weights and
    order alone, on the images of seed 0; and other majority classes besides."""
    everything = _runs(profile, _step(profile, *profile.beyond))
    same_images = _runs(profile, _step(profile, *profile.beyond, subset_seed=0))
    other_classes = _runs(profile, _step(profile, *profile.beyond, majority="random"))
    # seed 0 on the images of seed 0 is among the first
    return everything + [run for run in same_images if run.seed] + other_classes


def _solver_and_collapse(profile: Profile) -> list[StoredConfig]:
    """DEQ runs that other notebooks need as well, and a look into the solver of each."""
    runs = _runs(profile, _step(profile, *profile.beyond), [_model(profile, "deq")])
    return [*runs, *(ProbeConfig(base=run) for run in runs)]


def _scorecard(profile: Profile) -> list[RunConfig]:
    """Every cell of Tables 1–4, for the one test over all of them."""
    return _table1(profile) + [run for tenths in (3, 5, 7) for run in _table(profile, tenths)]


def _shallow_models(width: int, sigma_a2: float = 0.2) -> list[ShallowModelConfig]:
    """The six arms of Ling et al.'s Figure 3 at one width, matched for τ_0 = 1. The numbers are rounded, so that the
    identity of a run does not depend on the last bits of a machine."""
    relu, pair = "relu", kernels.match_leaky_relu(sigma_a2)[-1].layers
    shifts = [kernels.explicit_coefficients(pair[:depth]).bias for depth in (1, 2)]
    numbers = {
        "tanh_deq": (),
        "h_tanh_enn": kernels.match_htanh(sigma_a2),
        "tanh_enn": (),
        "relu_deq": (kernels.coefficients(relu, sigma_a2).bias,),
        "l_relu_enn": (pair[0].a, pair[0].b, shifts[0], pair[1].a, pair[1].b, shifts[1]),
        "relu_enn": tuple(kernels.explicit_coefficients([relu] * depth).bias for depth in (1, 2)),
    }
    return [
        ShallowModelConfig(
            kind=kind,
            width=width,
            numbers=tuple(float(f"{value:.9g}") for value in values),
            sigma_a2=sigma_a2 if kind.endswith("deq") else None,
        )
        for kind, values in numbers.items()
    ]


def _kernel_fig3(profile: Profile) -> list[StoredConfig]:
    """Every arm, width and seed; with recipe "paper" as in the released scripts, the readout alone."""
    if not profile.grey_dataset:
        return []
    images = DataConfig(
        dataset=profile.grey_dataset,
        n_max=profile.images_per_class,
        test_per_class=profile.test_images_per_class,
    )
    scripts = profile.recipe == "paper"
    train = ShallowTrainConfig(
        readout_epochs=100 if scripts else profile.shallow_readout,
        epochs=0 if scripts else profile.shallow_epochs,
        batch_size=128 if scripts else profile.batch_size,
        lr=1.0 if scripts else profile.shallow_lr,
    )
    encoders: list[RunConfig | None] = [None] * profile.seeds
    if profile.inputs == "resnet18":
        resnet = dataclasses.replace(profile, width=PROFILES[profile.name].width, epochs=PROFILES[profile.name].epochs)
        encoders = list(_runs(resnet, images, [_model(resnet, "explicit")]))
    return [
        ShallowConfig(data=images, model=model, train=train, encoder=encoders[seed], seed=seed, profile=profile.name)
        for seed in range(profile.seeds)
        for width in profile.shallow_widths
        for model in _shallow_models(width)
    ]


def _separation(notebook: str) -> Callable[[Profile], list[StoredConfig]]:
    return lambda profile: list(regression.regression_runs(notebook, profile.seeds, profile.name))


_SCENES_PER_CLASS = 60


def _where_networks_look(profile: Profile) -> list[StoredConfig]:
    """Both arms and their Grad-CAM. Digits of 8×8 leave maps of one place, so scenes made of them stand in."""
    if profile.dataset in ("digits", "digit_scenes"):
        images = profile.images_per_class or _SCENES_PER_CLASS
        profile = dataclasses.replace(profile, dataset="digit_scenes", images_per_class=images)
    runs = _runs(profile, _images(profile))
    return [*runs, *(CamConfig(base=run) for run in runs)]


EXPERIMENTS: dict[str, Callable[[Profile], list[RunConfig]]] = {
    "neural_collapse/table1": _table1,
    "neural_collapse/table2": lambda profile: _table(profile, 3),
    "neural_collapse/table3": lambda profile: _table(profile, 5),
    "neural_collapse/table4": lambda profile: _table(profile, 7),
    "neural_collapse/fig2": lambda profile: _runs(profile, _step(profile, 3, 10)),
    "neural_collapse/fig3": _fig3,
    "neural_collapse/fig4": lambda profile: _runs(profile, _step(profile, 3, 100)),
    "neural_collapse/fig5": lambda profile: _runs(profile, _step(profile, 7, 100)),
    "neural_collapse/controls": _controls,
    "neural_collapse/nc_definitions": _nc_definitions,
    "neural_collapse/remedies": _remedies,
    "neural_collapse/long_tail": _long_tail,
    "neural_collapse/seeds_and_subsets": _seeds_and_subsets,
    "neural_collapse/scorecard": _scorecard,
    "neural_collapse/solver_and_collapse": _solver_and_collapse,
    "kernel_equivalence/fig3": _kernel_fig3,
    **{f"separation_bias/{name}": _separation(name) for name in regression.NOTEBOOKS},
    "separation_bias/fig6": _where_networks_look,
    "separation_bias/verdicts": lambda profile: [*_separation("verdicts")(profile), *_where_networks_look(profile)],
}
"""The runs each notebook is made from."""


def experiment(name: str, profile: Profile | str, **overrides: Any) -> list[RunConfig]:
    """The runs a notebook needs.

    Parameters
    ----------
    name : "paper/notebook"; a bare name means the main paper's
    profile : a `Profile` or its name
    overrides : see `OVERRIDES`; 0 or "" stands for the profile's own value

    Returns
    -------
    list of RunConfig, arm by arm within each seed

    Raises
    ------
    ConfigError
        For an unknown name or parameter, with the nearest right one; for parameters that leave nothing to run.
    """
    full = name if "/" in name else f"neural_collapse/{name}"
    if full not in EXPERIMENTS:
        raise ConfigError(suggest(full, EXPERIMENTS, "experiment"))
    profile = override(get_profile(profile) if isinstance(profile, str) else profile, **overrides)
    configs = EXPERIMENTS[full](profile)
    if not configs:
        raise ConfigError(
            f"{name} needs a 10-class data set, and these parameters leave none (dataset={overrides.get('dataset')!r})"
        )
    return configs


def stand_ins(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Which of the paper's data sets each of these stands for, by its number of classes: {"digits": "cifar10"}."""
    papers = {10: "cifar10", 100: "cifar100"}
    names = {config.data.dataset for config in configs}
    return {
        name.split("@")[0]: papers[outline(name).classes] for name in sorted(names) if outline(name).classes in papers
    }


def describe_runs(configs: Sequence[RunConfig]) -> str:
    """One paragraph for captions: profile, data with the real n_A and n_B, network, protocol, seeds, solver."""
    configs = [config for config in configs if isinstance(config, RunConfig)]
    first, train = configs[0], configs[0].train
    maps = sorted({_last_maps(config.data.dataset) for config in configs})
    settings = dict.fromkeys(_describe_data(config.data) for config in configs)
    seeds = len({config.seed for config in configs})
    text = (
        f"Profile {first.profile}: {'; '.join(settings)}. ResNet-18 of width {first.model.width} "
        f"(its last block sees maps of {' and '.join(maps)}), {train.epochs} epochs of SGD (lr {train.lr:g}, "
        f"{train.schedule}, batch {train.batch_size}, weight decay {train.weight_decay:g}), "
        f"{seeds} seed{'s' if seeds > 1 else ''}."
    )
    return text + "".join(dict.fromkeys(_describe_solver(c.model, train) for c in configs if c.model.kind == "deq"))


def _describe_solver(model: ModelConfig, train: TrainConfig) -> str:
    start = {"x": "the input", "zeros": "zero", "previous": "the last epoch's equilibrium"}[model.start]
    return (
        f" DEQ: {model.solver.method}, relative residual {model.solver.tol:g}, at most {model.solver.max_steps} "
        f"evaluations from {start}, {model.gradient.method} gradient; samples that do not converge: {train.skip}."
    )


def _last_maps(dataset: str) -> str:
    """Size of the maps that layer 4 works on, after three halvings."""
    return "×".join(str(-(-side // 8)) for side in outline(dataset).size)


def _describe_data(images: DataConfig) -> str:
    name, about = images.dataset.split("@")[0], outline(images.dataset)
    n_max = images.n_max or about.per_class
    if images.imbalance == "balanced":
        return f"{name} balanced ({about.classes} classes, {n_max} training images each)"
    smallest = int(class_counts(images).min())
    kind = f"K_A={images.num_majority} of" if images.imbalance == "step" else "exponential over"
    real = n_max / smallest
    note = "" if abs(real / images.ratio - 1) < 0.01 else f", really R={real:.4g}"
    if images.majority == "random":
        note += ", majority classes drawn by seed"
    if smallest == 1:
        note += ", and a class of one image has no within-class variance"
    return f"{name} with {kind} {about.classes} classes, R={images.ratio:g} (n_A={n_max}, n_B={smallest}{note})"


def runs_provenance(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """Where the results of these runs come from, one fact a row with every value that occurs: commit, whether the tree
    was changed, versions, device, threads, determinism, and the processor seconds of all runs together."""
    records = [load_run(run).provenance for run in _unique(configs)]
    facts: dict[str, Any] = {"runs": len(records), "seeds": sorted({seed for r in records for seed in r["seeds"]})}
    for name in ("commit", "dirty", "python", "platform", "cpu", "threads", "deterministic"):
        facts[name] = sorted({str(record[name]) for record in records})
    facts["device"] = sorted({record["device"].get("name") or record["device"]["type"] for record in records})
    for package in sorted({name for record in records for name in record["versions"]}):
        facts[package] = sorted({record["versions"].get(package, "none") for record in records})
    facts["processor seconds"] = round(sum(record["cost"]["cpu_seconds"] for record in records))
    shown = {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in facts.items()}
    return pd.Series(shown, dtype=object).to_frame("value")


def comparable(configs: Sequence[RunConfig]) -> bool:
    """Whether sizes may be compared with the paper's: its own data sets, whole, at its own width and number of
    epochs."""
    return all(
        config.data.dataset in ("cifar10", "cifar100")
        and config.data.n_max is None
        and config.model.width == 64
        and config.train.epochs >= 100
        for config in configs
    )


def compute_in_blocks(config: RunConfig) -> float:
    """What the last block of this finished DEQ run cost in training, in untied explicit blocks.

        blocks = (s + b + 3) / 3

    In units of one evaluation of the cell, a training step of an equilibrium takes s forward evaluations, one more to
    attach the gradient, b products with the transposed Jacobian and a backward pass of 2; an explicit block takes 3.
    s and b are means over the whole run.

    Raises
    ------
    ConfigError
        For a run that is not a DEQ.
    CorruptRun
        When it is not stored.
    """
    if config.model.kind != "deq":
        raise ConfigError(f"the measured compute is that of a 'deq' run, got kind {config.model.kind!r}")
    steps = load_run(config).history.query("split == 'steps'").groupby("metric")["value"].mean()
    return float((steps["solver_steps"] + steps.get("backward_steps", 0.0) + 3) / 3)


# --- execution ---------------------------------------------------------------------------------------------------


class MissingRuns(RuntimeError):
    """Runs that are neither stored nor among the reference results, when training is not allowed."""


class RunsFailed(RuntimeError):
    """Some runs ended with an error; `failures` maps run ids to messages. All others are stored."""

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        listing = "\n".join(f"  {run}: {message}" for run, message in failures.items())
        super().__init__(
            f"runs that failed: {len(failures)}; all others are stored. Type the same again to go on.\n{listing}"
        )


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    """One thread a run, or as many as NCLIB_THREADS says, whatever the session around it uses: the number of threads
    changes the last bits of a result, and more runs at once use a machine better than more threads."""
    wanted = os.environ.get("NCLIB_THREADS", "1")
    if not wanted.isdigit() or int(wanted) < 1:
        raise ConfigError(f"NCLIB_THREADS={wanted!r} must be a whole number of at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_classifier(
    config: RunConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Train one classifier and store it; a checkpoint is written after each epoch."""
    run = run_id(config)

    def note(done: int, total: int) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(device) as cost, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = training.train(config, device=device, checkpoint=store.checkpoint(run), progress=note)
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    said = sorted({str(warning.message) for warning in caught})
    tables = {"history": result.history, "classes": result.classes, "cost": result.cost}
    store.save(config, tables, result.arrays, result.weights, record | {"facts": result.facts, "warnings": said})
    for warning in caught:
        if issubclass(warning.category, DamageWarning):  # the others are only kept with the run
            warnings.warn(warning.message, stacklevel=2)


def _probe_solver(
    config: ProbeConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Look into the solver of a stored run, which is trained first if it is not there."""
    base = train_run(_to_json(config.base), str(store.root), str(device))
    classes = store.load(base).tables["classes"]
    with _threads(), provenance.Cost(device) as cost:
        history = probes.measure(config, store.weights(base), classes, device)
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    store.save(config, {"history": history}, {}, {}, record | {"facts": {"base": base}, "warnings": []})
    progress(1, 1)


def _train_shallow(
    config: ShallowConfig, store: RunStore, device: torch.device, progress: Callable[[float, float], None]
) -> None:
    """Train one fully connected network and store it; the run whose features it takes is trained first if need be."""
    run, weights = run_id(config), None
    if config.encoder is not None:
        weights = store.weights(train_run(_to_json(config.encoder), str(store.root), str(device)))

    def note(done: float, total: float) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(device) as cost:
        result = shallow.train_shallow(config, device, weights, store.checkpoint(run), note)
    record = provenance.capture(device, [config.seed], cost) | {"facts": result.facts, "warnings": []}
    readout = {"readout": result.weights["readout"]}
    store.save(config, {"history": result.history}, {}, readout, record)


def _train_regression(
    config: RegressionConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Train one small regressor, always on the CPU, where it is fastest."""
    run, cpu = run_id(config), torch.device("cpu")

    def note(done: int, total: int) -> None:
        store.note_progress(run, done, total)
        progress(done, total)

    with _threads(), provenance.Cost(cpu) as cost:
        result = regression.train_regression(config, note)
        record = provenance.capture(cpu, [config.seed], cost)
    record |= {"facts": result.facts, "warnings": []}
    store.save(config, {"history": result.history}, result.arrays, result.weights, record)


def _look(
    config: CamConfig, store: RunStore, device: torch.device, progress: Callable[[int, int], None]
) -> None:
    """Grad-CAM of a stored run, which is trained first if it is not there."""
    base = train_run(_to_json(config.base), str(store.root), str(device))
    with _threads(), provenance.Cost(device) as cost:
        history, arrays = saliency.look(config, store.weights(base), device)
        with training.arithmetic(config.train, device):
            record = provenance.capture(device, [config.seed], cost)
    store.save(config, {"history": history}, arrays, {}, record | {"facts": {"base": base}, "warnings": []})
    progress(1, 1)


_TRAINERS: dict[str, tuple[type[StoredConfig], Callable[..., None]]] = {
    "classifier": (RunConfig, _train_classifier),
    "solver_probe": (ProbeConfig, _probe_solver),
    "shallow": (ShallowConfig, _train_shallow),
    "regression": (RegressionConfig, _train_regression),
    "grad_cam": (CamConfig, _look),
}
"""What to do with each kind of configuration."""


def train_run(
    config_json: str, root: str, device: str | None = None, progress: Callable[[int, int], None] | None = None
) -> str:
    """Make sure that one run is stored, training or continuing it if it is not; returns its id.

    Safe to call from any number of processes at once: they take turns, and all but the first find the run done.
    """
    config = read_config(config_json)
    trainer = _TRAINERS[config.kind][1]
    store, run = RunStore(root), run_id(config)
    with store.lock(run):
        if store.is_sound(run):
            store.clear_partial(run)
        else:
            where = torch.device(device) if device else training.default_device()
            trainer(config, store, where, progress or (lambda done, total: None))
    return run


def read_config(config_json: str) -> StoredConfig:
    """The configuration of any kind of run from its JSON; raises `ConfigError` for a kind there is not."""
    kind = json.loads(config_json).get("kind", "classifier")
    if kind not in _TRAINERS:
        raise ConfigError(suggest(kind, _TRAINERS, "kind of run"))
    return _TRAINERS[kind][0].from_json(config_json)


def default_store() -> RunStore:
    """The run store of this project (`paths.runs`)."""
    return RunStore(paths.runs())


def reference_store() -> ReferenceStore:
    """The tracked reference results (`paths.reference`)."""
    return ReferenceStore(paths.reference())


def load_run(config: StoredConfig | str) -> StoredRun:
    """A finished run from the run store or, where it is not there, from the reference results."""
    run = config if isinstance(config, str) else run_id(config)
    store = default_store()
    return store.load(run) if store.has(run) else reference_store().load(run)


def plan(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """What `ensure_runs` would do, a row for each run: run_id, dataset, model, K_A, R, seed, state ("stored",
    "reference" or "missing") and seconds, a rough estimate on one core."""
    store, reference = default_store(), reference_store()
    rows = []
    for run, config in _unique(configs).items():
        state = "stored" if store.has(run) else "reference" if reference.has(run) else "missing"
        rows.append(
            {"run_id": run, **identity_columns(config.canonical()), "state": state, "seconds": estimate_seconds(config)}
        )
    columns = ["run_id", *identity_columns({}), "state", "seconds"]
    return pd.DataFrame(rows, columns=columns).round({"seconds": 2})


def _unique(configs: Sequence[StoredConfig]) -> dict[str, StoredConfig]:
    return {run_id(config): config for config in configs}


def ensure_runs(
    configs: Sequence[StoredConfig],
    executor: concurrent.futures.Executor | None = None,
    train: Literal["missing", "never"] = "missing",
    progress: Progress | None = None,
    device: str | None = None,
) -> pd.DataFrame:
    """The results of these runs as one tidy table, training first what is not stored.

    Parameters
    ----------
    configs : the runs; repetitions are trained once
    executor : where to train, any `concurrent.futures.Executor`; left out: here, one after the other
    train : "missing" trains what the run store lacks; "never" takes what is stored or among the reference results
    progress : called as ``progress(epochs_done, epochs_total, text)``
    device : for instance "cuda:1"; left out: the first CUDA device where there is one, else the CPU

    Returns
    -------
    DataFrame, see `RunStore.frame`

    Raises
    ------
    RunsFailed
        When some could not be trained; raised after all others are done and stored.
    MissingRuns
        With train="never", naming what is absent.
    """
    if train not in ("missing", "never"):
        raise ConfigError(suggest(train, ("missing", "never"), "value of train"))
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        raise ConfigError(
            "runs cannot share a process: they set PyTorch's random state and determinism. Give an executor of "
            "processes, such as nclib.experiments.make_pool(2)"
        )
    wanted, store = _unique(configs), default_store()
    absent = {run: config for run, config in wanted.items() if not store.is_sound(run)}
    if train == "never":
        lacking = [run for run in absent if not reference_store().has(run)]
        if lacking:
            raise MissingRuns(
                f"{len(lacking)} of {len(wanted)} runs are neither in the run store nor among the reference results, "
                f"and train='never' forbids training them: {', '.join(lacking)}. Use train='missing' to train them here"
            )
    elif absent:
        failures = _train_all(absent, store, executor, progress, device)
        if failures:
            raise RunsFailed(failures)
    frames = []
    for run, config in wanted.items():
        source = store if store.has(run) else reference_store()
        frames.append(tidy(source.load(run)).assign(profile=config.profile))
    return stack(frames)


def _train_all(
    absent: dict[str, StoredConfig],
    store: RunStore,
    executor: concurrent.futures.Executor | None,
    progress: Progress | None,
    device: str | None,
) -> dict[str, str]:
    """Train these runs, the longest first; returns what failed, with the reason."""
    tell = progress or (lambda done, total, text: None)
    epochs = {run: config.work() for run, config in absent.items()}
    total = sum(epochs.values())
    order = sorted(absent, key=lambda run: -estimate_seconds(absent[run]))
    failures: dict[str, str] = {}
    if executor is None:
        done = 0.0
        for run in order:
            base = done

            def note(epoch: int, of: int, run: str = run, base: float = base) -> None:
                tell(base + epoch, total, run)

            try:
                train_run(_to_json(absent[run]), str(store.root), device, note)
            except Exception as error:  # as on an executor: one failing run does not stop the others
                failures[run] = f"{type(error).__name__}: {error}"
            done += epochs[run]
        return failures
    futures = {executor.submit(train_run, _to_json(absent[run]), str(store.root), device): run for run in order}
    pending = set(futures)
    while pending:
        finished, pending = concurrent.futures.wait(
            pending, timeout=0.5, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in finished:
            error = future.exception()
            if error is not None:
                failures[futures[future]] = f"{type(error).__name__}: {error}"
        done = sum(epochs[run] * store.progress(run) for run in absent)
        tell(done, total, f"{len(absent) - len(pending)} of {len(absent)} runs")
    return failures


def _to_json(config: StoredConfig) -> str:
    return config.model_dump_json()


_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""glibc hands large tensors back to the system after each step and fetches them anew, page by page: a tenth of the time
of a step on 32×32 images. With these, a training process keeps what it has."""


@contextlib.contextmanager
def make_pool(workers: int) -> Iterator[concurrent.futures.Executor]:
    """A pool of spawned processes. Leaving it early ends them; what they were training goes on from its checkpoint
    next time."""
    start = {"OMP_NUM_THREADS": os.environ.get("NCLIB_THREADS", "1"), "OMP_WAIT_POLICY": "PASSIVE"} | _KEEP_MEMORY
    before = {name: os.environ.get(name) for name in start}
    os.environ |= start  # read by the spawned processes when they load the C library and torch
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=processes.follow_parent
    )
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        workers_now = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in workers_now:
            process.terminate()
        raise
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# Seconds on one core of the machine the quick profile was developed on: a fixed part for each layer call and batch,
# and one for the arithmetic. Only the order of magnitude matters; `plan` and `nclib doctor` quote them as estimates.
_SECONDS_PER_BATCH = 0.022
_SECONDS_PER_GMAC = 0.021
_DEQ_OVER_EXPLICIT = 2.1
_SECONDS_PER_SOLVE = 0.025


def estimate_seconds(config: StoredConfig) -> float:
    """Rough seconds of a run on one core, before it starts. From the multiplications of the network and the number of
    batches; an equilibrium costs about two explicit networks."""
    if isinstance(config, ProbeConfig):
        return _probe_seconds(config)
    if isinstance(config, ShallowConfig):
        return config.work() * int(class_counts(config.data).sum()) / 1400
    if not isinstance(config, RunConfig):
        return config.work()
    images = int(class_counts(config.data).sum())
    convolutions = _gigamacs(config.model.width, math.prod(outline(config.data.dataset).size))
    batches = config.train.epochs * -(-images // config.train.batch_size)
    evaluations = len([e for e in range(1, config.train.epochs + 1) if e % config.train.log_every == 0])
    passes = 3 * config.train.epochs * images + evaluations * images
    factor = _DEQ_OVER_EXPLICIT if config.model.kind == "deq" else 1.0
    return factor * (batches * _SECONDS_PER_BATCH + passes * convolutions * _SECONDS_PER_GMAC)


def _probe_seconds(config: ProbeConfig) -> float:
    """Of a probe: a fixed part for each solve and its neural-collapse report, and the evaluations of the cell, of which
    most images need a third of those allowed."""
    images = int(class_counts(config.data).sum()) + outline(config.data.dataset).classes * (
        config.data.test_per_class or 50
    )
    cell = 0.14 * _gigamacs(config.model.width, math.prod(outline(config.data.dataset).size))
    evaluations = images * config.evaluations() / 3
    return _SECONDS_PER_SOLVE * len(list(config.settings())) + evaluations * cell * _SECONDS_PER_GMAC


def class_counts(cfg: DataConfig) -> torch.Tensor:
    """Training images of each class (K,), largest first, before they are drawn."""
    about = outline(cfg.dataset)
    n_max = cfg.n_max or about.per_class
    if cfg.imbalance == "step":
        return imbalance.step_imbalance(about.classes, n_max, cfg.num_majority, cfg.ratio)
    if cfg.imbalance == "exponential":
        return imbalance.exponential_imbalance(about.classes, n_max, cfg.ratio)
    return torch.full((about.classes,), n_max)


def _gigamacs(width: int, pixels: int) -> float:
    """Billions of multiplications of one forward pass: 0.555 for ResNet-18 of width 64 on 32×32 pixels."""
    return 0.555 * (width / 64) ** 2 * pixels / 1024


def export_reference(names: Sequence[str], profile: Profile | str, collection: str, **overrides: Any) -> list[str]:
    """Copy small extracts of the stored runs of these experiments to the reference results; returns their ids.

    Raises
    ------
    MissingRuns
        When one of them has not been trained.
    """
    wanted: dict[str, StoredConfig] = {}
    for name in names:
        wanted |= _unique(experiment(name, profile, **overrides))
    store = default_store()
    lacking = [run for run in wanted if not store.has(run)]
    if lacking:
        raise MissingRuns(f"not trained yet: {', '.join(lacking)}")
    names_used = {config.data.dataset for config in wanted.values() if isinstance(config, (RunConfig, ShallowConfig))}
    datasets = {name: outline(name)._asdict() for name in sorted(names_used)}
    reference_store().add(collection, (store.load(run) for run in wanted), datasets)
    return list(wanted)
