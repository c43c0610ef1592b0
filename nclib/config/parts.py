"""The parts of a run: solver and gradient, data, model, how it is trained."""

import re
import typing
from typing import Any, Literal

import pydantic

from nclib.config.strict import Config, added_later, one_of, option, suggest
from nclib.system import own_code

LAST_EPOCHS = 10
"""The paper reports mean and standard deviation of the test accuracy over this many last epochs (section 5.1)."""

ModelKind = Literal["explicit", "deq", "explicit_matched", "weight_tied", "explicit_flops"]
LossName = Literal["cross_entropy", "balanced_softmax", "class_balanced", "ldam_drw"]


class SolverConfig(Config):
    """Which fixed-point method, how exact, how long. The defaults are the preset of Sun & Shi (2024, section 5.1).

    Parameters
    ----------
    method : "broyden", "anderson" or "fixed_point"
    tol : relative residual ‖f(z)−z‖₂/‖f(z)‖₂ per sample at which a sample is done
    max_steps : calls of the cell allowed per sample
    history, ridge, damping : of the methods that have them; left out means the method's own default. ``replace`` with
        another method keeps the values that are there, such as the history 20 of "broyden"

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for one that the method does not have.

    Examples
    --------
    >>> SolverConfig(method="anderson", tol=1e-3).method
    'anderson'
    """

    method: Literal["broyden", "anderson", "fixed_point"] = "broyden"
    tol: float = pydantic.Field(default=1e-3, gt=0, lt=1)
    max_steps: int = pydantic.Field(default=20, ge=1)
    history: int | None = pydantic.Field(default=None, ge=1)
    ridge: float | None = pydantic.Field(default=None, gt=0)
    damping: float | None = pydantic.Field(default=None, ge=0, lt=1)

    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        kinds = {
            "broyden": {"history": 20},
            "anderson": {"history": 5, "ridge": 1e-8, "damping": 0.0},
            "fixed_point": {"damping": 0.0},
        }  # with the defaults of the solvers of `nclib.methods`
        return cls._choose(options, "method", kinds)


class GradientConfig(Config):
    """How the equilibrium is differentiated.

    Parameters
    ----------
    method : "implicit" (implicit function theorem), "phantom" (a few steps from the equilibrium; one step is JFB),
        "neumann" (truncated series), "unrolled" or "reversible" (through explicit steps from the start, without solver)
    steps : terms or steps; left out means 1, for "unrolled" and "reversible" it is required. Of "implicit" the products
        with Jᵀ, where few are meant; left out, as many as its solve takes
    damping, beta : of "phantom" and of "reversible" only; beta in (0, 1), left out 0.5

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for one that the method does not have or lacks.

    Examples
    --------
    >>> GradientConfig(method="phantom").method
    'phantom'
    """

    method: Literal["implicit", "phantom", "neumann", "unrolled", "reversible"] = "implicit"
    steps: int | None = pydantic.Field(default=None, ge=1)
    damping: float | None = pydantic.Field(default=None, ge=0, lt=1)
    beta: float | None = added_later(None, gt=0, lt=1)

    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        kinds = {"implicit": {"steps": None}, "neumann": {"steps": 1}, "phantom": {"steps": 1, "damping": 0.0}}
        kinds |= {"unrolled": {"steps": ...}, "reversible": {"steps": ..., "beta": 0.5}}
        return cls._choose(options, "method", kinds)


def setting(imbalance: str | None, num_majority: int | None = None, ratio: float | None = None) -> str:
    """How the classes are weighted, as run ids and the column ``setting`` have it: "balanced", "KA3-R10", "exp-R10"."""
    shapes = {"step": f"KA{num_majority}-R{ratio or 1:g}", "exponential": f"exp-R{ratio or 1:g}"}
    return shapes.get(imbalance or "", "balanced")


