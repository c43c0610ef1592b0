"""What a site is made of: the executed notebooks of a profile, their figures and tables, and what failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nclib.publish import notebooks
from nclib.system import other_parameters, paths

OPEN_CODE = ("walkthrough",)
"""Folders whose pages show their code; on the others it stands folded at the end."""


class ReportError(RuntimeError):
    """There is no site to be had, with what to do; an older one is left as it was."""

    exit_code = 1


@dataclass(frozen=True)
class Artefact:
    """A figure or table of the profile: its record, and the endings that are on the disk."""

    kind: str  # "figures" or "tables"
    record: dict[str, Any]
    endings: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.record["name"]

    def path(self, ending: str) -> str:
        """Relative to the profile's results, and to the site."""
        return f"{self.kind}/{self.name}.{ending}"


@dataclass(frozen=True)
class Page:
    """An executed notebook and what it left behind."""

    name: str  # "paper/notebook"
    content: bytes
    artefacts: tuple[Artefact, ...]

    @cached_property
    def notebook(self) -> dict[str, Any]:
        return json.loads(self.content)

    @cached_property
    def title(self) -> str:
        """Its first heading; its name where it has none."""
        return notebooks.title(self.notebook["cells"]) or self.name.split("/")[-1].replace("_", " ")

    @property
    def short(self) -> str:
        """The title up to its first point: what fits into a list. A number alone says too little."""
        head = self.title.partition(" · ")[0]
        return self.title if head.isdigit() else head

    @property
    def in_course(self) -> bool:
        """Whether its code is to be read where it stands."""
        return self.name.split("/")[0] in OPEN_CODE

    @property
    def execution(self) -> dict[str, Any]:
        """Parameters, start, end and duration, as noted by what executed it; empty when run by hand."""
        return self.notebook["metadata"].get("papermill", {})

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that are not the profile's own."""
        return other_parameters.other_values([self.execution.get("parameters", {})])

    @property
    def runs(self) -> list[str]:
        return sorted({run for artefact in self.artefacts for run in artefact.record["runs"]})

    @property
    def up(self) -> str:
        """From the page to the root of the site."""
        return "../" * self.name.count("/")


@dataclass(frozen=True)
class Sources:
    """All that a site is made of."""

    profile: str
    pages: tuple[Page, ...]
    others: tuple[Artefact, ...]  # figures and tables whose notebook has not been executed as a whole
    failed: dict[str, str]  # notebooks whose last execution failed, and why

    @property
    def title(self) -> str:
        """The profile, and all parameters that are not its own."""
        others = other_parameters.other_values(page.parameters for page in self.pages)
        return other_parameters.in_words(self.profile, others)


def collect(profile: str) -> Sources:
    """What was executed in a profile, or of it with other parameters (`nclib.system.other_parameters`), in the order of
    the book.

    Raises: ConfigError for an unknown profile, ReportError where nothing has been executed or a file is damaged.
    """
    folder = paths.results(profile)
    found = {path.relative_to(folder / "notebooks").with_suffix("").as_posix(): path for path in _notebooks(folder)}
    if not found:
        from nclib.engine import profiles

        profiles.get_profile(profile)
        raise ReportError(f"no notebook has been executed in {folder} yet; type: nclib reproduce --profile {profile}")
    owned: dict[str, list[Artefact]] = {name: [] for name in found}
    others = []
    for artefact in _artefacts(folder):
        owned.get(notebooks.owner(artefact.name, found), others).append(artefact)
    names = sorted(found, key=notebooks.reading_order)
    pages = tuple(Page(name, paths.content(found[name]), tuple(owned[name])) for name in names)
    for page in pages:
        try:
            [(cell["cell_type"], cell["source"]) for cell in page.notebook["cells"]], page.execution
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            again = f"nclib reproduce {page.name} --profile {profile} --force"
            raise ReportError(f"{found[page.name]} is no notebook that can be read ({error}); type: {again}") from None
    return Sources(profile, pages, tuple(others), _failures(folder))


def _notebooks(folder: Path) -> Iterator[Path]:
    found = (path for path in folder.glob("notebooks/*/[!.]*.ipynb") if path.is_file())
    return (path for path in found if not path.stem.endswith(".failed"))


def _artefacts(folder: Path) -> Iterator[Artefact]:
    for kind in ("figures", "tables"):
        for path in sorted((folder / kind).glob("**/[!.]*.json")):
            record = _record_beside(path, path.relative_to(folder / kind).with_suffix("").as_posix())
            endings = (file.rpartition(".")[2] for file in record["files"])
            there = tuple(ending for ending in endings if path.with_name(f"{path.stem}.{ending}").is_file())
            yield Artefact(kind, record, there)


def _record_beside(path: Path, name: str) -> dict[str, Any]:
    """The record of a figure or table, which must be the one of this name and of files beside it."""
    try:
        record = json.loads(paths.content(path))
        record["caption"], record["runs"]
        if record["name"] != name or not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name):
            raise ValueError(f"it is that of {record['name']!r:.100}")
        if foreign := [file for file in record["files"] if not re.fullmatch(rf"{re.escape(path.stem)}\.\w+", file)]:
            raise ValueError(f"it lists {foreign[0]!r:.100}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{path} is damaged ({error}); execute its notebook again, with --force") from None
    return record


def _failures(folder: Path) -> dict[str, str]:
    said: dict[str, str] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # it may lack, or be older
        rows = json.loads(paths.content(folder / "summary.json"))["notebooks"]
        said = {row["notebook"]: row["message"] for row in rows if row["message"]}
    kept = (path.relative_to(folder / "notebooks").as_posix() for path in folder.glob("notebooks/*/*.failed.ipynb"))
    return {name: "" for name in sorted(file.removesuffix(".failed.ipynb") for file in kept)} | said
