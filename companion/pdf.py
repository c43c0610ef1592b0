"""``make pdf``: the book's answer as a report of a few pages, ``results/report.pdf``, with the checklists behind it.

Nothing is written for it: it takes parts of README and of the book, whose numbers `nclib numbers` writes.
"""

import os
import re
from pathlib import Path

import pypandoc
import typst

import nclib
from nclib.system import paths, provenance

# page, its heading, the heading before which the part ends; None is the end of the page
PARTS = (
    ("book/collapse.md", "# Does a DEQ collapse better?", "## To go on"),
    ("book/findings.md", "## Sun & Shi: the theory", "## Sun & Shi: the printed numbers"),
    ("README.md", "## Limits", "## Measure my network"),
    ("book/checklists.md", "# Checklists", None),
)
RUNS = {"collapse": "cifar10-full", "digits": "quick"}  # span → the collection below results/reference/ it is made from
LAYOUT = r"""#set document(title: "Does a DEQ collapse better?")
#set page(paper: "a4", margin: (x: 16mm, y: 15mm), numbering: "1")
#set text(size: 8.5pt, font: ("Libertinus Serif", "New Computer Modern"))
#set par(justify: true, leading: 0.5em)
#set table(stroke: none, inset: (x: 3pt, y: 2.2pt))
#show table: set text(size: 7.5pt)
#show table: set par(justify: false)
#show table: set align(left)
#show table.cell.where(y: 0): strong
#show figure: set block(breakable: true)
#show figure.where(kind: image): set block(breakable: false)
#show link: set text(fill: rgb("#1f4e8c"))
#show raw: set text(size: 7.5pt)
#let horizontalrule = line(length: 100%)
"""


def part(page: str, start: str, end: str | None) -> str:
    """A part of a page as plain Markdown, its links and pictures relative to the root of the clone.

    Raises ValueError where the page lacks one of the headings.
    """
    text = (paths.root() / page).read_text("utf-8")
    for heading in filter(None, (start, end)):
        if f"{heading}\n" not in text:
            raise ValueError(f"{page} has no heading {heading!r}; name the one it has now in companion/pdf.py")
    text = text[text.index(f"{start}\n") : text.index(f"{end}\n") if end else None]
    text = re.sub(r"<!--t:(\w+)-.*?-->(.*?)<!--/t-->", _with_collection, text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r"\[([^]]+)\]\(#[^)]*\)", r"\1", text)
    folder = os.path.dirname(page)
    return re.sub(r"\]\((?!https?:)([^)]+)\)", lambda m: f"]({os.path.normpath(os.path.join(folder, m[1]))})", text)


def _with_collection(span: re.Match[str]) -> str:
    collection = RUNS.get(span[1])
    return span[2] + (f"\n*Runs: `results/reference/{collection}`.*\n" if collection else "")


def write(target: Path) -> Path:
    """Write the report, and return its path."""
    commit, _ = provenance.git_state()
    note = f"*Version {nclib.__version__} of the code, commit {(commit or 'unknown')[:12]}. Scale: reduced.*"
    text = "\n\n".join([note, *(part(*each) for each in PARTS)])
    body = pypandoc.convert_text(text, "typst", format="gfm+tex_math_dollars-yaml_metadata_block")
    body = re.sub(r'image\("', 'image("/', body)
    here = os.path.relpath(paths.root(), target.parent)
    body = re.sub(r'#link\("(?!https?:)', f'#link("{here}/', body)
    target.parent.mkdir(parents=True, exist_ok=True)
    typst.compile((LAYOUT + body).encode(), output=target, root=paths.root())
    return target


if __name__ == "__main__":
    print(write(paths.results() / "report.pdf"))
