"""What a run is: its data, network, training and seed, and the id that follows from them.

A configuration is plain data. It is frozen and strict: an option that does not exist, has the wrong
type or does not apply (a solver for an explicit network) is refused, with the nearest right name.
Options left out are filled in with their defaults, so that two ways of writing the same run have
one id.

From top to bottom: what every configuration is, cells of a user's own, the parts of a run, the run
and its id.
"""

import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
import typing
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal

import pydantic

SCHEMA_VERSION = 1
"""Raised whenever the meaning of a stored run changes; part of every run id."""

LAST_EPOCHS = 10
"""The paper reports mean and standard deviation of the test accuracy over this many last epochs
(section 5.1)."""

ModelKind = Literal["explicit", "deq", "explicit_matched", "weight_tied", "explicit_flops"]
LossName = Literal["cross_entropy", "balanced_softmax", "class_balanced", "ldam_drw"]
CELLS = ("residual", "mdeq")


# --- Every configuration --------------------------------------------------------------------------


class ConfigError(ValueError):
    """A setting that does not exist, has the wrong type or value, or does not apply here.

    Examples
    --------
    >>> issubclass(ConfigError, ValueError)
    True
    """

    exit_code = 2


def suggest(wrong: str, allowed: Iterable[str], what: str = "option") -> str:
    """A sentence with the wrong name, the nearest allowed one and all that are allowed."""
    names = sorted(str(name) for name in allowed)
    nearest = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} {wrong!r}.{hint} Allowed: {', '.join(names)}"


def one_of(name: str, allowed: Iterable[str], what: str) -> str:
    """The name, if it is allowed; otherwise `ConfigError` with the sentence of `suggest`."""
    if name not in allowed:
        raise ConfigError(suggest(name, allowed, what))
    return name


class Config(pydantic.BaseModel):
    """Base of every configuration: frozen, strict about names and types, errors that suggest.

    A subclass may override `fill_in`, which adds options that were left out.

    Raises
    ------
    ConfigError
        On construction, for any unknown option or unusable value; all faults of one object are
        listed together.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )

    added_later: ClassVar[tuple[str, ...]] = ()
    """Options that came after runs had been stored. At their default they stay out of the id, so
    that older runs keep their names."""

    fixed: ClassVar[dict[str, Any]] = {}
    """Options that have one value. They are no options any more, but part of the ids of stored
    runs."""

    def __init__(self, /, **options: Any) -> None:
        for name, value in options.items():
            if isinstance(value, Integral) and not isinstance(value, int):
                options[name] = int(value)  # of NumPy, as seeds from np.arange are
        try:
            super().__init__(**options)
        except pydantic.ValidationError as error:
            sentences = [self._explain(fault) for fault in error.errors()]
            raise ConfigError("\n".join(sentences)) from None

    @classmethod
    def _explain(cls, fault: Any) -> str:
        where = ".".join(str(part) for part in fault["loc"])
        label = f"{cls.__name__}.{where}" if where else cls.__name__
        if fault["type"] == "extra_forbidden":
            return f"{cls.__name__}: {suggest(where, cls.model_fields)}"
        if fault["type"] == "literal_error":
            allowed = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
            return f"{label}: {suggest(fault['input'], allowed, 'value')}"
        if fault["type"] == "value_error":
            return f"{label}: {fault['ctx']['error']}"
        return f"{label}: {fault['msg']}, got {fault['input']!r:.200}"

    @pydantic.model_validator(mode="before")
    @classmethod
    def _before_validation(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options  # pydantic refuses it by its type
        options = dict(options)
        for name, value in cls.fixed.items():
            if options.pop(name, value) != value:
                raise ValueError(f"{name} is always {value!r}; leave it out")
        return cls.fill_in(options)

    @classmethod
    def fill_in(cls, options: dict[str, Any]) -> dict[str, Any]:
        """The options with those that were left out."""
        return options

    @pydantic.model_serializer(mode="wrap")
    def _as_stored(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        for name in self.added_later:
            if getattr(self, name) == type(self).model_fields[name].default:
                values.pop(name, None)
        return values | self.fixed

    def replace(self, **changes: Any) -> typing.Self:
        """A copy with some options changed, validated like a new one.

        A mapping changes the options of a part that it names. Where another kind or method has
        other options, give the whole part, as ``model=ModelConfig(…)``.
        """
        for name, value in changes.items():
            part = getattr(self, name, None)
            if isinstance(value, Mapping) and isinstance(part, Config):
                changes[name] = part.replace(**value)
        options = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(options | changes))


def options_of_choice(
    options: dict[str, Any], name: str, table: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Fill in the options that go with a choice, and refuse those that go with another.

    Parameters
    ----------
    options : as they were given
    name : of the option that is chosen, such as "method"
    table : of each choice its options with their defaults, ``...`` for one that must be given; the
        first choice is the default

    Raises
    ------
    ValueError
        Which pydantic turns into a `ConfigError`.
    """
    choice = str(options.get(name, next(iter(table))))
    if choice not in table:
        return options  # refused by its type
    defaults = table[choice]
    given = {option for option, value in options.items() if value is not None}
    of_any_choice = set().union(*table.values())
    wrong = sorted((given & of_any_choice) - defaults.keys())
    if wrong:
        raise ValueError(f"{', '.join(wrong)} does not apply to {name} {choice!r}; leave it out")
    left_out = {option: value for option, value in defaults.items() if option not in given}
    missing = [option for option, value in left_out.items() if value is ...]
    if missing:
        raise ValueError(f"{name} {choice!r} needs {' and '.join(missing)}")
    return options | left_out


