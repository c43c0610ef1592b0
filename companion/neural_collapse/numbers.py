"""Every number of README and the book that comes from tracked runs."""

from companion import book_tables
from companion.neural_collapse import collapse_tables


def numbers() -> dict[str, str]:
    """Name → text for `nclib.publish.numbers.fill`, from the tracked runs. It takes half a minute."""
    return {**collapse_tables.numbers(), **collapse_tables.tables(), **book_tables.found()}