RESOLVED_FOLDER = re.compile(r"folder:[A-Za-z0-9._-]+@[0-9a-f]{12}")
"""The name that an image folder resolves to, NAME@FINGERPRINT."""


class DataConfig(Config):
    """Which images, how many of each class, and which classes are many.

    Parameters
    ----------
    dataset : a name of `nclib.data.load_dataset`; a folder in its resolved form ``folder:NAME@FINGERPRINT``
        (`nclib.data.resolve_dataset` makes it), so that no path of a machine enters a run's identity
    imbalance : "balanced", "step" (K_A classes with n_A images, the rest with n_A/R) or "exponential" (from n_A down
        to n_A/R)
    num_majority : K_A, the real number of majority classes; for "step" only
    ratio : R = n_A/n_B ≥ 1; n_B is at least 1, so that classes of fewer than R images have a smaller ratio
    majority : which classes are majority, "first" (as in the paper) or "random" (seeded); left out: "random" for
        digit_pairs, whose first classes share their left digit, "first" for the others
    n_max : images of the largest classes, n_A; left out: as many as the smallest class has
    test_per_class : test images per class; left out: all there are
    augment : "dataset" (flips and crops for photographs, nothing for digits) or "none"
    subset_seed : of the images drawn and of majority="random"; left out: the run's seed. With it, runs of different
        seeds see the same images and differ in initial weights and order alone

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for a folder that is not resolved.

    Examples
    --------
    >>> DataConfig(dataset="digits", imbalance="step", num_majority=3, ratio=10.0).ratio
    10.0
    """

    dataset: str = option("--dataset", "Name of a data set, or folder:PATH.", "digits")
    imbalance: Literal["balanced", "step", "exponential"] = "balanced"
    num_majority: int | None = option("--K_A --num-majority", "Number of majority classes.", None, "balanced", ge=1)
    ratio: float | None = option("--R --ratio", "Imbalance n_A / n_B; goes with K_A.", None, "1", ge=1)
    majority: Literal["first", "random"] | None = None
    n_max: int | None = option("--n-max", "Images of a majority class, n_A.", None, "all there are", ge=1, lt=2**32)
    test_per_class: int | None = pydantic.Field(default=None, ge=1, lt=2**32)
    augment: Literal["dataset", "none"] = "dataset"
    subset_seed: int | None = added_later(None, ge=0, lt=2**32)

    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        order = {"majority": "random" if options.get("dataset") == "digit_pairs" else "first"}
        step = {"num_majority": ..., "ratio": ...} | order
        kinds = {"balanced": {}, "step": step, "exponential": {"ratio": ...} | order}
        return cls._choose(options, "imbalance", kinds)

    setting = property(lambda self: setting(self.imbalance, self.num_majority, self.ratio))

    @pydantic.field_validator("dataset")
    @classmethod
    def _folder_is_resolved(cls, name: str) -> str:
        if name.startswith("folder:") and not RESOLVED_FOLDER.fullmatch(name):
            raise ValueError(f"{name!r} is a path; give nclib.data.resolve_dataset({name!r})")
        return name


CELLS = ("residual", "mdeq")


