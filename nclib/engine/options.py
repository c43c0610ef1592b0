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
    that names code of the user's own names none here, unless `given` or `settings` name it as well.

    Parameters
    ----------
    start : a file, or the options themselves.
    given : dotted keys and values
    settings : "dotted.key=value" texts, values in YAML.

    Raises
    ------
    ConfigError
        For an unknown key with the nearest right one.
    DataError
        For an unusable folder.
    """
    tree: dict[str, Any] = {}
    if isinstance(start, Path):
        tree = _read_config(start)
    elif start is not None:
        tree = json.loads(json.dumps(start))
    if recipe_name is not None:
        if recipe_name not in RECIPES:
            raise ConfigError(suggest(recipe_name, RECIPES, "recipe"))
        for key, value in RECIPES[recipe_name].items():
            _put(tree, f"train.{key}", value)
        if recipe_name in AUGMENTATION:
            _put(tree, "data.augment", AUGMENTATION[recipe_name])
    values = dict(given)
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise ConfigError(f"{text!r} is not an assignment; write key=value, for instance train.momentum=0.8")
        values[key] = _number(yaml_value(value))
        try:
            json.dumps(values[key], default=str)
        except (TypeError, ValueError, RecursionError) as error:  # YAML can hold more than JSON
            raise ConfigError(f"option {key} cannot hold such a value ({error})") from None
    if {"data.num_majority", "data.ratio"} & set(values):
        data_tree = tree.get("data")
        values.setdefault("data.imbalance", (data_tree if isinstance(data_tree, dict) else {}).get("imbalance", "step"))
    own = _own_code(tree, values)
    for key, value in values.items():
        _put(tree, key, value)
    if own:
        own_code.search_here()
    if isinstance(tree.get("data"), dict) and isinstance(tree["data"].get("dataset"), str):
        tree["data"]["dataset"] = data.resolve_dataset(tree["data"]["dataset"])
    return RunConfig.from_json(json.dumps(tree, default=str))


def _own_code(tree: dict[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether the options typed name code of the user's own; what a file says of its source is then passed over.

    Raises
    ------
    ConfigError
        Where a file names code and the options do not.
    """
    model = tree.get("model") if isinstance(tree.get("model"), dict) else {}
    for key in ("cell", "network"):
        name, typed = model.get(key), values.get(f"model.{key}")
        if typed is not None:
            model.pop("source", None)
            return isinstance(typed, str) and own_code.is_name(typed)
        if isinstance(name, str) and own_code.is_name(name):
            raise ConfigError(f"the file names code, {name}, and a file imports none. If you trust it: --{key} {name}")
    return False


def _read_config(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except ValueError as error:
        raise ConfigError(f"{file.name} is not valid JSON ({error})") from None
    content = parse_json(text, file.name)
    if "schema" not in content:  # bare, not as a run stores it
        return content
    if not isinstance(content.get("config"), dict):
        raise ConfigError(f"{file.name} has a schema, as a stored run's config.json, but no object 'config'")
    return content["config"]


def _number(value: Any) -> Any:
    """YAML takes 1e-4 for a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for group in groups:
        if tree.get(group) is None:
            tree[group] = {}
        tree = tree[group]
        if not isinstance(tree, dict):
            raise ConfigError(f"{key}: {group} is a value and has no options")
    tree[last] = value


def yaml_value(text: str) -> Any:
    """What a text means in YAML; the text itself where it means nothing there."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: the 99th of a month, a number of 5,000 digits
        return text


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
    checked: dict[Any, tuple[int, Any, set[Any]]] = {}
    for config in configs:
        if not hasattr(config, "data"):
            continue  # the small trainings of the sister papers draw no images
        if slow and getattr(config.train, "precision", "") == "bfloat16":
            raise ConfigError(
                "this processor has no bfloat16 unit (AMX or AVX-512 BF16), without which training in bfloat16 takes "
                "tens of times as long. Train in float32, which makes other runs: -p precision=float32, or with "
                "nclib train: --set train.precision=float32"
            )
        try:
            if config.data not in checked:
                split = data.make_split(config.data, config.seed)
                checked[config.data] = len(split.counts), split.train_images.shape[1:], set()
            classes, image, built = checked[config.data]
            if config.kind == "classifier" and config.model not in built:
                models.build_model(config.model, classes, image[0])
                models.try_own_code(config.model, classes, image)
                built.add(config.model)
        except data.DataError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from None
