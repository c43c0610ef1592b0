"""Figures and tables on disk: several formats of one thing, and a sidecar that records where it came from.

Same input, same bytes: no format holds a date, a version or a random identifier, so a file that changed in a
comparison did change. Circumstances (time, commit, versions) are in the sidecar alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from nclib import paths, provenance
from nclib.paths import csv_bytes, sha256, write_atomic
from nclib.publish.numbers import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN: dict[Path, str] = {}
"""Files saved by this process, with their digests."""


def save_figure(
    fig: Figure, name: str, caption: str, runs: Iterable[str], profile: str, data: pd.DataFrame | None = None
) -> dict[str, Path]:
    """Save a figure as PDF (TrueType fonts embedded) and PNG (300 dpi), its numbers as CSV, and a sidecar.

    Parameters
    ----------
    fig : plotted at its final width; it is saved as it is, nothing is cropped
    name : "paper/notebook" or any path of plain names, without an ending; it lands in
        `results(profile)/figures/<name>.*`
    caption : what is plotted, from which profile, how many seeds, what the error bars mean
    runs : ids of the runs behind it; empty where nothing was trained
    profile : among whose results it lands
    data : tidy frame of the plotted numbers

    Returns
    -------
    dict
        "pdf", "png", "csv" (with data) and "json" to absolute paths.


    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import nclib as nc
    >>> fig, ax = plt.subplots(figsize=(2, 2))
    >>> files = nc.save_figure(fig, "mine/plot", "A plot, profile smoke.", [], "smoke")
    >>> plt.close(fig)
    >>> sorted(files)
    ['json', 'pdf', 'png']
    """
    contents, layout = {"pdf": _render(fig, "pdf")}, fig.get_layout_engine()
    fig.set_layout_engine("none")  # the picture has that of the PDF: to find it takes as long as to render it
    contents["png"] = _render(fig, "png")
    fig.set_layout_engine(layout or "none")
    if data is not None:
        contents["csv"] = csv_bytes(data.drop(columns="protocol", errors="ignore"))  # the runs record it
    return _save(paths.results(profile) / "figures" / name, contents, _sidecar(name, caption, runs, profile))


def save_table(
    frame: pd.DataFrame, name: str, caption: str, runs: Iterable[str], profile: str, display: pd.DataFrame | None = None
) -> dict[str, Path]:
    """Save a table as CSV (the raw numbers), Markdown (what a reader sees), and a sidecar.

    Parameters
    ----------
    frame : the numbers, in full precision; its index is left out, so name every column that matters
    name, caption, runs, profile : as of `save_figure`; it lands in
        `results(profile)/tables/<name>.*`
    display : the same content as readable text, such as "94.00 ± 1.00"; None prints `frame` with four significant
        digits and a dash for what is missing

    Returns
    -------
    dict
        "csv", "md" and "json" to absolute paths.


    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> table = pd.DataFrame({"model": ["deq"], "accuracy": [0.9]})
    >>> sorted(nc.save_table(table, "mine/table", "A table, profile smoke.", [], "smoke"))
    ['csv', 'json', 'md']
    """
    display = frame if display is None else display
    shown = table(map(str, display.columns), display.astype(object).map(_cell).to_numpy())
    contents = {"csv": csv_bytes(frame), "md": f"{shown}\n\n{caption}\n".encode()}
    return _save(paths.results(profile) / "tables" / name, contents, _sidecar(name, caption, runs, profile))


def _save(base: Path, contents: Mapping[str, bytes], sidecar: dict[str, Any]) -> dict[str, Path]:
    written = {kind: write_atomic(f"{base}.{kind}", content) for kind, content in contents.items()}
    sidecar["files"] = {
        path.name: {"sha256": sha256(contents[kind]), "bytes": len(contents[kind])} for kind, path in written.items()
    }
    text = json.dumps(sidecar, indent=2, ensure_ascii=False) + "\n"
    written["json"] = write_atomic(f"{base}.json", text)  # last: its presence shows that the rest is complete
    WRITTEN.update({path: sha256(contents.get(kind, text.encode())) for kind, path in written.items()})
    return written


def _sidecar(name: str, caption: str, runs: Iterable[str], profile: str) -> dict[str, Any]:
    about = {"name": name, "caption": caption, "profile": profile, "runs": sorted({str(run) for run in runs})}
    return about | provenance.capture()


def _render(fig: Figure, kind: str) -> bytes:
    import matplotlib as mpl  # here, since every worker loads this module, and none of them plots

    empty = {"pdf": ("CreationDate", "Creator", "Producer"), "png": ("Software",)}[kind]
    buffer = io.BytesIO()
    # "standard": nothing is cropped, so the width is the one asked for, whatever a front end has set.
    with mpl.rc_context({"pdf.fonttype": 42, "savefig.bbox": "standard"}):
        fig.savefig(buffer, format=kind, dpi=300, metadata=dict.fromkeys(empty))
    return buffer.getvalue()


def _cell(value: object) -> str:
    if pd.isna(value):
        return "–"
    return (f"{value:.4g}" if isinstance(value, float) else str(value)).replace("|", "\\|").replace("\n", " ")