class ModelConfig(Config):
    """One arm of the comparison. All arms share the encoder (a CIFAR-stem ResNet-18 up to the first block of layer 4).

    Parameters
    ----------
    kind :
        "explicit" — the second block of layer 4 as in ResNet-18, BatchNorm; the paper's explicit network
        "deq" — that block as an equilibrium cell with input injection and GroupNorm
        "explicit_matched" — the same block applied once: the same parameters as "deq"
        "weight_tied" — the same cell unrolled `unroll` times, differentiated through
        "explicit_flops" — `num_blocks` untied GroupNorm blocks, the measured compute of the DEQ
    width : channels of the first stage; features have 8·width dimensions (512 at the paper's 64)
    cell : "residual" (ends in ReLU, like the explicit block), "mdeq" (ends in GroupNorm, as in multiscale DEQs), or
        "package.module:Class" of your own, called with the number of channels, and with `groups` if it takes that
    source : digest of the file of your own cell, so that changed code makes another run; left out: as it is now. What
        the file imports or reads does not count
    name : what the column ``model`` of a table shows instead of the kind, to distinguish two custom cells. No part
        of the identity
    groups : groups of every GroupNorm
    feature_norm : "none" or "batchnorm" (BatchNorm1d on the pooled features, which centres them)
    head : the classifier without bias: "linear"; "etf", fixed at a simplex ETF with rows of norm 1 (Zhu et al. 2021;
        Yang et al. 2022); "cosine", 30 cos(h, w_k), which LDAM needs (Cao et al. 2019)
    solver, gradient, start : of "deq"; start is the first iterate, "x" (the block's input) or "zeros"
    unroll : of "weight_tied"
    num_blocks : of "explicit_flops"

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for one that the kind does not have or lacks; for
        code that is not found.

    Examples
    --------
    >>> ModelConfig(kind="deq", width=16, solver=SolverConfig(method="anderson")).solver.method
    'anderson'
    """

    kind: ModelKind = option("--model", f"{', '.join(typing.get_args(ModelKind))}.", "explicit")
    width: int = option("--width", "Channels of the first stage; features have 8 times as many.", 64, ge=1, lt=2**20)
    cell: str | None = option("--cell", "residual, mdeq, or package.module:Class of your own.", None, "residual")
    groups: int | None = pydantic.Field(default=None, ge=1)
    feature_norm: Literal["none", "batchnorm"] = "none"
    head: Literal["linear", "etf", "cosine"] = added_later("linear")
    solver: SolverConfig | None = None
    gradient: GradientConfig | None = None
    start: Literal["x", "zeros"] | None = None
    unroll: int | None = pydantic.Field(default=None, ge=1)
    num_blocks: int | None = pydantic.Field(default=None, ge=1)
    source: str | None = added_later(None, pattern="^[0-9a-f]{16}$")
    name: str | None = added_later(None, pattern=r"^\S[^\n\r\t<>]{0,59}$")

    @property
    def own_cell(self) -> str | None:
        """The import path of a cell of the user's own; None where the cell is ours."""
        return None if self.cell in CELLS else self.cell

    def replace(self, **changes: Any) -> typing.Self:
        """As of every configuration; other code has another source and name."""
        other = {"source": None, "name": None} if "cell" in changes else {}
        return super().replace(**other | changes)

    @pydantic.field_validator("name")
    @classmethod
    def _is_no_other_kind(cls, name: str | None, info: pydantic.ValidationInfo) -> str | None:
        """A column `model` with two networks of one label would compare a network with itself."""
        if name in typing.get_args(ModelKind) and name != info.data.get("kind"):
            raise ValueError(f"{name!r} is a kind of model, and this one is of another; choose another name")
        return name

    @pydantic.field_validator("cell")
    @classmethod
    def _is_known_or_an_import_path(cls, name: str | None) -> str | None:
        if name is not None and name not in CELLS and not own_code.is_import_path(name):
            raise ValueError(suggest(name, [*CELLS, "package.module:Class of your own"], "value"))
        return name

    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        cell = {"cell": "residual", "groups": 8}
        kinds = {
            "explicit": {},
            "deq": cell | {"solver": SolverConfig(), "gradient": GradientConfig(), "start": "x"},
            "explicit_matched": cell,
            "weight_tied": cell | {"unroll": 4},
            "explicit_flops": {"groups": 8, "num_blocks": ...},
        }
        options = cls._choose(options, "kind", kinds)
        cell = options.get("cell")
        if isinstance(cell, str) and own_code.is_import_path(cell) and options.get("source") is None:
            options = options | {"source": own_code.source_digest(cell)}
        return options


