"""From what was typed to a run: the configuration that options describe, and what is refused before it is trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nclib import data
from nclib.config import AUGMENTATION, RECIPES, ConfigError, RunConfig, StoredConfig, named_options, parse_json, suggest
from nclib.system import own_code, provenance

OPTIONS = {key: field.json_schema_extra["option"].split()[0] for key, field in named_options().items()}
"""Options of ``nclib train`` that have a name of their own; every other is written as ``-s KEY=VALUE``."""


def build_config(
    start: Path | Mapping[str, Any] | None, recipe_name: str | None, given: Mapping[str, Any], settings: Sequence[str]
) -> RunConfig:
    """The configuration that a file, a recipe and options describe, each overruling the one before.

    K_A or R choose step imbalance where nothing else is said. A folder is resolved from the working directory. A file
    that names code of the user's own imports none, unless `given` or `settings` name it as well.

    Parameters
    ----------
    start : a file, or the options themselves.
    given : dotted keys and values
    settings : "dotted.key=value" texts, values in JSON or plain words.

    Raises
    ------
    ConfigError
        For an unknown key with the nearest right one.
    DataError
        For an unusable folder.
    """
    tree = _read_config(start) if isinstance(start, Path) else json.loads(json.dumps(start or {}))
    values: dict[str, Any] = {}
    if recipe_name is not None:
        if recipe_name not in RECIPES:
            raise ConfigError(suggest(recipe_name, RECIPES, "recipe"))
        values |= {f"train.{key}": value for key, value in RECIPES[recipe_name].items()}
        values |= {"data.augment": AUGMENTATION[recipe_name]} if recipe_name in AUGMENTATION else {}
    values |= {**given, **dict(map(_assignment, settings))}
    if {"data.num_majority", "data.ratio"} & set(values) and "imbalance" not in tree.get("data", {}):
        values.setdefault("data.imbalance", "step")
    _check_own_code(tree.get("model", {}), values)
    for key, value in values.items():
        _put(tree, key, value)
    if isinstance(dataset := tree.get("data", {}).get("dataset"), str):
        tree["data"]["dataset"] = data.resolve_dataset(dataset)
    return RunConfig.from_json(json.dumps(tree))


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ConfigError(f"{text!r} is not an assignment; write key=value, for instance train.momentum=0.8")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _check_own_code(model: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse code of the user's own that a file names and the options do not. Where they do, it is looked for in the
    working folder too, and what the file says of its source is passed over."""
    for key in ("cell", "network"):
        name, typed = model.get(key), values.get(f"model.{key}")
        if typed is not None:
            model.pop("source", None)
            own_code.search_here()
        elif isinstance(name, str) and own_code.is_name(name):
            raise ConfigError(f"the file names code, {name}, and a file imports none. If you trust it: --{key} {name}")


def _read_config(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_text(encoding="utf-8"), file.name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name} is not valid JSON ({error})") from None
    return content.get("config", content)  # as a run stores it, or bare


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        tree = tree.setdefault(group, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{key}: {group} is a value and has no options")
    tree[last] = value


def check_runs(configs: Iterable[StoredConfig]) -> None:
    """Refuse runs that would fail at their first step, with more images than there are or a network too narrow, and
    runs in bfloat16 on a processor that has no unit for it.

    Parameters
    ----------
    configs : their data sets must be here (`nclib.data.fetch`).

    Raises
    ------
    ConfigError
        With the numbers.
    """
    from nclib import models, training

    slow = provenance.bfloat16_unit() is None and training.default_device().type == "cpu"
    checked: dict[Any, tuple[int, Any]] = {}
    built = set()
    for config in configs:
        if not hasattr(config, "data"):
            continue  # the small trainings of the sister papers draw no images
        if slow and getattr(config.train, "precision", "") == "bfloat16":
            raise ConfigError(
                "this processor has no bfloat16 unit, without which training in bfloat16 takes tens of times as long. "
                "Train in float32, which makes other runs: -p precision=float32, or --set train.precision=float32"
            )
        try:
            if config.data not in checked:
                split = data.make_split(config.data, config.seed)
                checked[config.data] = len(split.counts), split.train_images.shape[1:]
            if config.kind == "classifier" and (config.data, config.model) not in built:
                classes, image = checked[config.data]
                models.build_model(config.model, classes, image[0])
                models.try_own_code(config.model, classes, image)
                built.add((config.data, config.model))
        except data.DataError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from None
