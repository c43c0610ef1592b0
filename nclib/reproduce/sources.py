"""Which sources of the library a notebook depends on: those of the wings it names, and of all that these import.

A wing is a folder of the package; a docstring edited in one redraws the notebooks that reach it and no other. Imports
are read from the text, those inside functions too, and so are modules named in strings, as tables of lazy imports do.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nclib.publish.notebooks import text_of
from nclib.system import lazy, paths, provenance

PACKAGE = Path(__file__).resolve().parents[1]

_IMPORT = re.compile(r"^ *from (nclib[\w.]*) import (\([^)]*\)|.*)|^ *import (nclib[\w.]*)", flags=re.MULTILINE)
_IN_QUOTES = re.compile(r"[\"']([a-z_]\w*(?:\.\w+)+)(?::\w+)?[\"']")


class Library:
    """The sources as they are now; made once for each call, since files may change between two."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.package = package

    def digests(self, name: str, cells: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """By wing, the digest of what a notebook can call; that of the printed numbers it can show, and that of papers
        of the user's own.

        Parameters
        ----------
        name : "paper/notebook"; the wing of a paper counts in all notebooks of its folder.
        """
        own = self._wings_of(f"nclib.papers.{name.split('/')[0]}")
        reached, new = set(), {"nclib"} | own | self._named_in(cells)
        while new:
            reached |= new
            new = {wing for known in new for wing in self._imports(known)} - reached
        others = {
            "the printed numbers": self._printed(),
            "papers of the user's own": provenance.digest(provenance.paper_sources()),
        }
        return others | {wing: self._digest(wing) for wing in sorted(reached)}

    def _named_in(self, cells: Iterable[Mapping[str, Any]]) -> set[str]:
        try:
            trees = [ast.parse(text_of(cell)) for cell in cells if cell["cell_type"] == "code"]
        except SyntaxError:  # a line of IPython: whatever it calls is not known
            return set(self._wings())
        called: dict[str, str] = {}
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.Import):
                called |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                called |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        used = [f"{called[name]}{rest}" for tree in trees for name, rest in _dotted(tree) if name in called]
        return {wing for dotted in (*called.values(), *used) for wing in self._wings_of(dotted)}

    def _wings_of(self, dotted: str) -> set[str]:
        """The wing that a dotted name of nclib leads to; none for other packages."""
        first, *rest = dotted.split(".")
        if first != "nclib":
            return set()
        folder = self.package
        for number, part in enumerate(rest):
            if (folder / f"{part}.py").is_file():
                break
            if not (folder / part).is_dir():
                if number == 0 and part in lazy.homes("nclib"):
                    return self._wings_of(lazy.homes("nclib")[part])
                break
            folder /= part
        return {".".join(("nclib", *folder.relative_to(self.package).parts))}

    def _wings(self) -> Iterator[str]:
        folders = {path.parent for path in self.package.rglob("*.py")}
        return (".".join(("nclib", *folder.relative_to(self.package).parts)) for folder in folders)

    def _files(self, wing: str) -> list[Path]:
        return sorted(self.package.joinpath(*wing.split(".")[1:]).glob("*.py"))

    @functools.cache  # noqa: B019 — lives as long as one call
    def _printed(self) -> str:
        return provenance.digest(sorted(paths.published().glob("**/*.csv")))

    @functools.cache  # noqa: B019
    def _digest(self, wing: str) -> str:
        return provenance.digest(self._files(wing))

    @functools.cache  # noqa: B019
    def _imports(self, wing: str) -> set[str]:
        found = set()
        for path in self._files(wing):
            if path.parent == self.package and path.stem == "__init__":
                continue  # a table of names leads everywhere; what of it is used stands where it is used
            text = path.read_text(encoding="utf-8")
            for origin, names, whole in _IMPORT.findall(text):
                found |= {whole} if whole else {f"{origin}.{name}" for name in re.findall(r"\w+", names)}
            found |= {module for name in _IN_QUOTES.findall(text) for module in self._modules(name)}
        reached = {other for dotted in found for other in self._wings_of(dotted)}
        # They know the papers as kinds of runs, lists of runs and certificates. The runs of a notebook stand in its
        # stamp, and what a paper certifies is shown by the notebooks of its folder, or by its name.
        known = ("nclib.papers.",) if wing in ("nclib.engine", "nclib.papers") else ()
        return {other for other in reached if not other.startswith(known)}

    def _modules(self, name: str) -> set[str]:
        """Modules that a string names: from nclib, or from within it or the papers, as "neural_collapse.balanced"."""
        candidates = {name, f"nclib.{name}", f"nclib.papers.{name}"}
        return {each for each in candidates if self.package.joinpath(*each.split(".")[1:]).with_suffix(".py").is_file()}


def _dotted(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each chain of attributes as the name it starts at and the rest, ``nc.metrics.nc0`` as "nc", ".metrics.nc0"."""
    for node in ast.walk(tree):
        rest = ""
        while isinstance(node, ast.Attribute):
            rest, node = f".{node.attr}{rest}", node.value
        if rest and isinstance(node, ast.Name):
            yield node.id, rest
