"""A run as the store holds it, the kinds that every paper shares, and its identity."""

import hashlib
import json
import typing
from typing import Any, ClassVar, Literal

import pydantic

from nclib.config.parts import DataConfig, ModelConfig, TrainConfig
from nclib.config.strict import Config, option

SCHEMA_VERSION = 1
"""Raised whenever the meaning of a stored run changes; part of every run id."""

_LABELS: dict[str, Any] = {"profile": True, "model": {"name"}}
"""What is shown of a run and does not enter its identity."""


class StoredConfig(Config):
    """Any configuration that the run store can hold: `kind` names the training it describes, `seed` the repetition.

    `profile` names the profile for which the run was first asked; it is not part of the identity, nor is the
    name of its model. Each kind is a subclass with its own `execute`, classifiers aside.
    """

    on_cpu: ClassVar[bool] = False
    """Made on the processor even where there is a GPU, because there it is fastest."""

    kind: str
    seed: int = option("--seed", "Subset, initialisation and order.", 0, ge=0, lt=2**32)  # what every generator takes
    profile: str = "custom"

    def label(self) -> str:
        """Readable first part of the run id."""
        return self.kind

    def needs(self) -> "StoredConfig | None":
        """The run that this one starts from, which is made first."""
        return None

    def execute(self, job: Any) -> Any:
        """Make this run: from a `nclib.engine.jobs.Job` to a `nclib.engine.jobs.Result`; a classifier is trained by
        `nclib.training.train`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its runs are made")

    def canonical(self) -> dict[str, Any]:
        """The options that make up the identity, as plain JSON values."""
        return self.model_dump(mode="json", exclude=_LABELS | {"base": _LABELS})


class RunConfig(StoredConfig):
    """One classifier training: data, model, protocol and seed. The seed sets subset, initialisation and order of the
    images, so that two arms with equal seeds are a pair.

    Parameters
    ----------
    data, model, train : a `DataConfig`, `ModelConfig` and `TrainConfig`, or dictionaries of their options
    seed : which repetition
    profile : for which it was first asked; no part of its identity
    kind : "classifier"

    Raises
    ------
    ConfigError
        For an unknown option, or a value that cannot be used; for a loss that this network cannot have.

    Examples
    --------
    >>> RunConfig(data=DataConfig(dataset="digits"), model=ModelConfig(kind="deq")).replace(seed=1).seed
    1
    """

    kind: Literal["classifier"] = "classifier"
    data: DataConfig = pydantic.Field(default_factory=DataConfig)
    model: ModelConfig = pydantic.Field(default_factory=ModelConfig)
    train: TrainConfig = pydantic.Field(default_factory=TrainConfig)

    @pydantic.model_validator(mode="after")
    def _options_fit_the_arm(self) -> typing.Self:
        if self.train.loss == "ldam_drw" and self.model.head != "cosine":
            raise ValueError("loss 'ldam_drw' sets margins between cosines: it needs ModelConfig(head='cosine')")
        return self

    def label(self) -> str:
        return f"{self.data.dataset.removeprefix('folder:').split('@')[0]}-{self.data.setting}-{self.model.kind}"


class PostHocConfig(StoredConfig):
    """A post-hoc analysis of a finished run, its base. Seed and profile are the base's; its data, model and train are
    found here too, so that planning, checks and captions treat the analysis like the run itself."""

    base: RunConfig

    @classmethod
    def _complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        base = options.get("base", {})
        found = base if isinstance(base, dict) else vars(base)
        return {name: found[name] for name in ("seed", "profile") if name in found} | options

    def needs(self) -> RunConfig:
        return self.base

    data = property(lambda self: self.base.data)
    model = property(lambda self: self.base.model)
    train = property(lambda self: self.base.train)


def run_id(config: StoredConfig) -> str:
    """The name of a run: readable label, seed, and 12 hexadecimal digits of the SHA-256 of its canonical options.

    The same on every machine: threads, device and paths are not part of a configuration, precision is.

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


def digest(canonical: dict[str, Any]) -> str:
    """The end of a run id: 12 hexadecimal digits of the SHA-256 of canonical options, as they are or as JSON gave them
    back."""
    text = json.dumps({"schema": SCHEMA_VERSION, "config": canonical}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def named_options() -> dict[str, pydantic.fields.FieldInfo]:
    """The fields of a `RunConfig` that are options of ``nclib train`` by name, by their dotted keys."""
    fields = {name: field for name, field in RunConfig.model_fields.items()}
    for part in ("data", "model", "train"):
        fields |= {f"{part}.{name}": field for name, field in fields.pop(part).annotation.model_fields.items()}
    return {key: field for key, field in fields.items() if "option" in (field.json_schema_extra or {})}
