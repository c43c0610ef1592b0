"""The largest evidence: notebooks drawn, without training, at the largest scale whose runs are tracked or stored.

``results/reference/scales.json`` lists the scales of the tracked runs, the largest first: every image of the paper's
classes before a part of them, then several seeds before one, because one gives no interval.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from nclib.config import ConfigError, RunConfig, StoredConfig
from nclib.engine.outline import images_of, scale_of
from nclib.engine.partial import PAIR, finished_pairs
from nclib.engine.profiles import get_profile
from nclib.engine.reference import finished
from nclib.publish.notebooks import select
from nclib.reproduce.reproduce import DRAWN_AS_FAR_AS_THERE, prepare, reproduce
from nclib.system import other_parameters, paths
from nclib.system.files import json_bytes, write_atomic

COURSE = "walkthrough/"
TOYS = ("digits",)
"""Data sets of profiles beside which a larger scale is shown."""


@dataclass(frozen=True)
class Scale:
    """A profile and the parameters that are not its own; of runs, also their images and, of a ResNet-18 or DEQ, their
    scale, in words."""

    profile: str
    parameters: dict[str, Any]
    scale: str = ""
    images: str = ""

    def overrides(self) -> list[str]:
        """As they are typed."""
        return [f"{name}={value}" for name, value in self.parameters.items()]

    def folder(self) -> str:
        """Where its results lie, relative to all results."""
        return f"{self.profile}/with/{other_parameters.folder_name(self.parameters)}"


def scales() -> list[Scale]:
    """Those of the tracked runs, the largest first; none where nothing is tracked."""
    listing = paths.reference() / "scales.json"
    return [Scale(**each) for each in json.loads(listing.read_bytes())] if listing.is_file() else []


def largest(names: Iterable[str]) -> dict[str, Scale]:
    """For each of these notebooks that has runs, the largest scale at which all of them are there; for one of
    `DRAWN_AS_FAR_AS_THERE`, at which a pair is. Lessons are left out: what they say is said of toy data."""
    found: dict[str, Scale] = {}
    claims = [name for name in names if not name.startswith(COURSE)]
    for scale in scales():
        for name in [name for name in claims if name not in found]:
            needed = _runs(name, scale)
            networks = [config for config in needed.values() if isinstance(config, RunConfig)]
            if name in DRAWN_AS_FAR_AS_THERE:
                enough = bool(finished_pairs([config for config in networks if config.model.kind in PAIR]))
            else:
                enough = len(finished(needed)) == len(needed)
            if needed and enough:
                images = dict.fromkeys(images_of(config) for config in needed.values())
                said = scale_of(networks) if networks else ""
                found[name] = replace(scale, scale=said, images=" and ".join(images))
    return found


def _runs(name: str, scale: Scale) -> dict[str, StoredConfig]:
    maker = DRAWN_AS_FAR_AS_THERE.get(name, name)
    try:
        (task,), configs = prepare([maker], scale.profile, scale.overrides(), "never")
    except ConfigError:  # a notebook without these parameters, or without these data
        return {}
    return configs if set(scale.parameters) <= set(task.values) else {}


def draw_largest(
    names: Iterable[str] = (), profile: str = "quick", force: bool = False, echo: Callable[[str], None] = print
) -> bool:
    """Draw these notebooks at their largest scale, beside a profile of toy data; whether all could be drawn.

    Each lies in the folder of its scale, `Scale.folder`. ``largest.json`` among the results of the profile says for
    each notebook which that is: profile, parameters, scale and images in words, folder.
    """
    if get_profile(profile).dataset not in TOYS:
        return True
    wanted, good = largest(select(names)), True
    for folder in dict.fromkeys(scale.folder() for scale in wanted.values()):
        chosen = [name for name, scale in wanted.items() if scale.folder() == folder]
        scale = wanted[chosen[0]]
        echo(f"from tracked runs, without training: {other_parameters.in_words(scale.profile, scale.parameters)}")
        good &= reproduce(chosen, scale.profile, scale.overrides(), train="never", force=force, echo=echo).ok
    file = paths.results(profile) / "largest.json"
    before = json.loads(file.read_bytes()) if file.is_file() else {}
    listing = {name: vars(scale) | {"folder": scale.folder()} for name, scale in wanted.items()}
    write_atomic(file, json_bytes(before | listing))
    return good
