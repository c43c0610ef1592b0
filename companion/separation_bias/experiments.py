"""The runs of the notebooks on Wu et al."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from companion.separation_bias import grids
from companion.separation_bias.saliency import CamConfig
from nclib.config import StoredConfig
from nclib.engine.builders import classifiers, data_config
from nclib.engine.profiles import Profile


def _regressions(notebook: str) -> Callable[[Profile], list[StoredConfig]]:
    return lambda profile: list(grids.regression_runs(notebook, profile.seeds, profile.name))


_SCENES_PER_CLASS = 60


def _where_networks_look(profile: Profile) -> list[StoredConfig]:
    """Both arms and their Grad-CAM. Digits of 8×8 leave maps of one place, so scenes made of them stand in."""
    if profile.dataset in ("digits", "digit_scenes"):
        images = profile.images_per_class or _SCENES_PER_CLASS
        profile = dataclasses.replace(profile, dataset="digit_scenes", images_per_class=images)
    runs = classifiers(profile, data_config(profile))
    return [*runs, *(CamConfig(base=run) for run in runs)]


EXPERIMENTS: dict[str, Callable[[Profile], list[StoredConfig]]] = {
    **{f"separation_bias/{name}": _regressions(name) for name in grids.NOTEBOOKS},
    "separation_bias/fig6": _where_networks_look,
    "separation_bias/verdicts": lambda profile: [*_regressions("verdicts")(profile), *_where_networks_look(profile)],
}
