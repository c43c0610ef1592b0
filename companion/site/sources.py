"""What a site is made of: the executed notebooks of a profile, their figures and tables, and what failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nclib.publish import notebooks
from nclib.publish.sites import ReportError
from nclib.system import other_parameters, paths

OPEN_CODE = ("walkthrough",)
"""Folders whose pages show their code; on the others it stands folded at the end."""


class ReportError_(RuntimeError):
    """There is no site to be had, with what to do; an older one is left as it was."""

    exit_code = 1


@dataclass(frozen=True)
class Drawn:
    """At which scale something was drawn: the profile's own, or the largest there is, which lies in another folder.

    Parameters
    ----------
    images, scale : in words, "" where nothing is said of them
    profile, others : whose results, and the name of the folder of other parameters there; "" for the site's own
    """

    images: str = ""
    scale: str = ""
    profile: str = ""
    others: str = ""

    @property
    def within(self) -> str:
        """The folder of the site that holds its files."""
        return "larger/" if self.profile else ""

    @contextmanager
    def results(self, profile: str) -> Iterator[Path]:
        """The folder of its results, which within the block are those of its profile; profile: the site's."""
        with other_parameters.results_with(self.others) if self.profile else nullcontext():
            yield paths.results(self.profile or profile)


OWN = Drawn()


@dataclass(frozen=True)
class Artefact:
    """A figure or table of the profile: its record, and the endings that are on the disk."""

    kind: str  # "figures" or "tables"
    record: dict[str, Any]
    endings: tuple[str, ...]
    drawn: Drawn = OWN

    @property
    def name(self) -> str:
        return self.record["name"]

    def path(self, ending: str) -> str:
        """Relative to the site."""
        return f"{self.drawn.within}{self.kind}/{self.name}.{ending}"

    def file(self, ending: str, profile: str) -> Path:
        """Where it lies; profile: whose site it is."""
        with self.drawn.results(profile) as folder:
            return folder / self.kind / f"{self.name}.{ending}"


@dataclass(frozen=True)
class Page:
    """An executed notebook and what it left behind."""

    name: str  # "paper/notebook"
    content: bytes
    artefacts: tuple[Artefact, ...]
    drawn: Drawn = OWN
    beside: Page | None = None  # the same notebook at the profile's own scale

    @property
    def drawings(self) -> tuple[Page, ...]:
        """The notebook at each of its scales, the largest first."""
        return (self, self.beside) if self.beside else (self,)

    @property
    def file(self) -> str:
        """The executed notebook, relative to the site."""
        return f"{self.drawn.within}notebooks/{self.name}.ipynb"

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
    def drawings(self) -> list[Page]:
        """Every page at each of its scales."""
        return [drawing for page in self.pages for drawing in page.drawings]

    @property
    def artefacts(self) -> list[Artefact]:
        """Every figure and table."""
        return [*self.others, *(artefact for page in self.drawings for artefact in page.artefacts)]

    @property
    def title(self) -> str:
        """The profile, and all parameters that are not its own."""
        own = (page for page in self.drawings if not page.drawn.profile)
        others = other_parameters.other_values(page.parameters for page in own)
        return other_parameters.in_words(self.profile, others)


def collect(profile: str) -> Sources:
    """What was executed in a profile, or of it with other parameters (`nclib.system.other_parameters`), in the order of
    the book. What ``largest.json`` lists was drawn at a larger scale and leads its page.

    Raises
    ------
    ConfigError
        For an unknown profile.
    ReportError
        Where nothing has been executed or a file is damaged.
    """
    folder = paths.results(profile)
    larger = _larger(folder, profile)
    own, others = _drawings(profile, _own(profile) if larger else OWN)
    pages = own | {name: replace(page, beside=own.get(name)) for name, page in larger.items()}
    if not pages:
        from nclib.engine import profiles

        profiles.get_profile(profile)
        raise ReportError(f"no notebook has been executed in {folder} yet; type: nclib reproduce --profile {profile}")
    names = sorted(pages, key=notebooks.reading_order)
    return Sources(profile, tuple(pages[name] for name in names), tuple(others), _failures(folder))


def _own(profile: str) -> Drawn:
    """The profile's own scale: larger ones are drawn beside profiles of toy data alone."""
    from nclib.engine import profiles

    return Drawn(profiles.get_profile(profile).dataset, "toy")


def _larger(folder: Path, profile: str) -> dict[str, Page]:
    """The notebooks of ``largest.json`` that are drawn."""
    listing = folder / "largest.json"
    if not listing.exists():
        return {}
    try:
        scales: dict[Drawn, list[str]] = {}
        for name, said in json.loads(paths.content(listing)).items():
            head, _, others = said["folder"].partition("/with/")
            drawn = Drawn(said["images"], said["scale"], head, others)
            scales.setdefault(drawn, []).append(name)
            with drawn.results(profile):
                pass  # a name that is none is refused
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        again = f"nclib reproduce --largest --profile {profile}"
        raise ReportError(f"{listing} is damaged ({error}); remove it and type: {again}") from None
    found = {}
    for drawn, names in scales.items():
        pages, _ = _drawings(profile, drawn)
        found |= {name: pages[name] for name in names if name in pages}
    return found


def _drawings(profile: str, drawn: Drawn) -> tuple[dict[str, Page], list[Artefact]]:
    """All that was executed at one scale, by name, and the figures and tables of no notebook among them."""
    with drawn.results(profile) as folder:
        found = {path.relative_to(folder / "notebooks").with_suffix("").as_posix(): path for path in _notebooks(folder)}
        owned: dict[str, list[Artefact]] = {name: [] for name in found}
        others: list[Artefact] = []
        for artefact in _artefacts(folder, drawn):
            owned.get(notebooks.owner(artefact.name, found), others).append(artefact)
        pages = {name: Page(name, paths.content(found[name]), tuple(owned[name]), drawn) for name in found}
    for page in pages.values():
        try:
            [(cell["cell_type"], cell["source"]) for cell in page.notebook["cells"]], page.execution
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            again = f"nclib reproduce {page.name} --profile {profile} --force{' --largest' * bool(drawn.profile)}"
            raise ReportError(f"{found[page.name]} is not a readable notebook ({error}); type: {again}") from None
    return pages, others


def _notebooks(folder: Path) -> Iterator[Path]:
    """Names that are no plain words could end the line of Markdown or the attribute that they stand in."""
    found = (path for path in folder.glob("notebooks/*/[!.]*.ipynb") if path.is_file())
    plain = (path for path in found if all(re.fullmatch(r"[\w.-]+", part) for part in (path.parent.name, path.stem)))
    return (path for path in plain if not path.stem.endswith(".failed"))


def _artefacts(folder: Path, drawn: Drawn) -> Iterator[Artefact]:
    for kind in ("figures", "tables"):
        for path in sorted((folder / kind).glob("**/[!.]*.json")):
            record = _record_beside(path, path.relative_to(folder / kind).with_suffix("").as_posix())
            endings = (file.rpartition(".")[2] for file in record["files"])
            there = tuple(ending for ending in endings if path.with_name(f"{path.stem}.{ending}").is_file())
            yield Artefact(kind, record, there, drawn)


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
