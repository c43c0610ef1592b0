"""How everything looks: one style, one colour per model, and the few kinds of picture the papers need.

Functions take tidy frames or arrays and an axes, and return the axes; nothing here trains, reads or saves.
Colour and marker tell the model, line style the split, a band one standard deviation over seeds; what the
paper prints stands at the right of the axes. Everything stays distinguishable in grey.

Tidy frames have the columns run_id, profile, dataset, model, K_A, R, seed, split, epoch, metric, value.

All of it is defined in `nclib.publish.plots`; here are the names that notebooks use.
"""

from nclib.publish.plots.curves import arms, cobweb, curves, figure_legend, layers, sweep, traces
from nclib.publish.plots.display import live, live_progress, picture, prose
from nclib.publish.plots.matrices import cosine_gram, embed, embedding, forest, gram
from nclib.publish.plots.style import (
    GROUP_STYLE,
    KIND_COLOURS,
    METHOD_STYLE,
    MODEL_STYLE,
    ONE_COLUMN,
    SPLIT_LINE,
    TWO_COLUMN,
    Style,
    literal,
    plain_log,
    use_style,
)

__all__ = [
    "GROUP_STYLE",
    "KIND_COLOURS",
    "METHOD_STYLE",
    "MODEL_STYLE",
    "ONE_COLUMN",
    "SPLIT_LINE",
    "TWO_COLUMN",
    "Style",
    "arms",
    "cobweb",
    "cosine_gram",
    "curves",
    "embed",
    "embedding",
    "figure_legend",
    "forest",
    "gram",
    "layers",
    "literal",
    "live",
    "live_progress",
    "picture",
    "plain_log",
    "prose",
    "sweep",
    "traces",
    "use_style",
]
