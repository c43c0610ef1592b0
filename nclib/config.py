"""Frozen, strict descriptions of a run, and the identity that follows from them.

A configuration is plain data: building one reads no file and trains nothing. An option that does not exist, has the
wrong type or does not apply (a solver for an explicit network) is refused here, with the nearest right name, so that
a misspelt setting can never run silently with a default. Options left out are filled in with their defaults, which
makes two ways of writing the same run one identity.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import types
import typing
from typing import Any, ClassVar, Literal

import pydantic

from nclib.system import own_code

SCHEMA_VERSION = 1
"""Raised whenever the meaning of a stored run changes; part of every run id."""

LAST_EPOCHS = 10
"""The paper reports mean and standard deviation of the test accuracy over this many last epochs (section 5.1)."""

ModelKind = Literal["explicit", "deq", "explicit_matched", "weight_tied", "explicit_flops", "network"]
LossName = Literal["cross_entropy", "balanced_softmax", "class_balanced", "ldam_drw"]


class ConfigError(ValueError):
    """A setting that does not exist, has the wrong type or value, or does not apply here.

    Examples
    --------
    >>> issubclass(ConfigError, ValueError)
    True
    """

    exit_code = 2


def suggest(wrong: str, allowed: typing.Iterable[str], what: str = "option") -> str:
    """A sentence naming what was wrong, the nearest allowed names and the whole list."""
    allowed = sorted(map(str, allowed))
    near = difflib.get_close_matches(str(wrong)[:200], allowed, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {wrong!r:.200}.{hint} Allowed: {', '.join(allowed)}"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r:.100} is given twice")
    return values


def parse_json(text: str, what: str) -> dict[str, Any]:
    """A JSON object from its text, each name once; `ConfigError`, naming `what` it was to be, for anything else."""
    try:
        values = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what} holds no JSON object, but {type(values).__name__}")
    return values


def _literal_values(annotation: Any) -> tuple[Any, ...]:
    """The values of every Literal inside an annotation; empty when there is none."""
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(v for arg in typing.get_args(annotation) for v in _literal_values(arg))
    return ()


def _later(default: Any, **constraints: Any) -> Any:
    """A field that came after runs had been stored: at its default it stays out of the identity, so that runs from
    before keep their names."""
    return pydantic.Field(default=default, json_schema_extra={"later": True}, **constraints)


class Config(pydantic.BaseModel):
    """Base of every configuration: frozen, strict about names and types, errors that suggest.

    Raises
    ------
    ConfigError
        On construction, for any unknown option or unusable value; all faults of one object are listed together.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except pydantic.ValidationError as error:
            raise ConfigError("\n".join(self._explain(fault) for fault in error.errors())) from None
        except (TypeError, AttributeError, OverflowError) as error:  # of a validator that came before that of the type
            raise ConfigError(f"{type(self).__name__}: an option has the wrong type ({error})") from None

    @classmethod
    def _explain(cls, fault: Any) -> str:
        where = ".".join(str(part) for part in fault["loc"])
        label = f"{cls.__name__}.{where}" if where else cls.__name__
        if fault["type"] == "extra_forbidden":
            return f"{cls.__name__}: {suggest(where, cls.model_fields)}"
        if fault["type"] == "literal_error" and where in cls.model_fields:
            values = _literal_values(cls.model_fields[where].annotation)
            return f"{label}: {suggest(fault['input'], values, 'value')}"
        if fault["type"] == "value_error":
            return f"{label}: {fault['ctx']['error']}"
        return f"{label}: {fault['msg']}, got {fault['input']!r:.200}"

    @pydantic.model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        for name, field in type(self).model_fields.items():
            if (field.json_schema_extra or {}).get("later") and getattr(self, name) == field.default:
                values.pop(name, None)
        return values

    def replace(self, **changes: Any) -> typing.Self:
        """A copy with some options changed, validated like a new one."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def canonical(self) -> dict[str, Any]:
        """The options that make up the identity, as plain JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, text: str) -> typing.Self:
        """Read what ``model_dump_json`` wrote; a foreign or damaged text raises `ConfigError`."""
        return cls(**parse_json(text, cls.__name__))


