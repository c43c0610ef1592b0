"""Notebooks as files: which there are, in which order, where they lie, and what stands in their cells.

The one reader of ``.ipynb`` files, for what executes notebooks and for what shows them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nclib import paths
from nclib.config import ConfigError, suggest
from nclib.profiles import MAIN_PAPER, from_papers

PARTS = dict(from_papers("PARTS"))
"""Folders of notebooks in reading order, and their headings; other folders follow under their own names."""

_IMAGE = re.compile(r"\]\((images/[\w-]+\.png)\)")

_SCRATCH = re.compile(r"-Copy\d+$|^Untitled\d*$")  # what JupyterLab calls a duplicate and a new notebook


def available() -> list[str]:
    """Names of the notebooks that can be regenerated, ``paper/notebook``, in `reading_order`.

    Notebooks that lie directly in ``notebooks/`` (the index, the laboratory) are for reading and playing only, and so
    are JupyterLab's copies, which would overwrite the figures of their originals.
    """
    found = [path.relative_to(paths.notebooks()) for path in paths.notebooks().glob("[!.]*/[!.]*.ipynb")]
    names = (path.with_suffix("").as_posix() for path in found if not _SCRATCH.search(path.stem))
    return sorted(names, key=reading_order)


def reading_order(name: str) -> list[Any]:
    """Sort key of a name: parts as in `PARTS`, what a paper prints before what is added, numbers in order."""
    part, _, notebook = name.partition("/")
    place = list(PARTS).index(part) if part in PARTS else len(PARTS)
    numbers = [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", notebook)]
    return [place, part, 0 if re.match(r"\d|fig|table|theorem", notebook) else 1, numbers]


def source(name: str) -> Path:
    """The notebook file of a name ``paper/notebook``."""
    return paths.notebooks() / f"{name}.ipynb"


def select(names: Iterable[str] = ()) -> list[str]:
    """The notebooks meant by names as a user types them.

    Parameters
    ----------
    names : "paper/notebook"; a bare name is the main paper's; a folder's name is all of it; no names are all notebooks.
        A path such as ``notebooks/paper/notebook.ipynb`` is understood too.

    Returns
    -------
    full names without repetition, in the order asked for.

    Raises
    ------
    ConfigError
        For an unknown name, with the nearest right one.
    """
    known, chosen = available(), []
    folders = {name.split("/")[0] for name in known}
    for typed in names:
        name = typed.removeprefix("./").removeprefix("notebooks/").removesuffix(".ipynb").rstrip("/")
        full = name if "/" in name else f"{MAIN_PAPER}/{name}"
        if name in folders:
            chosen += [other for other in known if other.startswith(f"{name}/")]
        elif full in known:
            chosen.append(full)
        else:
            written = [other.removeprefix(f"{MAIN_PAPER}/") for other in known]
            raise ConfigError(suggest(name, [*written, *folders], "notebook"))
    return list(dict.fromkeys(chosen if names else known))


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook file."""
    return json.loads(path.read_bytes())["cells"]


def text_of(cell: Mapping[str, Any]) -> str:
    """The source of a cell, which the format stores as a text or as a list of lines."""
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def images(name: str) -> list[Path]:
    """The pictures that the text of a notebook links to as ``images/<picture>.png``; they are tracked beside it."""
    texts = [text_of(cell) for cell in read_cells(source(name)) if cell["cell_type"] == "markdown"]
    links = dict.fromkeys(link for text in texts for link in _IMAGE.findall(text))
    return [source(name).parent / link for link in links]


def executed(name: str, profile: str) -> Path:
    """Where the executed notebook of a profile lies."""
    return paths.results(profile) / "notebooks" / f"{name}.ipynb"


def title(cells: Iterable[Mapping[str, Any]]) -> str | None:
    """The first heading of a notebook, None where it has none."""
    texts = (text_of(cell) for cell in cells if cell["cell_type"] == "markdown")
    headings = (re.search(r"^# +(.+)$", text, flags=re.MULTILINE) for text in texts)
    return next((" ".join(heading[1].split()) for heading in headings if heading), None)