# --- A cell of a user's own, named by its import path ---------------------------------------------

_imported: dict[str, str] = {}
"""Digest of each module that `import_object` has imported, as it was then."""


def is_import_path(text: str) -> bool:
    """Whether a text has the form ``package.module:Name``."""
    module, colon, name = text.partition(":")
    parts = [*module.split("."), name]
    return bool(colon) and all(part.isidentifier() for part in parts)


def source_file(import_path: str) -> Path:
    """The file of the module in ``package.module:Name``, which is not run.

    Raises
    ------
    ConfigError
        When there is no such module, or it has no file.
    """
    module = import_path.partition(":")[0]
    if module == "__main__":
        raise ConfigError(
            "a cell defined in a notebook or script cannot be named: write it to a .py file"
        )
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a package above it is missing, or is no package
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise ConfigError(
            f"found no module {module!r} on the Python path; "
            "start Python in its folder or install it"
        )
    return Path(spec.origin)


def source_digest(import_path: str) -> str:
    """First 16 hexadecimal digits of a SHA-256 over the module's name and the SHA-256 of its one
    file.

    What that file imports or reads does not count.

    Raises
    ------
    ConfigError
        When the module is not found.

    Examples
    --------
    >>> len(source_digest("nclib.models:ResidualCell"))
    16
    """
    module = import_path.partition(":")[0]
    content = hashlib.sha256(source_file(import_path).read_bytes()).hexdigest()
    return hashlib.sha256(f"{module} {content}".encode()).hexdigest()[:16]


def import_object(import_path: str, source: str | None = None) -> Any:
    """What ``package.module:Name`` stands for.

    A module that this session imported before its file changed is loaded again.

    Parameters
    ----------
    import_path : ``package.module:Name``
    source : the `source_digest` that the file must have; left out: any

    Raises
    ------
    ConfigError
        When the module is not found, raises an error, does not have the name, or has another
        digest.
    """
    module, _, name = import_path.partition(":")
    now = source_digest(import_path)
    if source is not None and now != source:
        raise ConfigError(
            f"the source of {import_path} changed since this run was configured: configure it "
            "anew, or put back the code.*.py that a finished run keeps in its folder"
        )
    changed = module in sys.modules and _imported.get(module) != now
    try:
        if changed and not module.startswith("nclib."):
            imported = importlib.reload(sys.modules[module])
        else:
            imported = importlib.import_module(module)
        _imported[module] = now
        return getattr(imported, name)
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(
            f"{import_path} cannot be imported ({type(error).__name__}: {error})"
        ) from error


def search_working_directory() -> None:
    """Find modules in the working directory too, after all other places, as ``python -m`` does."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


# --- The parts of a run ---------------------------------------------------------------------------


class SolverConfig(Config):
    """Which fixed-point method, how exact, how long. The defaults are the preset of Sun & Shi
    (2024, section 5.1).

    Parameters
    ----------
    method : "broyden", "anderson" or "fixed_point"
    tol : relative residual ‖f(z)−z‖₂/‖f(z)‖₂ per sample at which a sample is done
    max_steps : calls of the cell allowed per sample
    history, ridge, damping : of the methods that have them; left out means the method's own
        default. ``replace`` with another method keeps the values that are there, such as the
        history 20 of "broyden"

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for one that the method does not
        have.

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
    def fill_in(cls, options: dict[str, Any]) -> dict[str, Any]:
        methods = {  # with the defaults of the solvers
            "broyden": {"history": 20},
            "anderson": {"history": 5, "ridge": 1e-8, "damping": 0.0},
            "fixed_point": {"damping": 0.0},
        }
        return options_of_choice(options, "method", methods)


