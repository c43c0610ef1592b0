"""``make figures``: the pictures and tables that README, docs and notebooks show, plotted anew from
the tracked runs.

Nothing is trained. They are plotted aside, in ``build/figures``, and copied when all are there: to
``results/reference/``, and small ones, for the first cells of notebooks, to
``notebooks/<paper>/images/``.

``python -m nclib.papers.make_figures NAME …`` renders the small pictures of these notebooks alone.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from nclib import paths
from nclib.papers import docs_tables
from nclib.papers.neural_collapse import front_figures
from nclib.paths import environment_restored
from nclib.reproduce import pictures, reproduce, select

LARGE = ("collapse", "fig2", "fig3", "fig4", "fig5", "table1", "table2", "table3", "table4")
"""Notebooks of the main paper whose pictures show CIFAR-10; those of the others show digits, or
nothing trained."""
CIFAR10 = "dataset=folder:cifar10-jpeg@ef1101d4a992"
SMALL = 0.42
"""Size of a small picture against that of the saved figure: 850 pixels where that is as wide as a
page."""
DRAWN_BY_HAND = ("two_blocks",)
"""Small pictures that no notebook plots; they stay as they are tracked."""


def draw() -> None:
    """Plot, copy, and write the page of tables.

    Raises
    ------
    SystemExit
        Where a notebook cannot be plotted.
    """
    names = select(["neural_collapse"])
    large, quick = _plot(names, _shown_large(names))
    front_figures.save(_aside())
    _copy(quick, "quick")
    _copy(large, "full")
    for picture in _aside().glob("*.png"):
        _reduce_colours(picture, paths.reference() / "figures" / picture.name)
    small_pictures(names, [large, quick])
    docs_tables.write()


def draw_small(names: Iterable[str]) -> None:
    """Plot these notebooks, and write the small pictures that their first cells link to.

    Parameters
    ----------
    names : "paper/notebook"; a bare name is the main paper's, a paper's name is all of its
        notebooks.
    """
    chosen = select(names)
    large = _shown_large(chosen)
    quick = [name for name in chosen if name not in large]
    small_pictures(chosen, _plot(quick, large))


def small_pictures(names: Iterable[str], results: Sequence[Path]) -> list[Path]:
    """Write the small pictures that notebooks link to, from the figures that they have saved.

    The link decides which figure it is: ``![what it shows](images/fig3_centred.png)`` in a notebook
    of the folder ``neural_collapse`` is the figure that a notebook saved as
    "neural_collapse/fig3_centred".

    Parameters
    ----------
    names : "paper/notebook"
    results : folders of results, of which the first with the figure is taken.

    Returns
    -------
    The pictures, ``notebooks/<paper>/images/<figure>.png``.

    Raises
    ------
    SystemExit
        Where no folder has a figure of that name.

    Examples
    --------
    After ``nclib reproduce kernel_equivalence`` (any profile), with the links in the first cells::

        make_figures.small_pictures(select(["kernel_equivalence"]), [paths.results("quick")])

    ``python -m nclib.papers.make_figures kernel_equivalence`` does both, aside.
    """
    written = []
    for notebook in names:
        for target in pictures(notebook):
            if target.stem in DRAWN_BY_HAND:
                continue
            target.parent.mkdir(exist_ok=True)
            _save_in_few_colours(_small_picture(notebook, target, results), target)
            written.append(target)
    return written


def _small_picture(notebook: str, target: Path, results: Sequence[Path]) -> Image.Image:
    figure = Path("figures", notebook).with_name(target.name)
    for folder in results:
        if (folder / figure).is_file():
            with Image.open(folder / figure) as image:
                size = (round(SMALL * image.width), round(SMALL * image.height))
                return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    raise SystemExit(f"{notebook} links to images/{target.name}, but saved no figure of that name")


def _shown_large(names: Iterable[str]) -> list[str]:
    large = {f"neural_collapse/{name}" for name in LARGE}
    return [name for name in names if name in large]


def _plot(quick: Sequence[str], large: Sequence[str]) -> tuple[Path, Path]:
    """Plot notebooks from tracked runs, of digits and of CIFAR-10; the folders of results, that of
    CIFAR-10 first."""
    aside = _aside()
    shutil.rmtree(aside, ignore_errors=True)
    summaries = []
    with environment_restored(["NCLIB_RESULTS"]):
        os.environ["NCLIB_RESULTS"] = str(aside)
        if quick:
            summaries.append(reproduce(quick, train="never"))
        if large:
            summaries.append(reproduce(large, "full", [CIFAR10], train="finished"))
    for summary in summaries:
        for row in summary.rows:
            if row.status not in ("executed", "unchanged"):
                raise SystemExit("not every notebook could be plotted; nothing was copied")
    of_cifar10 = next(aside.glob("full/with/*"), aside / "full")
    return of_cifar10, aside / "quick"


def _aside() -> Path:
    return paths.root() / "build/figures"


def _copy(results: Path, profile: str) -> None:
    """Replace the pictures and tables of a profile that are tracked; to track a new one, put it
    there once by hand."""
    for target in paths.reference().glob(f"[ft]*s/*-{profile}.*"):
        name = target.name.replace(f"-{profile}.", ".")
        new = results / target.parent.name / "neural_collapse" / name
        if target.suffix == ".png":
            _reduce_colours(new, target)
        else:
            shutil.copy(new, target)


def _reduce_colours(picture: Path, target: Path) -> None:
    with Image.open(picture) as image:
        _save_in_few_colours(image.convert("RGB"), target)


def _save_in_few_colours(image: Image.Image, target: Path) -> None:
    """256 colours take a third of the bytes; a pixel is off by a few of 255."""
    few = image.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(target)


if __name__ == "__main__":
    notebooks = sys.argv[1:]
    if notebooks:
        draw_small(notebooks)
    else:
        draw()
