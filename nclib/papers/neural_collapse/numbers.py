"""Every number and table that README and the book show of the tracked runs, by the names that their spans use."""

from __future__ import annotations

from nclib.papers.neural_collapse import collapse_tables


def numbers() -> dict[str, str]:
    """Name → text of `nclib.publish.numbers.fill`, computed from the tracked runs; takes half a minute."""
    return {**collapse_tables.numbers(), **collapse_tables.tables()}
