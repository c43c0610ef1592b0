"""Public names, imported on first use."""

from .lines import arms as arms, curves as curves, figure_legend as figure_legend, sweep as sweep, traces as traces
from .display import live as live, live_progress as live_progress, picture as picture, prose as prose
from .matrices import cosine_gram as cosine_gram, embed as embed, embedding as embedding, forest as forest, gram as gram
from .style import (
    GROUP_STYLE as GROUP_STYLE,
    METHOD_STYLE as METHOD_STYLE,
    MODEL_STYLE as MODEL_STYLE,
    ONE_COLUMN as ONE_COLUMN,
    SPLIT_LINE as SPLIT_LINE,
    TWO_COLUMN as TWO_COLUMN,
    Style as Style,
    plain_log as plain_log,
    use_style as use_style,
)
