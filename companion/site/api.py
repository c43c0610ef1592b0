"""The reference in the site: a page for each part of the library, written from its docstrings when Sphinx starts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

import nclib
from companion.site.docstrings import for_sphinx
from nclib.system import lazy

PARTS = {
    "solver": "Fixed points",
    "deq": "Equilibrium layers",
    "metrics": "Metrics of neural collapse",
    "measuring": "Measuring any network",
    "imbalance": "Class imbalance",
    "comparison": "Seeds, differences, verdicts",
    "config": "Configurations",
    "data": "Data sets",
    "models": "Networks",
    "losses": "Objectives",
    "training": "Training",
    "evaluation": "Evaluation",
    "engine": "Stored runs and many of them",
    "papers.neural_collapse": "Sun & Shi: neural collapse",
    "papers.kernel_equivalence": "Ling et al.: equivalent kernels",
    "papers.separation_bias": "Wu et al.: separation and bias",
    "papers": "Experiments of the papers",
    "publish": "Figures, tables, the scorecard",
    "reproduce": "Regeneration",
    "laboratory": "The laboratory",
    "course": "The course",
    "system": "Paths and records",
    "cli": "The command line",
}
"""Modules and packages in the order of the reference, and what their pages are called."""

AMBIGUOUS = ("train", "recipe", "setting", "features", "plan", "given")
"""Names that pages also use as words of their own: only with ``nc.`` before or a bracket after are they links."""

Found = TypeVar("Found")
_WORD = re.compile(r"((?:nc|nclib|ke|sb|sun_shi)\.(?:\w+\.)*)?([A-Za-z_][\w.]*?)(\(.*\))?")


@cache
def names() -> dict[str, list[str]]:
    """The public names by part: those of the top level as "nclib.name", what else a package lists by its full path."""
    found: dict[str, list[str]] = {part: [] for part in PARTS}
    for name in nclib.__all__:
        home = lazy.homes("nclib")[name]
        part = max((part for part in PARTS if f"{home}.".startswith(f"nclib.{part}.")), key=len)
        found[part].append(f"nclib.{name}")
    for package in _packages("nclib"):
        part = max((part for part in PARTS if f"{package}.".startswith(f"nclib.{part}.")), key=len, default=None)
        listed = getattr(import_module(package), "__all__", ()) if part else ()
        for name in sorted({*listed} - {*nclib.__all__}):
            value = getattr(import_module(package), name)
            if inspect.isclass(value) or inspect.isroutine(value):
                found[part].append(f"{package}.{name}")
    return {part: sorted(listed, key=str.casefold) for part, listed in found.items() if listed}


def _packages(package: str) -> Iterator[str]:
    for module in iter_modules(import_module(package).__path__, f"{package}."):
        if module.ispkg:
            yield module.name
            yield from _packages(module.name)


def write_pages(folder: Path) -> None:
    """The pages of the reference among the sources of a site."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = names()
    listed = "\n".join(f"   {part}" for part in parts)
    text = "Every name that a notebook or a program of yours may use, from its docstring."
    (folder / "index.rst").write_text(
        f"{_title('Reference')}{text}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n", encoding="utf-8"
    )
    for part, found in parts.items():
        about = " ".join(for_sphinx([(import_module(f"nclib.{part}").__doc__ or "").partition("\n")[0]]))
        table = "\n".join(f"   ~{name}" for name in found)
        page = f"{_title(PARTS[part])}{about}\n\n.. autosummary::\n   :nosignatures:\n\n{table}\n\n"
        page += ".. currentmodule:: nclib\n\n" + "\n".join(map(_entry, found))
        (folder / f"{part}.rst").write_text(page, encoding="utf-8")


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def _entry(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    value = getattr(import_module(module), attribute)
    return f".. autoclass:: {name}\n   :members:\n" if inspect.isclass(value) else f".. autofunction:: {name}\n"


def process_docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Sphinx asks this of every docstring."""
    lines[:] = for_sphinx(list(lines))


def target(text: str, known: Mapping[str, Found]) -> Found | None:
    """What is known of the name that a code word of a page speaks of; None where it is not a name of the library.

    Parameters
    ----------
    text : such as "pairs", "nc.pairs" or "pairs(runs)"
    known : by the last part of each full name
    """
    word = _WORD.fullmatch(text)
    if not word or (word[2] in AMBIGUOUS and not word[1] and not word[3]):
        return None
    return known.get(word[2])
