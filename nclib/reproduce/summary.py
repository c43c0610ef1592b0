"""What one call of ``nclib reproduce`` did: a row for each notebook, as a table and as a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pandas as pd

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

    def text(self) -> str:
        """The table as plain text, a line a notebook, then one line for each failure."""
        shown = [
            {
                "notebook": f"{row.notebook:38}",
                "status": f"{row.status:10}",
                "seconds": f"{row.seconds:.1f}",
                "trained": row.runs_trained,
                "reused": row.runs_reused,
                "figures": sum(file.endswith(".png") for file in row.files),
                "tables": sum(file.endswith(".html") for file in row.files),
            }
            for row in self.rows
        ]
        lines = [pd.DataFrame(shown).to_string(index=False)]
        return "\n".join(lines + [f"{row.status}: {row.notebook}: {row.message}" for row in self.rows if row.message])


def write_summary(summary: Summary) -> None:
    """Write ``summary.json`` among the results of the profile."""
    content = summary.as_dict() | {"provenance": provenance.capture()}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomic(paths.results(summary.profile) / "summary.json", text)
