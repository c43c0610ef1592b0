"""ResNet-18 and the DEQ as one picture, drawn in units of a tenth of an inch."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle

from nclib.publish.plots.style import TWO_COLUMN, _style

_HEIGHT = 29.6
_MIDDLE, _UPPER, _LOWER = 15.5, 21.4, 6.3  # of the trunk and of the two last blocks
_CHAIN = 4.2  # how far above or below a chain of operations its side paths run
_INK = "0.15"
_TINY = 5.8  # points


def architecture(
    ax: Axes,
    layers: Mapping[str, pd.DataFrame],
    operations: Mapping[str, pd.DataFrame],
    image: Sequence[int],
    solver: str,
    start: str,
) -> Axes:
    """ResNet-18 and the DEQ as one picture: the encoder they share, both last blocks, the pooling and classifier they
    share.

    Sizes, names and counts are those of the tables; slabs are as high as their maps and as thick as their channels, on
    logarithmic scales.

    Parameters
    ----------
    ax : the only axes of a figure of TWO_COLUMN by 2.96 inches; they fill it and lose their frame.
    layers : for "explicit" and "deq" the table of `companion.neural_collapse.layer_table`: stage, output,
        parameters.
    operations : for both the table of `companion.neural_collapse.block_operations`: operation, joins.
    image : (C, H, W) of the input.
    solver : what is written into the loop.
    start : of the solve, "x" or "zeros".

    Returns
    -------
    ax.

    Raises
    ------
    ValueError
        Where the networks differ in more than their last block.
    """
    shared = [frame[frame["stage"] != "last block"].drop(columns="evaluations") for frame in layers.values()]
    if not all(frame.reset_index(drop=True).equals(shared[0].reset_index(drop=True)) for frame in shared):
        raise ValueError("the networks differ in more than their last block, so they cannot share a drawing")
    table = layers["explicit"].set_index("stage")
    ax.set_position((0, 0, 1, 1))
    ax.set(xlim=(0, 10 * TWO_COLUMN), ylim=(0, _HEIGHT))
    ax.axis("off")
    stages = table.iloc[: table.index.get_loc("last block")]
    end = _draw_encoder(ax, stages, image)
    fork, left, right, merge = end + 2.0, end + 3.4, 55.3, 56.7
    _path(ax, [(end, _MIDDLE), (fork, _MIDDLE)])
    ax.text(fork + 0.5, _MIDDLE, f"x  {stages['output'].iloc[-1]}", va="center", fontsize=_TINY)
    for name, height, below in (("explicit", _UPPER, 3.9), ("deq", _LOWER, 5.6)):
        parameters = layers[name].set_index("stage").loc["last block", "parameters"]
        text = f"{_style(name).label}, last block: {_amount(parameters)} parameters"
        _panel(ax, left, right, height, below, text, _style(name).colour)
        if name == "deq":
            _path(ax, [(fork, _MIDDLE), (fork, height - _CHAIN), (left + 0.8, height - _CHAIN)])
            _draw_loop(ax, operations[name], left, right, height, solver, start)
        else:
            _path(ax, [(fork, _MIDDLE), (fork, height), (left + 0.8, height)])
            _draw_chain(ax, operations[name], left + 0.8, right, height, height, {"x": _CHAIN})
        _path(ax, [(right, height), (merge, height), (merge, _MIDDLE)])
    ax.text(merge + 0.4, _UPPER, "f(x)", va="center", style="italic")
    ax.text(merge + 0.4, _LOWER, "z* = f(z*, x)", va="center", style="italic", fontsize=7)
    _draw_head(ax, table, merge)
    return ax


def _amount(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number / 1e3:.1f} k" if number >= 1e3 else f"{number:.0f}"


def _path(ax: Axes, points: Sequence[tuple[float, float]], tip: bool = False, **style: object) -> None:
    style = {"color": _INK, "linewidth": 0.8, "zorder": 2, "solid_joinstyle": "round"} | style
    ax.plot(*zip(*points, strict=True), **style)
    if tip:
        (x0, y0), (x1, y1) = points[-2:]
        size = math.hypot(x1 - x0, y1 - y0)
        dx, dy = 0.85 * (x1 - x0) / size, 0.85 * (y1 - y0) / size
        corners = [(x1, y1), (x1 - dx - 0.4 * dy, y1 - dy + 0.4 * dx), (x1 - dx + 0.4 * dy, y1 - dy - 0.4 * dx)]
        ax.add_patch(Polygon(corners, facecolor=style["color"], linewidth=0, zorder=5))


def _draw_encoder(ax: Axes, stages: pd.DataFrame, image: Sequence[int]) -> float:
    """The input and the stages; returns where they end."""
    shapes = [tuple(image), *(tuple(map(int, text.split("×"))) for text in stages["output"])]
    largest = max(max(shape[1:]) for shape in shapes)
    x, end = 0.5, 0.0
    for title, shape, count in zip(["image", *stages.index], shapes, [None, *stages["parameters"]], strict=True):
        side = 1.6 + 6.4 * math.log2(1 + shape[1]) / math.log2(1 + largest)
        thick, deep = 0.5 + 0.22 * math.log2(shape[0]), 0.16 * side
        middle = x + 2.05
        if end:
            _path(ax, [(end, _MIDDLE), (middle - (thick + deep) / 2, _MIDDLE)], tip=True)
        _slab(ax, middle, side, thick, deep)
        end = middle + (thick + deep) / 2
        name, _, detail = title.partition(", ")
        ax.text(middle, _MIDDLE + 6.6, name, ha="center", va="bottom", fontsize=6.5)
        ax.text(middle, _MIDDLE + 6.4, detail, ha="center", va="top", fontsize=_TINY)
        channels, *maps = map(str, shape)
        ax.text(middle, _MIDDLE - 5.3, f"{channels}\n{'×'.join(maps)}", ha="center", va="top", fontsize=_TINY)
        amount = "" if count is None else _amount(count)
        ax.text(middle, _MIDDLE - 7.7, amount, ha="center", va="top", fontsize=_TINY, style="italic", color="0.3")
        x += 4.1
    note = "Below each stage: channels, maps, parameters."
    ax.text(0.9, _MIDDLE - 10.2, note, va="top", fontsize=_TINY, color="0.3")
    return end


def _slab(ax: Axes, middle: float, side: float, thick: float, deep: float) -> None:
    """A cuboid whose front face is `thick` wide and `side` high."""
    left, bottom = middle - (thick + deep) / 2, _MIDDLE - (side + deep) / 2
    right, top = left + thick, bottom + side
    faces = {
        "0.90": [(left, bottom), (right, bottom), (right, top), (left, top)],
        "0.97": [(left, top), (right, top), (right + deep, top + deep), (left + deep, top + deep)],
        "0.72": [(right, bottom), (right + deep, bottom + deep), (right + deep, top + deep), (right, top)],
    }
    for shade, corners in faces.items():
        ax.add_patch(Polygon(corners, facecolor=shade, edgecolor=_INK, linewidth=0.6, joinstyle="round", zorder=3))


def _panel(ax: Axes, left: float, right: float, height: float, below: float, text: str, colour: str) -> None:
    rounded = "round,pad=0,rounding_size=0.7"
    box = FancyBboxPatch((left, height - below), right - left, 5.8 + below, boxstyle=rounded, zorder=0)
    box.set(facecolor="0.965", edgecolor=colour, linewidth=1.0)
    ax.add_patch(box)
    ax.text(left + 0.3, height + 6.1, text, fontsize=6.5, color=colour, va="bottom", fontweight="bold")


def _draw_chain(
    ax: Axes,
    operations: pd.DataFrame,
    left: float,
    right: float,
    height: float,
    source: float,
    joins: Mapping[str, float],
) -> None:
    """Operations from left to right at a height; what joins an addition runs `joins[name]` above it (or below), x from
    the height `source` at the left end, z from the chain's own."""
    room = (right - left) / (len(operations) + 0.6)
    _path(ax, [(left, height), (right, height)], zorder=1)
    for i, row in enumerate(operations.itertuples()):
        x = left + room * (i + 0.9)
        if row.operation == "add":
            ax.add_patch(Circle((x, height), 0.8, facecolor="white", edgecolor=_INK, linewidth=0.7, zorder=4))
            _path(ax, [(x - 0.45, height), (x + 0.45, height)], zorder=5)
            _path(ax, [(x, height - 0.45), (x, height + 0.45)], zorder=5)
            rise = joins[row.joins]
            begin = (left, source) if row.joins == "x" else (left + 0.4, height)
            way = [begin, (begin[0], height + rise), (x, height + rise), (x, height + math.copysign(0.8, rise))]
            _path(ax, way, tip=True)
        else:
            shade = "0.80" if row.operation.startswith("conv") else "white"
            box = Rectangle((x - 0.85, height - 2.9), 1.7, 5.8, facecolor=shade, edgecolor=_INK, linewidth=0.7)
            box.set_zorder(4)
            ax.add_patch(box)
            ax.text(x, height, row.operation, rotation=90, ha="center", va="center", fontsize=6, zorder=5)


