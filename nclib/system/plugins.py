"""What installed packages add to nclib, by their entry points (``[project.entry-points."nclib.…"]`` in pyproject.toml).

=================== ==========================================================================================
``nclib.kinds``       a kind of run: a `StoredConfig` with an ``execute`` of its own
``nclib.experiments`` a paper: its table from a notebook's name to a function from a `Profile` to configurations
``nclib.commands``    a command of ``nclib``
``nclib.sites``       the web site that ``nclib report`` builds
``nclib.moved``       the module that a stored run names, and where it is today
=================== ==========================================================================================
"""

import functools
from importlib.metadata import EntryPoint, entry_points


@functools.cache
def added(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, in alphabetical order; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=f"nclib.{group}"), key=lambda point: point.name)}


@functools.cache
def packages(project: str | None = None) -> list[str]:
    """The packages that add to nclib, of every project or of one."""
    points = (point for group in ("kinds", "experiments", "commands") for point in added(group).values())
    named = (point for point in points if project in (None, point.dist and point.dist.name))
    return sorted({point.module.split(".")[0] for point in named})