class GradientConfig(Config):
    """How the equilibrium is differentiated.

    Parameters
    ----------
    method : "implicit" (implicit function theorem), "phantom" (a few steps from the equilibrium;
        one step is JFB), "neumann" (truncated series) or "unrolled" (through explicit steps from
        the start, without solver)
    steps : terms or steps; left out means 1, for "unrolled" it is required. Of "implicit" the
        products with Jᵀ, where few are meant; left out, as many as its solve takes
    damping : of "phantom" only

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for one that the method does not have
        or lacks.

    Examples
    --------
    >>> GradientConfig(method="phantom").method
    'phantom'
    """

    method: Literal["implicit", "phantom", "neumann", "unrolled"] = "implicit"
    steps: int | None = pydantic.Field(default=None, ge=1)
    damping: float | None = pydantic.Field(default=None, ge=0, lt=1)

    @classmethod
    def fill_in(cls, options: dict[str, Any]) -> dict[str, Any]:
        methods = {
            "implicit": {"steps": None},
            "neumann": {"steps": 1},
            "phantom": {"steps": 1, "damping": 0.0},
            "unrolled": {"steps": ...},
        }
        return options_of_choice(options, "method", methods)


def setting(
    imbalance: str | None, num_majority: int | None = None, ratio: float | None = None
) -> str:
    """How the classes are weighted, as run ids and the column ``setting`` have it.

    Examples
    --------
    >>> setting("step", 3, 10.0)
    'KA3-R10'
    """
    if imbalance == "step":
        return f"KA{num_majority}-R{ratio or 1:g}"
    if imbalance == "exponential":
        return f"exp-R{ratio or 1:g}"
    return "balanced"


RESOLVED_FOLDER = re.compile(r"folder:[A-Za-z0-9._-]+@[0-9a-f]{12}")
"""The name that an image folder resolves to, NAME@FINGERPRINT."""


class DataConfig(Config):
    """Which images, how many of each class, and which classes are many.

    Parameters
    ----------
    dataset : a name of `nclib.data.load_dataset`; a folder in its resolved form
        ``folder:NAME@FINGERPRINT`` (`nclib.data.resolve_dataset` makes it), so that no path of a
        machine enters a run's identity
    imbalance : "balanced", "step" (K_A classes with n_A images, the rest with n_A/R) or
        "exponential" (from n_A down to n_A/R)
    num_majority : K_A, the real number of majority classes; for "step" only
    ratio : R = n_A/n_B ≥ 1; n_B is at least 1, so that classes of fewer than R images have a
        smaller ratio
    majority : which classes are majority, "first" (as in the paper) or "random" (seeded); left out:
        "random" for digit_pairs, whose first classes share their left digit, "first" for the others
    n_max : images of the largest classes, n_A; left out: as many as the smallest class has
    test_per_class : test images per class; left out: all there are
    augment : "dataset" (flips and crops for photographs, nothing for digits) or "none"
    subset_seed : of the images drawn and of majority="random"; left out: the run's seed. With it,
        runs of different seeds see the same images and differ in initial weights and order alone

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for a folder that is not resolved.

    Examples
    --------
    >>> DataConfig(dataset="digits", imbalance="step", num_majority=3, ratio=10.0).setting
    'KA3-R10'
    """

    added_later: ClassVar[tuple[str, ...]] = ("subset_seed",)

    dataset: str = "digits"
    imbalance: Literal["balanced", "step", "exponential"] = "balanced"
    num_majority: int | None = pydantic.Field(default=None, ge=1)
    ratio: float | None = pydantic.Field(default=None, ge=1)
    majority: Literal["first", "random"] | None = None
    n_max: int | None = pydantic.Field(default=None, ge=1)
    test_per_class: int | None = pydantic.Field(default=None, ge=1)
    augment: Literal["dataset", "none"] = "dataset"
    subset_seed: int | None = pydantic.Field(default=None, ge=0, lt=2**32)

    @classmethod
    def fill_in(cls, options: dict[str, Any]) -> dict[str, Any]:
        order = "random" if options.get("dataset") == "digit_pairs" else "first"
        shapes = {
            "balanced": {},
            "step": {"num_majority": ..., "ratio": ..., "majority": order},
            "exponential": {"ratio": ..., "majority": order},
        }
        return options_of_choice(options, "imbalance", shapes)

    @pydantic.field_validator("dataset")
    @classmethod
    def _folder_is_resolved(cls, name: str) -> str:
        if name.startswith("folder:") and not RESOLVED_FOLDER.fullmatch(name):
            raise ValueError(f"{name!r} is a path; give nclib.data.resolve_dataset({name!r})")
        return name

    @property
    def setting(self) -> str:
        return setting(self.imbalance, self.num_majority, self.ratio)


