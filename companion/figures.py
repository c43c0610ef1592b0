"""``make figures``: the pictures and tables that README and the book show, drawn anew from the tracked runs.

Nothing is trained. They are drawn aside, in ``build/figures``, and copied to ``results/reference/`` when all are there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from PIL import Image

from companion.neural_collapse.numbers import numbers
from nclib.publish.notebooks import select
from nclib.publish.numbers import fill_pages
from nclib.reproduce.reproduce import reproduce
from nclib.system import paths
from nclib.system.processes import environment_restored

PICTURES = ("fig1", "fig3", "controls", "collapse", "residual_and_error")
TABLES = (
    *("scorecard", "equilibrium_or_cell", "collapse_pooled", "internalization", "residual_and_error"),
    *("depth_and_rank", "optimisers"),
)
LARGE = ("fig2", "fig3", "fig4", "fig5")
LARGE_TABLES = ("collapse_pooled", "collapse_terminal", "collapse_accuracy")
CIFAR10 = "dataset=folder:cifar10-jpeg@ef1101d4a992"


def draw() -> None:
    """Draw, copy, and write the numbers into the pages. Raises SystemExit where a notebook cannot be drawn."""
    aside = paths.root() / "build/figures"
    shutil.rmtree(aside, ignore_errors=True)
    with environment_restored(["NCLIB_RESULTS"]):
        os.environ["NCLIB_RESULTS"] = str(aside)
        names = [name for name in select(["neural_collapse"]) if not name.endswith("/your_own_cell")]
        drawn = [
            reproduce(names, train="never"),
            reproduce(["collapse", *LARGE], "full", [CIFAR10], train="finished"),
        ]
    if not all(summary.ok for summary in drawn):
        raise SystemExit("not every notebook could be drawn; nothing was copied")
    _copy(aside / "quick", "quick", PICTURES, TABLES)
    (large,) = (aside / "full/with").iterdir()
    _copy(large, "full", ("collapse", "collapse_norms", *LARGE), LARGE_TABLES)
    fill_pages(numbers(), write=True)


def _copy(results: Path, profile: str, pictures: tuple[str, ...], tables: tuple[str, ...]) -> None:
    for name in pictures:
        target = paths.reference() / f"figures/{name}-{profile}.png"
        _in_few_colours(results / f"figures/neural_collapse/{name}.png").save(target)
    for name in tables:
        for end in ("csv", "json"):
            target = paths.reference() / f"tables/{name}-{profile}.{end}"
            shutil.copy(results / f"tables/neural_collapse/{name}.{end}", target)


def _in_few_colours(picture: Path) -> Image.Image:
    """In 256 colours it has a third of the bytes, and no value of a pixel is off by more than a few of 255."""
    with Image.open(picture) as image:
        return image.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


if __name__ == "__main__":
    draw()
