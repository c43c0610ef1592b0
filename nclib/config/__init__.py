"""Frozen, strict descriptions of a run, and the identity that follows from them.

A configuration is plain data: building one reads no file and trains nothing. An option that does not exist, has the
wrong type or does not apply (a solver for an explicit network) is refused here, with the nearest right name, so that
a misspelt setting can never run silently with a default. Options left out are filled in with their defaults, which
makes two ways of writing the same run one identity.

`strict` is what every configuration is, `parts` has those of a run (solver, gradient, data, model, training), `run` the
run itself, its identity and what is made of a finished one.
"""

from nclib.config.parts import AUGMENTATION as AUGMENTATION
from nclib.config.parts import LAST_EPOCHS as LAST_EPOCHS
from nclib.config.parts import RECIPES as RECIPES
from nclib.config.parts import DataConfig as DataConfig
from nclib.config.parts import GradientConfig as GradientConfig
from nclib.config.parts import ModelConfig as ModelConfig
from nclib.config.parts import SolverConfig as SolverConfig
from nclib.config.parts import TrainConfig as TrainConfig
from nclib.config.parts import recipe as recipe
from nclib.config.run import SCHEMA_VERSION as SCHEMA_VERSION
from nclib.config.run import PostHocConfig as PostHocConfig
from nclib.config.run import RunConfig as RunConfig
from nclib.config.run import StoredConfig as StoredConfig
from nclib.config.run import digest as digest
from nclib.config.run import named_options as named_options
from nclib.config.run import run_id as run_id
from nclib.config.strict import Config as Config
from nclib.config.strict import ConfigError as ConfigError
from nclib.config.strict import parse_json as parse_json
from nclib.config.strict import suggest as suggest