class ModelConfig(Config):
    """One network of the comparison. All share the encoder, a ResNet-18 for small images up to the
    first block of its last stage.

    Parameters
    ----------
    kind :
        - "explicit": the second block of layer 4 as in ResNet-18, with BatchNorm; the paper's
          explicit network
        - "deq": that block as an equilibrium cell with input injection and GroupNorm
        - "explicit_matched": the same block applied once; the same parameters as "deq"
        - "weight_tied": the same cell unrolled `unroll` times, differentiated through
        - "explicit_flops": `num_blocks` untied GroupNorm blocks, the measured compute of the DEQ
    width : channels of the first stage; features have 8·width dimensions (512 at the paper's 64)
    cell : "residual" (ends in ReLU, like the explicit block), "mdeq" (ends in GroupNorm, as in
        multiscale DEQs), or "package.module:Class" of your own, called with the number of channels,
        and with `groups` if it takes that
    source : digest of the file of your own cell, so that changed code makes another run; left out:
        as it is now. What the file imports or reads does not count
    name : what the column ``model`` of a table shows instead of the kind, to distinguish two custom
        cells. No part of the identity
    groups : groups of every GroupNorm
    feature_norm : "none" or "batchnorm" (BatchNorm1d on the pooled features, which centres them)
    head : the classifier without bias: "linear"; "etf", fixed at a simplex ETF with rows of norm 1
        (Zhu et al. 2021; Yang et al. 2022); "cosine", 30 cos(h, w_k), which LDAM needs (Cao et al.
        2019)
    solver, gradient, start : of "deq"; start is the first iterate, "x" (the block's input) or
        "zeros"
    unroll : of "weight_tied"
    num_blocks : of "explicit_flops"

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for one that the kind does not have
        or lacks; for a cell that is not found.

    Examples
    --------
    >>> ModelConfig(kind="deq", width=16, solver=SolverConfig(method="anderson")).solver.method
    'anderson'
    """

    added_later: ClassVar[tuple[str, ...]] = ("head", "source", "name")

    kind: ModelKind = "explicit"
    width: int = pydantic.Field(default=64, ge=1)
    cell: str | None = None
    groups: int | None = pydantic.Field(default=None, ge=1)
    feature_norm: Literal["none", "batchnorm"] = "none"
    head: Literal["linear", "etf", "cosine"] = "linear"
    solver: SolverConfig | None = None
    gradient: GradientConfig | None = None
    start: Literal["x", "zeros"] | None = None
    unroll: int | None = pydantic.Field(default=None, ge=1)
    num_blocks: int | None = pydantic.Field(default=None, ge=1)
    source: str | None = pydantic.Field(default=None, pattern="^[0-9a-f]{16}$")
    name: str | None = pydantic.Field(default=None, pattern=r"^\S[^\n\r\t<>]{0,59}$")

    @classmethod
    def fill_in(cls, options: dict[str, Any]) -> dict[str, Any]:
        cell = {"cell": "residual", "groups": 8}
        equilibrium = {"solver": SolverConfig(), "gradient": GradientConfig(), "start": "x"}
        kinds = {
            "explicit": {},
            "deq": cell | equilibrium,
            "explicit_matched": cell,
            "weight_tied": cell | {"unroll": 4},
            "explicit_flops": {"groups": 8, "num_blocks": ...},
        }
        options = options_of_choice(options, "kind", kinds)
        name = options.get("cell")
        if isinstance(name, str) and is_import_path(name) and options.get("source") is None:
            options["source"] = source_digest(name)
        return options

    @pydantic.field_validator("cell")
    @classmethod
    def _cell_is_known_or_an_import_path(cls, name: str | None) -> str | None:
        if name is not None and name not in CELLS and not is_import_path(name):
            raise ValueError(suggest(name, [*CELLS, "package.module:Class of your own"], "value"))
        return name

    @pydantic.field_validator("name")
    @classmethod
    def _name_is_no_other_kind(cls, name: str | None, info: pydantic.ValidationInfo) -> str | None:
        # A column `model` with two networks of one name would compare a network with itself.
        if name in typing.get_args(ModelKind) and name != info.data.get("kind"):
            raise ValueError(
                f"{name!r} is a kind of model, and this one is of another; choose another name"
            )
        return name

    @property
    def own_cell(self) -> str | None:
        """The import path of a cell of the user's own; None where the cell is ours."""
        return None if self.cell in CELLS else self.cell

    def replace(self, **changes: Any) -> typing.Self:
        """As of every configuration; another cell has another source and name."""
        if "cell" in changes:
            changes = {"source": None, "name": None} | changes
        return super().replace(**changes)


