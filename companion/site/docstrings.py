"""Docstrings as Sphinx reads them: plain text with formulas, and numpydoc sections."""

from __future__ import annotations

import re

_RULE = re.compile(r"-{3,}\s*$")
_ENTRY = re.compile(r"^(\*{0,2}\w[\w, *]*?) : (.*)$")
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_LISTED = ("Parameters", "Attributes", "Raises", "Warns", "Yields", "Other Parameters")


def for_sphinx(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText that napoleon understands.

    Formulas, which are indented, become literal blocks; entries "name : what it is" get their text below; signs that
    mean something to Sphinx alone are taken as they are.

    Parameters
    ----------
    lines : of the docstring, without the indentation of the code
    """
    out: list[str] = []
    section, at = "", 0
    while at < len(lines):
        line = lines[at]
        if at + 1 < len(lines) and line.strip() and _RULE.match(lines[at + 1]):
            section = line.strip()
            out += [line, lines[at + 1]]
            at += 2
            continue
        if line.lstrip().startswith(">>>"):  # as it is, up to the next blank line
            while at < len(lines) and lines[at].strip():
                out.append(lines[at])
                at += 1
            continue
        entry = _ENTRY.match(line)
        if section in _LISTED and entry:
            out += [entry[1], f"    {_escaped(entry[2])}"]
        elif not section and line.startswith("    ") and not (out and out[-1].strip()):
            at = _formula(lines, at, out)
            continue
        elif section == "Returns" and line.strip() and not line.startswith(" "):
            out.append(_escaped(line) if at and _RULE.match(lines[at - 1]) else f"    {_escaped(line)}")
        else:
            if section not in ("", *_LISTED, "Returns") and line.startswith("    ") and not out[-1].strip():
                at = _formula(lines, at, out)
                continue
            out.append(_escaped(line))
        at += 1
    return out


def _formula(lines: list[str], at: int, out: list[str]) -> int:
    """An indented block as a literal one; returns the line after it."""
    out += ["::", ""]
    while at < len(lines) and (lines[at].startswith("    ") or (not lines[at].strip() and _goes_on(lines, at))):
        out.append(lines[at])
        at += 1
    out.append("")
    return at


def _goes_on(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and lines[at + 1].startswith("    ")


def _escaped(line: str) -> str:
    """Signs that mean something to Sphinx alone, outside code."""
    parts = _CODE.split(line)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = re.sub(r"([\\*|`@]|(?<=\w)_(?!\w))", r"\\\1", part)
        elif place + 1 < len(parts) and re.match(r"[\w‖²³ᵀ']", parts[place + 1]):
            parts[place] += "\\ "
        if place % 2 and parts[place - 1][-1:] and re.match(r"[\w‖|−–]", parts[place - 1][-1]):
            parts[place] = "\\ " + parts[place]
    return "".join(parts)
