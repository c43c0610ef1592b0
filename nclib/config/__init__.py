"""Frozen, strict descriptions of a run, and the identity that follows from them.

A configuration is plain data: building one reads no file and trains nothing. An option that does not exist, has the
wrong type or does not apply (a solver for an explicit network) is refused here, with the nearest right name, so that
a misspelt setting can never run silently with a default. Options left out are filled in with their defaults, which
makes two ways of writing the same run one identity.

`strict` is what every configuration is, `parts` has those of a run (solver, gradient, data, model, training), `run` the
run itself, its identity and what is made of a finished one.
"""

from nclib.config.parts import (
    AUGMENTATION,
    CELLS,
    KINDS_WITH_CELL,
    LAST_EPOCHS,
    RECIPES,
    DataConfig,
    GradientConfig,
    LossName,
    ModelConfig,
    ModelKind,
    SolverConfig,
    TrainConfig,
    recipe,
)
from nclib.config.run import SCHEMA_VERSION, PostHocConfig, RunConfig, StoredConfig, digest, named_options, run_id
from nclib.config.strict import Config, ConfigError, parse_json, suggest

__all__ = [
    "AUGMENTATION",
    "CELLS",
    "KINDS_WITH_CELL",
    "LAST_EPOCHS",
    "RECIPES",
    "SCHEMA_VERSION",
    "Config",
    "ConfigError",
    "DataConfig",
    "GradientConfig",
    "LossName",
    "ModelConfig",
    "ModelKind",
    "PostHocConfig",
    "RunConfig",
    "SolverConfig",
    "StoredConfig",
    "TrainConfig",
    "digest",
    "named_options",
    "parse_json",
    "recipe",
    "run_id",
    "suggest",
]