class TrainConfig(Config):
    """How a network is trained. `recipe` gives the two protocols by name.

    Parameters
    ----------
    epochs, batch_size, lr, momentum, weight_decay : of the optimiser
    optimiser : "sgd"; "adam", whose weight decay is added to the gradient, as in "sgd" (coupled); or "adamw", which
        scales the weights by 1 − lr · weight_decay instead. The momentum of the latter two is their β1; β2 is 0.999
    schedule : "constant" or "cosine" (to 0 at the last step)
    clip : largest norm of the gradient; None for no clipping
    loss : "cross_entropy"; for imbalanced classes "balanced_softmax", "class_balanced" or "ldam_drw", see
        `nclib.losses`. (Logit adjustment of a finished network needs no training: every evaluation reports it)
    precision : "float32" (on GPUs without TF32), "bfloat16" (autocast of the encoder; the last block and the read-out
        stay float32, since a cell in bfloat16 has no fixed point to the paper's tolerance, with TF32 on GPUs) or
        "float64"
    log_every : epochs between full evaluations; the last ten epochs are always evaluated on the test set
    nc_on_test : neural-collapse report on the test features too
    deterministic : refuse operations whose result changes from call to call
    constraint, e_w, e_h : the paper's E_W and E_H are read as weight decay alone, which enforces neither
    skip : "problematic samples" are skipped where logits are not finite or the residual is above 0.1; one that did not
        converge trains on its best iterate
    jacobian_reg, compile : always 0 and False

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used.

    Examples
    --------
    >>> TrainConfig(epochs=20, batch_size=64, lr=0.05).epochs
    20
    """

    epochs: int = option("--epochs", "Passes over the training images.", 100, ge=1, lt=2**32)
    # BatchNorm has nothing to normalise in a batch of one
    batch_size: int = option("--batch-size", "Images of a step.", 128, ge=2, lt=2**32)
    lr: float = option("--lr", "Learning rate.", 0.1, gt=0)
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    weight_decay: float = pydantic.Field(default=5e-4, ge=0)
    optimiser: Literal["sgd", "adam", "adamw"] = added_later("sgd")
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float | None = pydantic.Field(default=1.0, gt=0)
    loss: LossName = added_later("cross_entropy")
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    log_every: int = pydantic.Field(default=1, ge=1)
    nc_on_test: bool = False
    deterministic: bool = True
    # One value each, which is part of every identity:
    constraint: Literal["weight_decay"] = "weight_decay"
    e_w: None = None
    e_h: None = None
    skip: Literal["keep_best"] = "keep_best"
    jacobian_reg: float = pydantic.Field(default=0.0, ge=0, le=0)
    compile: Literal[False] = False

    def evaluated(self, epoch: int) -> dict[str, bool]:
        """The splits that are evaluated after an epoch, and whether metrics of collapse are logged too."""
        if epoch in (1, self.epochs) or epoch % self.log_every == 0:
            return {"train": True, "test": self.nc_on_test}
        return {"test": False} if epoch > self.epochs - LAST_EPOCHS else {}


RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"lr": 1e-4, "schedule": "constant", "clip": None},
    **{name: {"lr": 0.1, "schedule": "cosine", "clip": 1.0} for name in ("workable", "collapse", "accuracy")},
}
"""Named training protocols. "paper" is what the paper states literally (section 5.1) and "workable" one that trains.
"collapse" and "accuracy" are "workable" without augmentation, to reach the terminal phase, and with it."""

AUGMENTATION = {"collapse": "none", "accuracy": "dataset"}
"""`DataConfig.augment` of the recipes that fix it."""


def recipe(name: str = "workable", **changes: Any) -> TrainConfig:
    """A named training protocol with some options changed.

    Raises
    ------
    ConfigError
        For a name that is not in `RECIPES` or an option that `TrainConfig` does not have.
    """
    return TrainConfig(**RECIPES[one_of(name, RECIPES, "recipe")] | changes)
