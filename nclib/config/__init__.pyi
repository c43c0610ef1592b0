"""The public names of ``nclib.config`` and where each lives."""

from .parts import (
    AUGMENTATION as AUGMENTATION,
    LAST_EPOCHS as LAST_EPOCHS,
    RECIPES as RECIPES,
    DataConfig as DataConfig,
    GradientConfig as GradientConfig,
    ModelConfig as ModelConfig,
    SolverConfig as SolverConfig,
    TrainConfig as TrainConfig,
    recipe as recipe,
)
from .run import (
    SCHEMA_VERSION as SCHEMA_VERSION,
    PostHocConfig as PostHocConfig,
    RunConfig as RunConfig,
    StoredConfig as StoredConfig,
    digest as digest,
    named_options as named_options,
    run_id as run_id,
)
from .strict import Config as Config, ConfigError as ConfigError, one_of as one_of, suggest as suggest
