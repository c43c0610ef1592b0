"""From options of ``nclib train`` to a run, and from a run back to the command that makes it."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nclib.config import ConfigError, RunConfig, digest
from nclib.engine.builders import profile_options
from nclib.engine.options import OPTIONS, build_config
from nclib.engine.profiles import OVERRIDES, PROFILES

_OVERRIDES = {key: key.split(".")[-1] for key in OPTIONS if key.split(".")[-1] in OVERRIDES}


def typed_config(
    profile: str | None, file: Path | None, recipe: str | None, given: Mapping[str, Any], settings: Sequence[str]
) -> RunConfig:
    """The run that options describe: those of a profile or a file, if one is named, changed by all others.

    Raises
    ------
    ConfigError, DataError
        As `build_config`; ConfigError where both are named.
    """
    if profile is None:
        return build_config(file, recipe, given, settings)
    if file is not None:
        raise ConfigError("--profile and --config both say where the options come from; leave one out")
    overrides = {name: given[key] for key, name in _OVERRIDES.items() if key in given}
    overrides |= {} if recipe is None else {"recipe": recipe}
    start = profile_options(profile, given.get("model.kind", "explicit"), **overrides)
    kept = {key: value for key, value in given.items() if key != "data.dataset"}
    return build_config(start, None, kept, settings)


def command(config: Mapping[str, Any], profile: str) -> str:
    """The command line that makes a stored run.

    Parameters
    ----------
    config : its plain configuration
    profile : for which it was first asked

    Raises
    ------
    ConfigError
        For a run that ``nclib train`` does not make.
    """
    if config.get("kind") != "classifier":
        raise ConfigError(
            f"nclib train makes no run of kind {config.get('kind')!r}; nclib reproduce does, for the notebook that "
            "needs it"
        )
    for start in ([profile] if profile in PROFILES else []) + [None]:
        words = _words(config, start)
        if words:
            return shlex.join(["nclib", "train", *words])
    raise ConfigError("no options of nclib train make this run; it was stored by another version")


def _words(config: Mapping[str, Any], profile: str | None) -> list[str]:
    """The options with which a run is made, starting from a profile or from nothing; none where that fails."""
    wanted = _flat(config)
    source = wanted.pop("model.source", None)
    known = {} if source is None else {"model.source": source}  # looked up nowhere

    def made(given: Mapping[str, Any], settings: Mapping[str, Any]) -> RunConfig:
        texts = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        return typed_config(profile, None, None, {**given, **known}, texts)

    def same(given: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        return digest(made(given, settings).canonical()) == digest(dict(config))

    given = {key: wanted[key] for key in OPTIONS if wanted.get(key) is not None and key not in ("model.cell", "seed")}
    given |= {"seed": wanted["seed"]} if wanted["seed"] else {}
    if "model.source" in known or wanted.get("model.cell") not in (None, "residual"):
        given |= {"model.cell": wanted["model.cell"]} if wanted.get("model.cell") else {}
    settings = {key: wanted[key] for key in ("model.num_blocks",) if wanted.get(key) is not None}
    settings |= {"data.imbalance": "exponential"} if wanted["data.imbalance"] == "exponential" else {}
    try:
        now = _flat(made(given, settings).model_dump(mode="json"))
        rest = {key: wanted.get(key) for key in {**now, **wanted} if now.get(key) != wanted.get(key)}
        settings |= {key: value for key, value in rest.items() if key not in ("profile", "model.source")}
        if not same(given, settings):
            return []
    except ValueError:
        return []
    _leave_out_needless(given, settings, same)
    words = [] if profile is None else ["--profile", profile]
    for key, value in given.items():
        words += [OPTIONS[key], f"{value:g}" if isinstance(value, float) else str(value)]
    for key, value in settings.items():
        words += ["-s", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def _leave_out_needless(given: dict[str, Any], settings: dict[str, Any], same: Callable[..., bool]) -> None:
    """Remove the options without which the run is the same."""
    for options in (given, settings):
        for key, value in list(options.items()):
            del options[key]
            with contextlib.suppress(ValueError):
                if same(given, settings):
                    continue
            options[key] = value


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A plain configuration by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
