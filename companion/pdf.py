"""``make pdf``: the book's answer in four pages, ``results/report.pdf``, with the checklists as an appendix.

Nothing is written for it: it takes parts of README and of the book, whose numbers `nclib numbers` writes.
"""

import os
import re
from pathlib import Path

import pypandoc
import typst

import nclib
from nclib.publish.numbers import SPAN
from nclib.system import paths, provenance

# page, its heading, the heading (or the first words) before which the part ends, and the heading in the report
PARTS = (
    ("docs/collapse.md", "# Does a DEQ collapse better?", "## Protocol 2", "Question and answer"),
    ("docs/protocol.md", "## The question", "**Estimates**", "Protocol"),
    ("docs/collapse.md", "## Protocol 2", "## Every metric", "Results"),
    ("docs/findings.md", "## Sun & Shi: the theory", "## Sun & Shi: the printed numbers", "Theory"),
    ("docs/record.md", "## Checklists", None, "Appendix: checklists"),
)
FRESH, FIRST = "`results/reference/protocol-2`", "`results/reference/cifar10-full`"
RUNS = {"collapse-full": f"fresh seeds {FRESH}, all others {FIRST}", "replication-sensitivity": FRESH}  # by name
RUNS |= {"replication-tests": f"{FRESH}; column *protocol 1*: {FIRST}"}
HEAD = f"""# Does a DEQ collapse better?\n
*Version {nclib.__version__}, commit COMMIT. Scale: reduced. Runs of numbers in the text: {FRESH}; with †: {FIRST}.*"""
LAYOUT = r"""#set document(title: "Does a DEQ collapse better?")
#set page(paper: "a4", margin: (x: 16mm, y: 15mm), numbering: "1")
#set text(size: 10pt, font: ("Libertinus Serif", "New Computer Modern"))
#set par(justify: true, leading: 0.5em)
#set image(width: 95%)
#set table(stroke: (x: none, y: 0.3pt + luma(200)), inset: (x: 2.5pt, y: 2.5pt))
#show table: it => { set text(size: 9pt); set par(justify: false); set align(left); it }
#show table.cell.where(y: 0): strong
#show figure: set block(breakable: true)
#show figure.where(kind: image): set figure(placement: auto, numbering: none)
#show link: set text(fill: rgb("#1f4e8c"))
#show raw: set text(size: 9pt)
"""


def part(page: str, start: str, end: str | None, title: str) -> str:
    """A part of a page as plain Markdown, links relative to the root; ValueError where it lacks one of the headings."""
    text = (paths.root() / page).read_text("utf-8")
    for heading in filter(None, (start, end)):
        if f"\n{heading}" not in f"\n{text}":
            raise ValueError(f"{page} has no heading {heading!r}; name the one it has now in companion/pdf.py")
    text = text[text.index(f"{start}\n") + len(start) : text.index(f"\n{end}") if end else None]
    text = re.sub(r"^##+", r"\g<0>#" if start.startswith("## ") else r"\g<0>", text, flags=re.MULTILINE)
    text = SPAN.sub(_with_runs, f"## {title}{text}")
    text = re.sub(r"(!\[[^]]*)(\]\(.*/(.*)\.png\))", lambda m: f"{m[1]}. Runs: {RUNS[m[3]]}.{m[2]}", text)
    folder, own = os.path.split(page)
    text = text.replace("](#", f"]({own}#")
    return re.sub(r"\]\((?!https?:)([^)]+)\)", lambda m: f"]({os.path.normpath(os.path.join(folder, m[1]))})", text)


def _with_runs(span: re.Match[str]) -> str:
    kind, name, text = span.groups()
    text = text.replace(" %", "\N{NO-BREAK SPACE}%").replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}")
    if kind == "t":
        return f"{text}\n*Runs: {RUNS[name]}.*\n"
    return text + "†" * (name.startswith("collapse") and not re.search(r"-fresh|-length-", name))


def write(target: Path) -> Path:
    """Write the report, and return its path."""
    commit, _ = provenance.git_state()
    text = "\n\n".join([HEAD.replace("COMMIT", (commit or "unknown")[:12]), *(part(*each) for each in PARTS)])
    body = pypandoc.convert_text(text, "typst", format="gfm+implicit_figures-yaml_metadata_block")
    body = body.replace('image("', 'image("/').replace("== Appendix", "#pagebreak()\n== Appendix")
    here = os.path.relpath(paths.root(), target.parent)
    body = re.sub(r'#link\("(?!https?:)', f'#link("{here}/', body)
    target.parent.mkdir(parents=True, exist_ok=True)
    typst.compile((LAYOUT + body).encode(), output=target, root=paths.root())
    return target


if __name__ == "__main__":
    print(write(paths.results() / "report.pdf"))