def _draw_loop(
    ax: Axes, operations: pd.DataFrame, left: float, right: float, height: float, solver: str, start: str
) -> None:
    """An equilibrium: the cell's operations, x joining from below, and the way back through the solver above."""
    state, back, level = left + 2.0, right - 1.3, height + _CHAIN
    _draw_chain(ax, operations, state, back, height, height - _CHAIN, {"x": -_CHAIN, "z": 3.3})
    _path(ax, [(left, height - _CHAIN), (state, height - _CHAIN)])
    _path(ax, [(back, height), (right, height)])
    _path(ax, [(back, height), (back, level), (state, level), (state, height)])
    _path(ax, [(state, height + 1.2), (state, height + 0.1)], tip=True)
    ax.add_patch(Circle((state, height), 0.25, facecolor=_INK, zorder=5))
    ax.text(state + 0.7, height + 0.4, "z", ha="left", va="bottom", style="italic", fontsize=7)
    if start == "x":
        _path(ax, [(state, height - _CHAIN), (state, height)], linestyle=(0, (1.5, 1.2)))
    ax.text(state - 0.3, height - 2.1, f"start {start}", ha="right", va="center", fontsize=5, rotation=90)
    middle = (state + back) / 2
    ax.text(middle, height - _CHAIN - 0.3, "input injection", ha="center", va="top", fontsize=5)
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": _INK, "linewidth": 0.7}
    ax.text(middle, level, solver, ha="center", va="center", fontsize=_TINY, bbox=box, zorder=4)