def nested(kind: type[Config], value: Any) -> Any:
    """A configuration inside another one, from itself or from its options."""
    if isinstance(value, dict):
        return kind(**value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"give {kind.__name__}(…), or a dictionary of its options, not {value!r:.100}")


def _fill(options: dict[str, Any], defaults: dict[str, Any], applies_to: str, not_here: set[str]) -> dict[str, Any]:
    """Complete `options` with the defaults that apply and refuse those that do not."""
    misplaced = sorted(name for name in not_here if options.get(name) is not None)
    if misplaced:
        raise ValueError(f"{', '.join(misplaced)} does not apply to {applies_to}; leave it out")
    filled = dict(options)
    for name, value in defaults.items():
        if filled.get(name) is None:
            filled[name] = value
    return filled


_SOLVER_OPTIONS: dict[str, dict[str, Any]] = {
    "broyden": {"history": 20},
    "anderson": {"history": 5, "ridge": 1e-8, "damping": 0.0},
    "fixed_point": {"damping": 0.0},
}
"""The options of each method besides tol and max_steps, with the defaults of the solvers of `nclib.solver`."""


class SolverConfig(Config):
    """Which fixed-point method, how exact, how long. The defaults are the preset of Sun & Shi (2024, section 5.1).

    Parameters
    ----------
    method : "broyden", "anderson" or "fixed_point"
    tol : relative residual ‖f(z)−z‖₂/‖f(z)‖₂ per sample at which a sample is done
    max_steps : calls of the cell allowed per sample
    history, ridge, damping : of the methods that have them; left out means the method's own default

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

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        method = options.get("method", "broyden")
        if method not in _SOLVER_OPTIONS:
            return options
        own = _SOLVER_OPTIONS[method]
        return _fill(options, own, f"method {method!r}", {"history", "ridge", "damping"} - set(own))


class GradientConfig(Config):
    """How the equilibrium is differentiated.

    Parameters
    ----------
    method : "implicit" (implicit function theorem), "phantom" (a few steps from the equilibrium; one step is JFB),
        "neumann" (truncated series) or "unrolled" (through explicit steps from the start)
    steps : terms or steps, for the last three; left out means 1, for "unrolled" it is required
    damping : of "phantom" only

    Examples
    --------
    >>> GradientConfig(method="phantom").method
    'phantom'
    """

    method: Literal["implicit", "phantom", "neumann", "unrolled"] = "implicit"
    steps: int | None = pydantic.Field(default=None, ge=1)
    damping: float | None = pydantic.Field(default=None, ge=0, lt=1)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        method = options.get("method", "implicit")
        if method == "unrolled" and options.get("steps") is None:
            raise ValueError("method 'unrolled' needs steps, for instance steps=8")
        defaults = {"phantom": {"steps": 1, "damping": 0.0}, "neumann": {"steps": 1}}.get(method, {})
        not_here = {"implicit": {"steps", "damping"}, "neumann": {"damping"}, "unrolled": {"damping"}}.get(
            method, set()
        )
        return _fill(options, defaults, f"method {method!r}", not_here)


_RESOLVED_FOLDER = re.compile(r"folder:[A-Za-z0-9._-]+@[0-9a-f]{12}")


class DataConfig(Config):
    """Which images, how many of each class, and which classes are many.

    Parameters
    ----------
    dataset : a name of `nclib.data.load_dataset`; a folder in its resolved form ``folder:NAME@FINGERPRINT``
        (`nclib.data.resolve_dataset` makes it), so that no path of a machine enters a run's identity
    imbalance : "balanced", "step" (K_A classes with n_A images, the rest with n_A/R) or "exponential" (from n_A down
        to n_A/R)
    num_majority : K_A, the real number of majority classes; for "step" only
    ratio : R = n_A/n_B ≥ 1
    majority : which classes are majority, "first" (as in the paper) or "random" (seeded); left out: "random" for
        digit_pairs, whose first classes share their left digit, "first" for the others
    n_max : images of the largest classes, n_A; left out: as many as the smallest class has
    test_per_class : test images per class; left out: all there are
    augment : "dataset" (flips and crops for photographs, nothing for digits) or "none"
    subset_seed : of the images drawn and of majority="random"; left out: the run's seed. With it, runs of different
        seeds see the same images and differ in initial weights and order alone

    Examples
    --------
    >>> DataConfig(dataset="digits", imbalance="step", num_majority=3, ratio=10.0).ratio
    10.0
    """

    dataset: str = "digits"
    imbalance: Literal["balanced", "step", "exponential"] = "balanced"
    num_majority: int | None = pydantic.Field(default=None, ge=1)
    ratio: float | None = pydantic.Field(default=None, ge=1)
    majority: Literal["first", "random"] | None = None
    n_max: int | None = pydantic.Field(default=None, ge=1, lt=2**32)
    test_per_class: int | None = pydantic.Field(default=None, ge=1, lt=2**32)
    augment: Literal["dataset", "none"] = "dataset"
    subset_seed: int | None = _later(None, ge=0, lt=2**32)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        imbalance = options.get("imbalance", "balanced")
        if imbalance == "balanced":
            return _fill(options, {}, "balanced data", {"num_majority", "ratio", "majority"})
        needed = ["num_majority", "ratio"] if imbalance == "step" else ["ratio"]
        missing = [name for name in needed if options.get(name) is None]
        if missing:
            meanings = {"num_majority": "num_majority (K_A, --K_A)", "ratio": "ratio (R = n_A/n_B, --R)"}
            raise ValueError(f"imbalance {imbalance!r} needs {' and '.join(meanings[name] for name in missing)}")
        default = "random" if options.get("dataset") == "digit_pairs" else "first"
        not_here = set() if imbalance == "step" else {"num_majority"}
        return _fill(options, {"majority": default}, f"imbalance {imbalance!r}", not_here)

    @pydantic.field_validator("dataset")
    @classmethod
    def _folder_is_resolved(cls, name: str) -> str:
        if name.startswith("folder:") and not _RESOLVED_FOLDER.fullmatch(name):
            raise ValueError(
                f"{name!r} is a path; a configuration stores none. Give it to nclib.data.resolve_dataset first, "
                "which returns 'folder:NAME@FINGERPRINT' (nclib.experiment and the command line do it for you)"
            )
        return name


KINDS_WITH_CELL = ("deq", "explicit_matched", "weight_tied")
CELLS = ("residual", "mdeq")


class ModelConfig(Config):
    """One arm of the comparison. All arms share the encoder (a CIFAR-stem ResNet-18 up to the first block of layer 4).

    Parameters
    ----------
    kind :
        "explicit" — the second block of layer 4 as in ResNet-18, BatchNorm; the paper's explicit network
        "deq" — that block as an equilibrium cell with input injection and GroupNorm
        "explicit_matched" — the same cell applied once: the same parameters as "deq"
        "weight_tied" — the same cell unrolled `unroll` times, differentiated through
        "explicit_flops" — `num_blocks` untied GroupNorm blocks, the measured compute of the DEQ
        "network" — a whole network of your own, without our encoder
    width : channels of the first stage; features have 8·width dimensions (512 at the paper's 64)
    cell : "residual" (ends in ReLU, like the explicit block), "mdeq" (ends in GroupNorm, as in multiscale DEQs), or
        "package.module:Class" of your own, called with the number of channels, and with `groups` if it takes that
    network : of "network", "package.module:function", called with the number of classes and the channels of the images,
        and with `width` if it takes that. It returns an `nn.Module` that maps images to logits and ends in a Linear
    source : digest of the source of your own code, so that changed code makes another run; left out: as it is now.
        Where it is given, as in a stored run, nothing is looked up
    groups : groups of every GroupNorm
    feature_norm : "none" or "batchnorm" (BatchNorm1d on the pooled features, which centres them)
    head : the classifier without bias: "linear"; "etf", fixed at a simplex ETF with rows of norm 1 (Zhu et al. 2021;
        Yang et al. 2022); "cosine", 30 cos(h, w_k), which LDAM needs (Cao et al. 2019)
    solver, gradient, start : of "deq"; start is the first iterate, "x" (the block's input), "zeros" or, in training,
        "previous", the image's equilibrium of the epoch before ("x" in the first epoch and in evaluation)
    unroll : of "weight_tied" | num_blocks : of "explicit_flops"

    Examples
    --------
    >>> ModelConfig(kind="deq", width=16, solver=SolverConfig(method="anderson")).solver.method
    'anderson'
    """

    kind: ModelKind = "explicit"
    width: int = pydantic.Field(default=64, ge=1, lt=2**20)
    cell: str | None = None
    groups: int | None = pydantic.Field(default=None, ge=1)
    feature_norm: Literal["none", "batchnorm"] = "none"
    head: Literal["linear", "etf", "cosine"] = _later("linear")
    solver: SolverConfig | None = None
    gradient: GradientConfig | None = None
    start: Literal["x", "zeros", "previous"] | None = None
    unroll: int | None = pydantic.Field(default=None, ge=1)
    num_blocks: int | None = pydantic.Field(default=None, ge=1)
    network: str | None = _later(None)
    source: str | None = _later(None, pattern="^[0-9a-f]{16}$")

    @property
    def own_code(self) -> str | None:
        """The name of the user's own code that this network is built with; None where it is all ours."""
        return self.network or (self.cell if self.cell not in CELLS else None)

    def replace(self, **changes: Any) -> typing.Self:
        """As of every configuration; other code has another source."""
        return super().replace(**({"source": None} if {"cell", "network"} & changes.keys() else {}) | changes)

    @pydantic.field_validator("cell", "network")
    @classmethod
    def _is_known_or_a_name(cls, name: str | None, info: pydantic.ValidationInfo) -> str | None:
        ours = CELLS if info.field_name == "cell" else ()
        if name is not None and name not in ours and not own_code.is_name(name):
            last = "Class" if ours else "function"
            raise ValueError(suggest(name, [*ours, f"package.module:{last} of your own"], "value"))
        return name

    @pydantic.field_validator("solver", mode="before")
    @classmethod
    def _read_solver(cls, value: Any) -> Any:
        return None if value is None else nested(SolverConfig, value)

    @pydantic.field_validator("gradient", mode="before")
    @classmethod
    def _read_gradient(cls, value: Any) -> Any:
        return None if value is None else nested(GradientConfig, value)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        kind = options.get("kind", "explicit")
        defaults: dict[str, Any] = {}
        if kind in KINDS_WITH_CELL:
            defaults |= {"cell": "residual", "groups": 8}
        if kind == "deq":
            defaults |= {"solver": SolverConfig(), "gradient": GradientConfig(), "start": "x"}
        elif kind == "weight_tied":
            defaults |= {"unroll": 4}
        elif kind == "explicit_flops":
            defaults |= {"groups": 8}
            if options.get("num_blocks") is None:
                raise ValueError("kind 'explicit_flops' needs num_blocks, the measured compute of the DEQ in blocks")
            defaults |= {"num_blocks": options["num_blocks"]}
        elif kind == "network":
            if options.get("network") is None:
                raise ValueError("kind 'network' needs network, such as 'my_nets:small', a function that returns it")
            if options.get("head", "linear") != "linear" or options.get("feature_norm", "none") != "none":
                raise ValueError("head and feature_norm do not apply to kind 'network'; leave them out")
            defaults |= {"network": options["network"]}
        special = {"cell", "groups", "solver", "gradient", "start", "unroll", "num_blocks", "network"}
        filled = _fill(options, defaults, f"kind {kind!r}", special - set(defaults))
        own = filled.get("network") or filled.get("cell")
        if isinstance(own, str) and own_code.is_name(own):
            return _fill(filled, {"source": filled.get("source") or own_code.digest(own)}, "own code", set())
        return _fill(filled, {}, "networks of our own", {"source"})


class TrainConfig(Config):
    """How a network is trained. `recipe` gives the two protocols by name.

    Parameters
    ----------
    epochs, batch_size, lr, momentum, weight_decay : of the optimiser
    optimiser : "sgd"; "adam", whose weight decay is added to the gradient, as in "sgd" (coupled); or "adamw", which
        scales the weights by 1 − lr · weight_decay instead. The momentum of the latter two is their β1; β2 is 0.999
    schedule : "constant" or "cosine" (to 0 at the last step)
    clip : largest norm of the gradient; None for no clipping
    constraint : reading of the paper's E_W and E_H. "weight_decay": weight decay alone, neither is enforced;
        "projection": after each step the classifier is scaled onto (1/K) Σ‖w_k‖² ≤ e_w, and in each forward pass every
        feature onto ‖h‖² ≤ e_h; "penalty": adds (e_w/2) Σ‖w_k‖² + (e_h/2) mean ‖h‖² over the samples in the loss.
        Weight decay acts besides, unless it is set to 0
    e_w, e_h : needed by the last two
    loss : "cross_entropy"; for imbalanced classes "balanced_softmax", "class_balanced" or "ldam_drw", see
        `nclib.losses`. (Logit adjustment of a finished network needs no training: every evaluation reports it)
    skip : meaning of "skip problematic samples". "keep_best": a sample that did not converge trains on its best
        iterate; "mask": it leaves the loss. A sample with non-finite logits or a residual above 0.1 leaves it in both
    jacobian_reg : weight of the Jacobian regulariser ‖J‖²_F / d of the DEQ cell, over all samples; 0 for none
    precision : "float32" (on GPUs without TF32), "bfloat16" (autocast of the encoder; the last block and the read-out
        stay float32, since a cell in bfloat16 has no fixed point to the paper's tolerance, with TF32 on GPUs) or
        "float64"
    compile : torch.compile the network's cell
    log_every : epochs between full evaluations; the last ten epochs are always evaluated on the test set
    nc_on_test : neural-collapse report on the test features too
    deterministic : refuse operations whose result changes from call to call

    Examples
    --------
    >>> TrainConfig(epochs=20, batch_size=64, lr=0.05).epochs
    20
    """

    epochs: int = pydantic.Field(default=100, ge=1)
    batch_size: int = pydantic.Field(default=128, ge=2)  # BatchNorm has nothing to normalise in a batch of one
    lr: float = pydantic.Field(default=0.1, gt=0)
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    weight_decay: float = pydantic.Field(default=5e-4, ge=0)
    optimiser: Literal["sgd", "adam", "adamw"] = _later("sgd")
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float | None = pydantic.Field(default=1.0, gt=0)
    constraint: Literal["weight_decay", "projection", "penalty"] = "weight_decay"
    e_w: float | None = pydantic.Field(default=None, gt=0)
    e_h: float | None = pydantic.Field(default=None, gt=0)
    loss: LossName = _later("cross_entropy")
    skip: Literal["keep_best", "mask"] = "keep_best"
    jacobian_reg: float = pydantic.Field(default=0.0, ge=0)
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    compile: bool = False
    log_every: int = pydantic.Field(default=1, ge=1)
    nc_on_test: bool = False
    deterministic: bool = True

    @pydantic.model_validator(mode="after")
    def _constraint_has_its_numbers(self) -> typing.Self:
        given = self.e_w is not None and self.e_h is not None
        if self.constraint != "weight_decay" and not given:
            raise ValueError(f"constraint {self.constraint!r} needs e_w and e_h; the paper states 0.01 for both")
        if self.constraint == "weight_decay" and (self.e_w is not None or self.e_h is not None):
            raise ValueError("e_w and e_h apply only to constraint 'projection' or 'penalty'; leave them out")
        return self


_WORKABLE = {"lr": 0.1, "schedule": "cosine", "clip": 1.0}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"lr": 1e-4, "schedule": "constant", "clip": None},
    "workable": _WORKABLE,
    "collapse": _WORKABLE,
    "accuracy": _WORKABLE,
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
    if name not in RECIPES:
        raise ConfigError(suggest(name, RECIPES, "recipe"))
    return TrainConfig(**RECIPES[name] | changes)


class StoredConfig(Config):
    """Any configuration that the run store can hold: `kind` says which training it describes, `seed` which repetition.

    `profile` is a label that says for which profile the run was first asked; it is not part of the identity. Each kind
    is a subclass with its own `execute`; `nclib.engine.kinds` lists them by name.
    """

    on_cpu: ClassVar[bool] = False
    """Made on the processor even where there is a GPU, because there it is fastest."""

    kind: str
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)  # what every generator takes
    profile: str = "custom"

    def label(self) -> str:
        """Readable first part of the run id."""
        return self.kind

    def work(self) -> float:
        """Units of progress of the whole run, for the bar that waits for it."""
        return 1.0

    def seconds(self) -> float:
        """Rough seconds on one core. Plans scale them by the finished runs of this kind, so the ratio between two
        configurations matters more than the number."""
        return self.work()

    def needs(self) -> StoredConfig | None:
        """The run that this one starts from, which is made first."""
        return None

    def execute(self, job: Any) -> Any:
        """Make this run: from a `nclib.engine.jobs.Job` to a `nclib.engine.jobs.Result`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its runs are made")

    def canonical(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"profile"})


class RunConfig(StoredConfig):
    """One classifier training: data, model, protocol and seed. The seed sets subset, initialisation and order of the
    images, so that two arms with equal seeds are a pair.

    Examples
    --------
    >>> RunConfig(data=DataConfig(dataset="digits"), model=ModelConfig(kind="deq")).replace(seed=1).seed
    1
    """

    kind: Literal["classifier"] = "classifier"
    data: DataConfig = pydantic.Field(default_factory=DataConfig)
    model: ModelConfig = pydantic.Field(default_factory=ModelConfig)
    train: TrainConfig = pydantic.Field(default_factory=TrainConfig)

    @pydantic.field_validator("data", "model", "train", mode="before")
    @classmethod
    def _read(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        return nested({"data": DataConfig, "model": ModelConfig, "train": TrainConfig}[info.field_name or ""], value)

    @pydantic.model_validator(mode="after")
    def _options_fit_the_arm(self) -> typing.Self:
        if self.train.jacobian_reg and self.model.kind != "deq":
            raise ValueError("jacobian_reg applies only to model kind 'deq'")
        if self.train.loss == "ldam_drw" and self.model.head != "cosine":
            raise ValueError("loss 'ldam_drw' sets margins between cosines: it needs ModelConfig(head='cosine')")
        return self

    def work(self) -> float:
        return float(self.train.epochs)

    def execute(self, job: Any) -> Any:
        return job.train(self)

    def label(self) -> str:
        data = self.data
        name = data.dataset.removeprefix("folder:").split("@")[0]
        shape = data.imbalance
        if data.imbalance == "step":
            shape = f"KA{data.num_majority}-R{data.ratio:g}"
        elif data.imbalance == "exponential":
            shape = f"exp-R{data.ratio:g}"
        return f"{name}-{shape}-{self.model.kind}"


def run_id(config: StoredConfig) -> str:
    """The name of a run: readable label, seed, and 12 hexadecimal digits of the SHA-256 of its canonical options.

    The same on every machine: threads, device and paths are not part of a configuration, precision and compilation are.

    Examples
    --------
    >>> run_id(RunConfig(data=DataConfig(dataset="digits"), model=ModelConfig(kind="deq")))
    'digits-balanced-deq-s0-25c87cee8dc8'
    """
    return f"{config.label()}-s{config.seed}-{digest(config.canonical())}"


def digest(canonical: dict[str, Any]) -> str:
    """The end of a run id: 12 hexadecimal digits of the SHA-256 of canonical options, as they are or as JSON gave them
    back."""
    text = json.dumps({"schema": SCHEMA_VERSION, "config": canonical}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
