"""The runs that each notebook is made from, as the papers define them."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from nclib.config import ConfigError, StoredConfig, one_of
from nclib.engine.profiles import Profile, get_profile, override

PAPERS = ("neural_collapse", "kernel_equivalence", "separation_bias")
"""Each is a package ``nclib.papers.<name>`` with a module ``experiments``, the main paper first."""

MAIN_PAPER = PAPERS[0]
"""The folder that a bare notebook name refers to."""


@functools.cache
def known() -> dict[str, Callable[[Profile], list[StoredConfig]]]:
    """From "paper/notebook" to the function that makes its configurations, of all papers."""
    makers = {}
    for paper in PAPERS:
        makers |= import_module(f"nclib.papers.{paper}.experiments").EXPERIMENTS
    return makers


def told(name: str) -> list[Any]:
    """What the papers list under a name beside their experiments, such as ``PARTS``, the main paper first."""
    modules = [import_module(f"nclib.papers.{paper}.experiments") for paper in PAPERS]
    return [one for module in modules for one in getattr(module, name, ())]


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
    >>> configs = experiment("fig3", "smoke")
    >>> sorted({config.model.kind for config in configs})
    ['deq', 'explicit']
    """
    maker = known()[one_of(name if "/" in name else f"{MAIN_PAPER}/{name}", known(), "experiment")]
    profile = override(get_profile(profile) if isinstance(profile, str) else profile, **overrides)
    configs = maker(profile)
    if not configs:
        raise ConfigError(f"{name} needs a 10-class data set, and dataset={overrides.get('dataset')!r} leaves none")
    return configs
