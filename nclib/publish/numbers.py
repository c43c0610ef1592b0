"""Numbers and tables in the pages of docs/, between marks that name them.

A page holds ``<!--n:NAME-->−17 %<!--/n-->`` within a line, or ``<!--t:NAME-->`` and ``<!--/t-->`` on lines of their own
around a table. `fill` writes what the runs give between the marks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from nclib.system import paths
from nclib.system.files import write_atomic

SPAN = re.compile(r"<!--([nt]):([\w-]+)-->(.*?)<!--/\1-->", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.=-])-?\.?\d[\d.]*(?:e-\d+)?")
_MARK = re.compile(r"<!--/?[nt](?::[\w-]+)?-->")


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


class SpanError(ValueError):
    """A page has a span that cannot be filled."""

    exit_code = 1


def fill(text: str, values: Mapping[str, str], page: str = "the page") -> tuple[str, list[str]]:
    """The text with every span filled, and the names of the spans that had another content.

    Parameters
    ----------
    text : Markdown
    values : name → text; a table starts with | and gets lines of its own
    page : its name in errors

    Raises
    ------
    SpanError
        Where a span is not closed, or has a name that `values` lacks.

    Examples
    --------
    >>> fill("It falls by <!--n:fall-->3<!--/n--> %.", {"fall": "17"})
    ('It falls by <!--n:fall-->17<!--/n--> %.', ['fall'])
    """
    changed = []

    def filled(span: re.Match[str]) -> str:
        kind, name, old = span.groups()
        if name not in values:
            raise SpanError(f"{page}: no number is named {name!r}")
        new = f"\n{values[name]}\n" if values[name].startswith("|") else values[name]
        if new != old:
            changed.append(name)
        return f"<!--{kind}:{name}-->{new}<!--/{kind}-->"

    within = "".join(span[3] for span in SPAN.finditer(text))
    if lone := _MARK.findall(within + SPAN.sub("", text)):
        raise SpanError(f"{page}: {lone[0]} has no partner; a span is <!--n:NAME-->…<!--/n-->")
    return SPAN.sub(filled, text), changed


def fill_pages(values: Mapping[str, str], write: bool = True) -> list[str]:
    """Fill docs/*.md; "docs/collapse.md: NAME" for each span that had another content.

    With ``write=False`` the pages stay as they are. Where one of them has a wrong span, none is written.
    """
    root = paths.root()
    filled, changed = {}, []
    for page in sorted((root / "docs").glob("*.md")):
        name = page.relative_to(root).as_posix()
        filled[page], names = fill(page.read_text(encoding="utf-8"), values, name)
        changed += [f"{name}: {each}" for each in names]
    for page, text in filled.items():
        if write and text != page.read_text(encoding="utf-8"):
            write_atomic(page, text.encode("utf-8"))
    return changed
