"""What installed packages add: the runs that each notebook is made from, see `nclib.system.plugins`."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from nclib.config import ConfigError, StoredConfig, one_of
from nclib.engine.profiles import Profile, get_profile, override
from nclib.system import plugins

MAIN_PAPER = "neural_collapse"
"""The folder that a bare notebook name refers to."""


@functools.cache
def known() -> dict[str, Callable[[Profile], list[StoredConfig]]]:
    """From "paper/notebook" to the function that makes its configurations, of all papers that are installed."""
    return {name: maker for paper in plugins.added("experiments").values() for name, maker in paper.load().items()}


def told(name: str) -> list[Any]:
    """What the papers list under a name beside their experiments, such as ``PARTS``, the main paper first."""
    papers = sorted(plugins.added("experiments").values(), key=lambda paper: paper.name != MAIN_PAPER)
    return [one for paper in papers for one in getattr(import_module(paper.module), name, ())]


def experiment(name: str, profile: Profile | str, **overrides: Any) -> list[StoredConfig]:
    """The runs a notebook needs.

    Parameters
    ----------
    name : "paper/notebook"; a bare name means the main paper's
    profile : a `Profile` or its name
    overrides : see `nclib.engine.profiles.OVERRIDES`; 0 or "" stands for the profile's own value

    Returns
    -------
    list of configurations, arm by arm within each seed

    Raises
    ------
    ConfigError
        For an unknown name or parameter, with the nearest right one; for parameters that leave nothing to run.

    Examples
    --------
    >>> import companion
    >>> configs = companion.experiment("fig3", "smoke")
    >>> sorted({config.model.kind for config in configs})
    ['deq', 'explicit']
    """
    maker = known()[one_of(name if "/" in name else f"{MAIN_PAPER}/{name}", known(), "experiment")]
    profile = override(get_profile(profile) if isinstance(profile, str) else profile, **overrides)
    configs = maker(profile)
    if not configs:
        raise ConfigError(f"{name} needs a 10-class data set, and dataset={overrides.get('dataset')!r} leaves none")
    return configs