def _draw_head(ax: Axes, table: pd.DataFrame, left: float) -> None:
    for x, title in ((59.6, "average\npool"), (64.6, "linear,\nno bias")):
        box = Rectangle((x - 1.2, _MIDDLE - 3), 2.4, 6, facecolor="0.90", edgecolor=_INK, linewidth=0.7)
        box.set_zorder(3)
        ax.add_patch(box)
        ax.text(x, _MIDDLE, title, ha="center", va="center", fontsize=6, zorder=4, rotation=90)
    _path(ax, [(left, _MIDDLE), (58.4, _MIDDLE)], tip=True)
    _path(ax, [(60.8, _MIDDLE), (63.4, _MIDDLE)], tip=True)
    ax.text(62.1, _MIDDLE + 0.5, "h", ha="center", va="bottom", style="italic", fontsize=7)
    ax.text(62.1, _MIDDLE - 0.6, table.loc["pooling", "output"], ha="center", va="top", fontsize=_TINY)
    amount = _amount(table.loc["classifier", "parameters"])
    ax.text(64.6, _MIDDLE - 3.4, amount, ha="center", va="top", fontsize=_TINY, style="italic", color="0.3")
    ax.text(64.6, _MIDDLE + 3.4, f"K = {table.loc['classifier', 'output']}", ha="center", va="bottom", fontsize=_TINY)
