"""What one call of ``nclib reproduce`` did: a row for each notebook, as a table and as a file."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from nclib.system import paths, provenance
from nclib.system.files import write_atomic


@dataclass(frozen=True)
class Row:
    """One notebook in the summary. A run that several notebooks share counts as trained in the first of them.

    Parameters
    ----------
    status : "executed", "unchanged", "failed", or "unfinished" where all that it lacks is runs there was no time for.
    files : relative to ``results/<profile>/``, or for other parameters to ``results/<profile>/with/<parameters>/``.
    """

    notebook: str
    status: Literal["executed", "unchanged", "failed", "unfinished"]
    seconds: float
    runs_trained: int
    runs_reused: int
    files: list[str] = field(default_factory=list)
    message: str = ""


@dataclass(frozen=True)
class Summary:
    """What one call of `reproduce` did; ``summary.json`` beside its notebooks holds the same.

    Parameters
    ----------
    parameters : those that are not the profile's own.
    training : how many runs were trained, and in how many seconds; None when nothing was trained.
    """

    profile: str
    parameters: dict[str, Any]
    rows: list[Row]
    failed_runs: dict[str, str]
    seconds: float
    training: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether every notebook is there."""
        return all(row.status in ("executed", "unchanged") for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, the rows under "notebooks"."""
        content = asdict(self)
        return {"ok": self.ok, "notebooks": content.pop("rows"), **content}

    def text(self, width: int | None = None) -> str:
        """The table as plain text, a line a notebook, then one line for each failure.

        Parameters
        ----------
        width : columns of text; left out: the terminal's, 120 where there is none.
        """
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for column in ("notebook", "status"):
            table.add_column(column, no_wrap=True)
        for column in ("seconds", "trained", "reused"):
            table.add_column(column, justify="right")
        for column in ("figures", "tables"):
            table.add_column(column, justify="right")
        for row in self.rows:
            counts = f"{row.seconds:.1f}", str(row.runs_trained), str(row.runs_reused)
            made = (sum(file.endswith(ending) for file in row.files) for ending in (".png", ".html"))
            table.add_row(row.notebook, row.status, *counts, *map(str, made))
        page = io.StringIO()
        columns = width or shutil.get_terminal_size((120, 24)).columns
        console = Console(file=page, width=columns, color_system=None, markup=False, highlight=False)
        console.print(table)
        lines = [line.rstrip() for line in page.getvalue().splitlines() if line.strip()]
        lines += [f"{row.status}: {row.notebook}: {row.message}" for row in self.rows if row.message]
        return "\n".join(lines)


def write_summary(summary: Summary) -> None:
    """Write ``summary.json`` among the results of the profile."""
    content = summary.as_dict() | {"provenance": provenance.capture()}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomic(paths.results(summary.profile) / "summary.json", text)
