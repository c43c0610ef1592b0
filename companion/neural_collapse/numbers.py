"""Every number and table that README and the book show of the tracked runs, by the names that their spans use."""

from __future__ import annotations

from companion.neural_collapse import collapse_tables


def numbers() -> dict[str, str]:
    """Name → text for `nclib.publish.numbers.fill`, from the tracked runs. It takes half a minute."""
    return {**collapse_tables.numbers(), **collapse_tables.tables()}
