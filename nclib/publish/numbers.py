"""Numbers and tables as Markdown."""

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(?<![\w.=-])-?\.?\d[\d.]*(?:e-\d+)?")


def table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


def minus(text: str) -> str:
    """The text with a minus sign for the hyphen of each negative number and exponent, as in "−1e−06"; the hyphens of
    words, names and dates stay, and so does ``lr=1e-4``, which one types.

    Examples
    --------
    >>> minus("-0.4 (-1.6 to 0.8), 1e-06, run-3-a7, 2026-01-02, -p lr=1e-4")
    '−0.4 (−1.6 to 0.8), 1e−06, run-3-a7, 2026-01-02, -p lr=1e-4'
    """
    return _NUMBER.sub(lambda number: number[0].replace("-", "−"), text)
