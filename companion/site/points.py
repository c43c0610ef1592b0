"""Points of a planar embedding that tell their class and show their image when they are pointed at."""

from __future__ import annotations

from typing import Any

from companion.site.fragments import stand_alone
from companion.site.sources import Page
from nclib.publish import scorecard
from nclib.publish.plots.style import MODEL_STYLE

COLUMNS = {"x", "y", "class", "model", "name", "minority", "image"}
"""What a table holds whose points can be pointed at; image: a PNG in base64, or nothing."""

_HEAD = """<meta charset="UTF-8"><title>Point at an image</title><style>
  body { font: 15px system-ui, sans-serif; margin: 0; background: #fff; color: #222 }
  #vg-tooltip-element img { width: 96px; height: 96px; object-fit: contain; image-rendering: pixelated }
</style>"""


def table_of(page: Page, profile: str) -> Any:
    """The table of a page that holds such points; None where it has none. profile: whose site it is."""
    for artefact in page.artefacts:
        if artefact.kind == "tables" and artefact.name.endswith("_tsne") and "csv" in artefact.endings:
            with page.drawn.results(profile):
                found = scorecard.read_table(artefact.name, page.drawn.profile or profile)
            if found and {*found[0]} >= COLUMNS:
                return found[0]
    return None


def place(page: Page) -> str:
    """Where its file lies in the site."""
    return f"{page.drawn.within}points/{page.name}.html"


def frame(page: Page) -> str:
    """The section of a page around the file."""
    title = "t-SNE of features; each point tells its class and shows its image"
    return (
        "Point at a dot for its class and, where the images were on the machine, for its image.\n\n"
        f'<iframe src="{page.up}{place(page)}" title="{title}" style="width: 100%; height: 400px; border: 0"></iframe>'
    )


def file(table: Any) -> str:
    """One HTML file that asks for nothing outside itself."""
    import altair as alt

    rows = table.assign(
        model=[MODEL_STYLE[model].label if model in MODEL_STYLE else model for model in table["model"]],
        image=[f"data:image/png;base64,{text}" if isinstance(text, str) else None for text in table["image"]],
        kind=["minority" if minority else "majority" for minority in table["minority"]],
    )
    told = "merge({title: datum.name}, {class: datum.name, kind: datum.kind}, datum.image ? {image: datum.image} : {})"
    shapes = alt.Scale(domain=["majority", "minority"], range=["circle", "cross"])
    models = list(dict.fromkeys(rows["model"]))
    empty = alt.Axis(labels=False, ticks=False, grid=False, title=None, domain=False)
    chart = (
        alt.Chart(alt.InlineData(rows.to_dict("records")))
        .mark_point(filled=True, size=40)
        .encode(
            alt.X("x:Q", axis=empty),
            alt.Y("y:Q", axis=empty),
            alt.Color("name:N", title="class", sort=list(dict.fromkeys(rows["name"].astype(str)))),
            alt.Shape("kind:N", title=None, scale=shapes),
            tooltip=alt.value(alt.expr(told)),
        )
        .properties(width=330, height=300)
        .facet(alt.Facet("model:N", title=None, sort=models, header=alt.Header(labelFontSize=14)), columns=2)
        .resolve_scale(x="independent", y="independent")
        .configure_view(stroke=None)
    )
    return stand_alone(chart, _HEAD)