class TrainConfig(Config):
    """How a network is trained. `recipe` gives the two protocols by name.

    Samples whose logits are not finite, or whose residual is above 0.1, are left out of the loss
    and counted; one that did not converge trains on its best iterate. The paper's E_W and E_H are
    read as weight decay.

    Parameters
    ----------
    epochs, batch_size, lr, momentum, weight_decay : of the optimiser
    optimiser : "sgd"; "adam", whose weight decay is added to the gradient, as in "sgd" (coupled);
        or "adamw", which scales the weights by 1 − lr · weight_decay instead. The momentum of the
        latter two is their β1; β2 is 0.999
    schedule : "constant" or "cosine" (to 0 at the last step)
    clip : largest norm of the gradient; None for no clipping
    loss : "cross_entropy"; for imbalanced classes "balanced_softmax", "class_balanced" or
        "ldam_drw", see `nclib.losses`. (Logit adjustment of a finished network needs no training:
        every evaluation reports it)
    precision : "float32" (on GPUs without TF32), "bfloat16" (autocast of the encoder; the last
        block and the read-out stay float32, since a cell in bfloat16 has no fixed point to the
        paper's tolerance, with TF32 on GPUs) or "float64"
    log_every : epochs between full evaluations; the last ten epochs are always evaluated on the
        test set
    nc_on_test : neural-collapse report on the test features too
    deterministic : refuse operations whose result changes from call to call

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used.

    Examples
    --------
    >>> TrainConfig(epochs=20, batch_size=64, lr=0.05).epochs
    20
    """

    added_later: ClassVar[tuple[str, ...]] = ("optimiser", "loss")
    fixed: ClassVar[dict[str, Any]] = {
        "constraint": "weight_decay",
        "e_w": None,
        "e_h": None,
        "skip": "keep_best",
        "jacobian_reg": 0.0,
        "compile": False,
    }

    epochs: int = pydantic.Field(default=100, ge=1)
    batch_size: int = pydantic.Field(default=128, ge=2)  # BatchNorm cannot normalise one image
    lr: float = pydantic.Field(default=0.1, gt=0)
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1)
    weight_decay: float = pydantic.Field(default=5e-4, ge=0)
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    schedule: Literal["constant", "cosine"] = "cosine"
    clip: float | None = pydantic.Field(default=1.0, gt=0)
    loss: LossName = "cross_entropy"
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    log_every: int = pydantic.Field(default=1, ge=1)
    nc_on_test: bool = False
    deterministic: bool = True

    def evaluated(self, epoch: int) -> dict[str, bool]:
        """The splits that are evaluated after an epoch, and whether metrics of collapse are logged
        too."""
        if epoch in (1, self.epochs) or epoch % self.log_every == 0:
            return {"train": True, "test": self.nc_on_test}
        if epoch > self.epochs - LAST_EPOCHS:
            return {"test": False}
        return {}


_WORKABLE = {"lr": 0.1, "schedule": "cosine", "clip": 1.0}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"lr": 1e-4, "schedule": "constant", "clip": None},
    "workable": _WORKABLE,
    "collapse": _WORKABLE,
    "accuracy": _WORKABLE,
}
"""Named training protocols. "paper" is what the paper states literally (section 5.1) and "workable"
one that trains. "collapse" and "accuracy" are "workable" without augmentation, to reach the
terminal phase, and with it."""

AUGMENTATION = {"collapse": "none", "accuracy": "dataset"}
"""`DataConfig.augment` of the recipes that fix it."""


def recipe(name: str = "workable", **changes: Any) -> TrainConfig:
    """A named training protocol with some options changed.

    Raises
    ------
    ConfigError
        For a name that is not in `RECIPES` or an option that `TrainConfig` does not have.

    Examples
    --------
    >>> recipe("paper", epochs=2).lr
    0.0001
    """
    options = RECIPES[one_of(name, RECIPES, "recipe")]
    return TrainConfig(**(options | changes))


