"""The kinds of runs by name. A class is imported when its name is met.

``classifier`` is nclib's own; others are entry points of the group ``nclib.kinds``, see `nclib.system.plugins`.
"""

from __future__ import annotations

from typing import Any

from nclib.config import ConfigError, RunConfig, StoredConfig, parse_json, suggest
from nclib.system import plugins


def config_class(kind: Any) -> type[StoredConfig]:
    """The class of the configurations of a kind; raises `ConfigError` for a kind there is not."""
    if kind == "classifier":
        return RunConfig
    places = plugins.added("kinds")
    if not isinstance(kind, str) or kind not in places:
        raise ConfigError(suggest(kind, ["classifier", *places], "kind of run"))
    return places[kind].load()


def read_config(config_json: str) -> StoredConfig:
    """The configuration of any kind of run from its JSON; raises `ConfigError` for a kind there is not."""
    return config_class(parse_json(config_json, "configuration").get("kind", "classifier")).from_json(config_json)
