"""The kinds of runs by name. A class is imported when its name is met, so the engine imports no paper.

A paper of your own is a module that Python can import, named in the environment variable `NCLIB_PAPERS` (several are
separated by commas). It may have the two tables

    KINDS          name of a kind: "module:Class", a `StoredConfig` with an ``execute`` of its own
    EXPERIMENTS    "paper/notebook": a function from a `Profile` to the configurations of its runs
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from nclib.config import ConfigError, StoredConfig, parse_json, suggest
from nclib.system import provenance

KINDS: dict[str, str] = {
    "classifier": "nclib.config:RunConfig",
    "solver_probe": "nclib.papers.neural_collapse.solver_sweep:SolverSweepConfig",
    "depth": "nclib.papers.neural_collapse.depth:DepthConfig",
    "shallow": "nclib.papers.kernel_equivalence.networks:ShallowConfig",
    "regression": "nclib.papers.separation_bias.regression:RegressionConfig",
    "grad_cam": "nclib.papers.separation_bias.saliency:CamConfig",
}


def papers() -> list[ModuleType]:
    """The modules that `NCLIB_PAPERS` names, imported.

    Raises
    ------
    ConfigError
        For a module that cannot be imported.
    """
    found = []
    for name in provenance.papers():
        try:
            found.append(importlib.import_module(name))
        except (ImportError, TypeError, ValueError) as error:  # the last two of names such as ../x
            raise ConfigError(
                f"NCLIB_PAPERS names {name!r}, which cannot be imported ({error}); add its folder to PYTHONPATH"
            ) from None
    return found


def merged(own: dict[str, Any], table: str) -> dict[str, Any]:
    """A table of the library with those of the same name of all `papers`.

    Raises
    ------
    ConfigError
        Where two of them have an entry of the same name.
    """
    entries = dict(own)
    for paper in papers():
        added = getattr(paper, table, {})
        if taken := sorted(entries.keys() & added.keys()):
            raise ConfigError(f"{table} of {paper.__name__}: {', '.join(taken)} is there already; choose another name")
        entries |= added
    return entries


def config_class(kind: Any) -> type[StoredConfig]:
    """The class of the configurations of a kind; raises `ConfigError` for a kind there is not."""
    places = merged(KINDS, "KINDS")
    if not isinstance(kind, str) or kind not in places:
        raise ConfigError(suggest(kind, places, "kind of run"))
    module, _, name = places[kind].partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the kind of run {kind!r} is not to be found at {places[kind]} ({error})") from None


def read_config(config_json: str) -> StoredConfig:
    """The configuration of any kind of run from its JSON; raises `ConfigError` for a kind there is not."""
    return config_class(parse_json(config_json, "configuration").get("kind", "classifier")).from_json(config_json)
