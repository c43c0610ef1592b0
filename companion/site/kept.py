"""Parts of the site that no result changes, the reference and the curves: made once, kept beside the results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nclib.system import other_parameters, paths
from nclib.system.files import sha256


def kept(name: str, made_from: Sequence[Any], make: Callable[[Path], None], echo: Callable[[str], None]) -> Path:
    """The folder of a part, made where it is not there yet; older ones are removed.

    Parameters
    ----------
    made_from : JSON-ready; the part is made again when it changes.
    make : receives an empty folder to fill.
    echo : receives each line that is said.
    """
    target = place(name, made_from)
    with other_parameters.alone_in(target.parent, name, echo):
        if not target.exists():
            for old in target.parent.glob(f"{name}-*"):
                shutil.rmtree(old)
            aside = target.with_name(f"{name}-aside")
            aside.mkdir(parents=True)
            try:
                make(aside)
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target


def place(name: str, made_from: Sequence[Any]) -> Path:
    """Where such a part lies, whether or not it is there."""
    return paths.results() / ".site" / f"{name}-{sha256(json.dumps(made_from).encode())[:16]}"


def join(reference: Path, site: Path) -> None:
    """Add the pages of the reference to a site: the pages, their place in the search, and their text for excerpts."""
    shutil.copytree(reference / "api", site / "api", dirs_exist_ok=True)
    index = site / "searchindex.js"
    index.write_text(_script(_joined(_index(index), _index(reference / "searchindex.js"))), encoding="utf-8")
    bodies = site / "_static" / "bodies.js"
    pages = _index(bodies) | _index(reference / "_static" / "bodies.js")
    bodies.write_text(f"window.nclibBodies = {json.dumps(pages, sort_keys=True)};\n", encoding="utf-8")


def _index(script: Path) -> dict[str, Any]:
    text = script.read_text(encoding="utf-8")
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


def _script(index: dict[str, Any]) -> str:
    return f"Search.setIndex({json.dumps(index, sort_keys=True, ensure_ascii=False, separators=(',', ':'))})"


def _joined(site: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """Sphinx's index of words with that of the reference, whose pages get numbers of their own. Pages that both have,
    such as the front page, keep the words of the site."""
    numbers: list[int | None] = []
    for name, file, title in zip(*(reference[key] for key in ("docnames", "filenames", "titles")), strict=True):
        if name in site["docnames"]:
            numbers.append(None)
            continue
        numbers.append(len(site["docnames"]))
        for key, value in (("docnames", name), ("filenames", file), ("titles", title)):
            site[key].append(value)
    for key in ("terms", "titleterms"):
        for word, pages in reference[key].items():
            if new := [numbers[page] for page in _listed(pages) if numbers[page] is not None]:
                site[key][word] = sorted({*_listed(site[key].get(word, [])), *new})
    for key in ("alltitles", "indexentries", "objects"):
        for word, places in reference[key].items():
            if new := [[numbers[page], *rest] for page, *rest in places if numbers[page] is not None]:
                site[key][word] = [*site[key].get(word, []), *new]
    return site | {key: reference[key] for key in ("objnames", "objtypes")}


def _listed(pages: int | list[int]) -> list[int]:
    """A word of one page alone has its number, others have a list."""
    return pages if isinstance(pages, list) else [pages]