# --- The run and its id ---------------------------------------------------------------------------

_LABELS: dict[str, Any] = {"profile": True, "model": {"name"}}
"""What is shown of a run and does not enter its id."""


class StoredConfig(Config):
    """Any configuration that the run store can hold: `kind` names the training, `seed` the
    repetition.

    `profile` names the preset for which the run was first asked; it is not part of the id, nor is
    the name of its model. Each kind other than classifiers is a subclass with its own `execute`.
    """

    on_cpu: ClassVar[bool] = False
    """Made on the processor even where there is a GPU, because there it is fastest."""

    kind: str
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)  # what every generator takes
    profile: str = "custom"

    def label(self) -> str:
        """Readable first part of the run id."""
        return self.kind

    def needs(self) -> "StoredConfig | None":
        """The run that this one starts from, which is made first."""
        return None

    def seconds(self) -> float:
        """Roughly how long it takes on a core. Only the time left that is shown depends on it."""
        return 5.0

    def execute(self, job: Any) -> Any:
        """Make this run, of another kind than a classifier: from the job that the engine hands it
        to a `nclib.training.Result`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its runs are made")

    def canonical(self) -> dict[str, Any]:
        """The options that make up the id, as plain JSON values."""
        return self.model_dump(mode="json", exclude=_LABELS | {"base": _LABELS})


class RunConfig(StoredConfig):
    """One classifier training: data, model, protocol and seed. The seed sets subset, initialisation
    and order of the images, so that two networks with equal seeds are a pair.

    Parameters
    ----------
    data, model, train : a `DataConfig`, `ModelConfig` and `TrainConfig`, or dictionaries of their
        options
    seed : which repetition
    profile : for which it was first asked; no part of its identity
    kind : "classifier"

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for a loss that this network cannot
        have.

    Examples
    --------
    >>> config = RunConfig(data=DataConfig(dataset="digits"), model=ModelConfig(kind="deq"))
    >>> config.replace(seed=1).seed
    1
    """

    kind: Literal["classifier"] = "classifier"
    data: DataConfig = pydantic.Field(default_factory=DataConfig)
    model: ModelConfig = pydantic.Field(default_factory=ModelConfig)
    train: TrainConfig = pydantic.Field(default_factory=TrainConfig)

    @pydantic.model_validator(mode="after")
    def _loss_fits_the_classifier(self) -> typing.Self:
        if self.train.loss == "ldam_drw" and self.model.head != "cosine":
            raise ValueError(
                "loss 'ldam_drw' sets margins between cosines: it needs ModelConfig(head='cosine')"
            )
        return self

    def label(self) -> str:
        dataset = self.data.dataset.removeprefix("folder:").split("@")[0]
        return f"{dataset}-{self.data.setting}-{self.model.kind}"


class PostHocConfig(StoredConfig):
    """An analysis of a finished run, its base. Seed and profile are the base's; its data, model and
    train are found here too, so that plans and captions treat the analysis like the run itself."""

    base: RunConfig

    @classmethod
    def fill_in(cls, options: dict[str, Any]) -> dict[str, Any]:
        base = options.get("base", {})
        values = base if isinstance(base, dict) else vars(base)
        inherited = {name: values[name] for name in ("seed", "profile") if name in values}
        return inherited | options

    def needs(self) -> RunConfig:
        return self.base

    @property
    def data(self) -> DataConfig:
        return self.base.data

    @property
    def model(self) -> ModelConfig:
        return self.base.model

    @property
    def train(self) -> TrainConfig:
        return self.base.train


def run_id(config: StoredConfig) -> str:
    """The name of a run: readable label, seed, and 12 hexadecimal digits of the SHA-256 of its
    canonical options.

    The same on every machine: threads, device and paths are not part of a configuration, precision
    is.

    Parameters
    ----------
    config : of any kind of run

    Returns
    -------
    str

    Examples
    --------
    >>> run_id(RunConfig(data=DataConfig(dataset="digits"), model=ModelConfig(kind="deq")))
    'digits-balanced-deq-s0-25c87cee8dc8'
    """
    return f"{config.label()}-s{config.seed}-{digest(config.canonical())}"


def digest(canonical: Mapping[str, Any]) -> str:
    """The end of a run id: 12 hexadecimal digits of the SHA-256 of canonical options."""
    content = {"schema": SCHEMA_VERSION, "config": canonical}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
