"""``make figures``: the pictures and tables that README and the book show, drawn anew from the tracked runs.

Nothing is trained. They are drawn aside, in ``build/figures``, and copied to ``results/reference/`` when all are there.
"""

import os
import shutil
from pathlib import Path

from PIL import Image

from companion.docs_tables import numbers
from companion.neural_collapse import front_figures
from nclib.publish.notebooks import select
from nclib.publish.numbers import fill_pages
from nclib.reproduce.reproduce import reproduce
from nclib.system import paths
from nclib.system.processes import environment_restored

LARGE = ("fig2", "fig3", "fig4", "fig5")
CIFAR10 = "dataset=folder:cifar10-jpeg@ef1101d4a992"


def draw() -> None:
    """Draw, copy, and write the numbers into the pages. Raises SystemExit where a notebook cannot be drawn."""
    aside = paths.root() / "build/figures"
    shutil.rmtree(aside, ignore_errors=True)
    with environment_restored(["NCLIB_RESULTS"]):
        os.environ["NCLIB_RESULTS"] = str(aside)
        names = [name for name in select(["neural_collapse"]) if not name.endswith("/your_own_cell")]
        drawn = [reproduce(names, train="never"), reproduce(["collapse", *LARGE], "full", [CIFAR10], train="finished")]
    if not {row.status for summary in drawn for row in summary.rows} <= {"executed", "unchanged"}:
        raise SystemExit("not every notebook could be drawn; nothing was copied")
    front_figures.save(aside)
    _copy(aside / "quick", "quick")
    (large,) = (aside / "full/with").iterdir()
    _copy(large, "full")
    for picture in aside.glob("*.png"):
        _save_in_few_colours(picture, paths.reference() / "figures" / picture.name)
    fill_pages(numbers(), write=True)


def _copy(results: Path, profile: str) -> None:
    """Replace the pictures and tables of a profile that are tracked; to track a new one, put it there once by hand."""
    for target in paths.reference().glob(f"[ft]*s/*-{profile}.*"):
        new = results / target.parent.name / "neural_collapse" / target.name.replace(f"-{profile}.", ".")
        if target.suffix == ".png":
            _save_in_few_colours(new, target)
        else:
            shutil.copy(new, target)


def _save_in_few_colours(picture: Path, target: Path) -> None:
    """256 colours take a third of the bytes; a pixel is off by a few of 255."""
    with Image.open(picture) as image:
        few = image.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(target)


if __name__ == "__main__":
    draw()
