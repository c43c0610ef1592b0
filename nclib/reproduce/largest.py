"""The largest evidence: notebooks rendered, without training, at the largest scale whose runs are tracked or stored.

``results/reference/scales.json`` lists the scales of the tracked runs, the largest first: every image of the paper's
classes before a part of them, then several seeds before one, because one gives no interval.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from nclib import paths
from nclib.config import ConfigError, RunConfig
from nclib.paths import json_bytes, write_atomic
from nclib.profiles import get_profile, images_of, scale_of
from nclib.publish.notebooks import select
from nclib.reproduce.reproduce import DRAWN_AS_FAR_AS_THERE, prepare, reproduce, scales, typed
from nclib.store import finished

COURSE = "walkthrough/"


def largest(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """For each of these notebooks that has runs, the largest scale at which all of them are there: profile, parameters,
    folder among the results, and in words the images and, of a ResNet-18 or DEQ, the scale.

    A notebook that plots what is available needs one pair of networks. Lessons are left out: they speak of toy data.
    """
    found = {}
    for scale in scales():
        folder = f"{scale['profile']}/with/{paths.folder_name(scale['parameters'])}"
        for name in names:
            if name not in found and not name.startswith(COURSE) and (said := _there(name, scale)):
                found[name] = scale | said | {"folder": folder}
    return found


def _there(name: str, scale: dict[str, Any]) -> dict[str, str] | None:
    """Images and scale of a notebook in words; None where its runs are not there."""
    try:
        (task,) = prepare([name], scale["profile"], typed(scale), "never")
    except ConfigError:  # a notebook without these parameters, or without these data
        return None
    configs = task.needed | task.optional
    enough = configs and task.drawable and len(finished(task.needed)) == len(task.needed)
    if not enough or not set(scale["parameters"]) <= set(task.values):
        return None
    networks = [config for config in configs.values() if isinstance(config, RunConfig)]
    images = " and ".join(dict.fromkeys(map(images_of, configs.values())))
    return {"images": images, "scale": scale_of(networks) if networks else ""}


def draw_largest(
    names: Iterable[str] = (), profile: str = "quick", force: bool = False, echo: Callable[[str], None] = print
) -> bool:
    """Render these notebooks at their largest scale, next to a profile of toy data; whether all could be rendered.

    ``largest.json`` among the results of the profile keeps what `largest` returns for each.
    """
    if get_profile(profile).dataset != "digits":
        return True
    wanted, good = largest(select(names)), True
    for folder in dict.fromkeys(scale["folder"] for scale in wanted.values()):
        chosen = [name for name, scale in wanted.items() if scale["folder"] == folder]
        chosen.sort(key=lambda name: name not in DRAWN_AS_FAR_AS_THERE)  # these have the most runs, and take longest
        scale = wanted[chosen[0]]
        echo(f"from tracked runs, without training: {folder.replace('/with/', ' with ')}")
        good &= reproduce(chosen, scale["profile"], typed(scale), train="never", force=force, echo=echo).ok
    file = paths.results(profile) / "largest.json"
    write_atomic(file, json_bytes((json.loads(file.read_bytes()) if file.is_file() else {}) | wanted))
    return good
