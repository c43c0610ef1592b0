"""The page Explore: the curves of all tracked runs in one HTML file that needs no kernel and no network.

Altair describes the chart, vl-convert adds the script that draws it, and the page holds the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from companion.site.fragments import stand_alone
from nclib.publish.plots.style import MODEL_STYLE


class Shown(NamedTuple):
    """A metric as the page shows it."""

    label: str
    percent: bool = False


METRICS = {
    "accuracy_balanced": Shown("accuracy, mean over classes (%)", percent=True),
    "accuracy_majority": Shown("accuracy, majority classes (%)", percent=True),
    "accuracy_minority": Shown("accuracy, minority classes (%)", percent=True),
    "loss": Shown("loss"),
    "nc1_trace_ratio": Shown("NC1 trace ratio"),
    "nc1_pinv": Shown("NC1 of the paper, eq. 12"),
    "nc2_etf_distance": Shown("NC2 distance to the ETF, centred means"),
    "paper_eq13_uncentred": Shown("NC2 of the paper, eq. 13"),
    "nc2_equinorm": Shown("NC2 spread of the norms of the means"),
    "nc2_equiangular": Shown("NC2 spread of the angles between the means"),
    "nc3_self_duality": Shown("NC3 distance of classifier and centred means"),
    "paper_eq14_uncentred": Shown("NC3 of the paper, eq. 14"),
    "nc4_ncc_mismatch": Shown("NC4 images whose nearest mean is of another class"),
    "feature_norm": Shown("mean feature norm"),
    "start_distance": Shown("distance of the equilibrium from its start"),
    "solver_steps": Shown("evaluations of the cell per solve"),
    "minority_cosine": Shown("cosine between classifier rows of minority classes"),
}
"""What can be chosen, in the order of the menu."""

_VARIANTS = {  # what sets a run apart from the plain one of its model: key, plain values -> words
    "model.head": {"etf": "ETF classifier", "cosine": "cosine classifier"},
    "model.cell": {"mdeq": "MDEQ cell"},
    "model.feature_norm": {"batchnorm": "BatchNorm before the classifier"},
    "train.loss": {
        "ldam_drw": "LDAM-DRW loss",
        "class_balanced": "class-balanced loss",
        "balanced_softmax": "balanced softmax",
    },
    "train.schedule": {"constant": "learning rate 1e-4, constant"},
    "train.optimiser": {"adam": "Adam", "adamw": "AdamW"},
}

_COLOURS = ("#949494", "#de8f05", "#56b4e9", "#fbafe4", "#ece133")  # those that no model has
_STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]  # 97.5 % points, 1 to 9 degrees of freedom


def _at(config: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) or {} if isinstance(config, Mapping) else {}
    return config or None


def variant(config: Mapping[str, Any]) -> str:
    """Model and what sets it apart, in words."""
    kind = config["model"]["kind"]
    said = [MODEL_STYLE[kind].label if kind in MODEL_STYLE else kind]
    said += [words[value] for key, words in _VARIANTS.items() if (value := _at(config, key)) in words]
    return ", ".join(said)


def setting(config: Mapping[str, Any], scale: str) -> str:
    """Data, class sizes and scale of the evidence, in words."""
    data = config["data"]
    name = {"digits": "digits", "digit_pairs": "pairs of digits"}.get(data["dataset"], "CIFAR-10")
    if name == "CIFAR-10":
        name += f", {data['n_max']:,} images a class" if data["n_max"] else ", all images"
    head = f"{name} ({scale}) · "
    if data["imbalance"] == "balanced":
        return head + "balanced"
    ratio = f"R = {data['ratio']:g}"
    if data["imbalance"] == "exponential":
        return f"{head}exponential, {ratio}"
    return f"{head}K_A = {data['num_majority']}, {ratio}" + ", majority drawn" * (data["majority"] == "random")


def records(runs: Iterable[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the page holds: one record a run, and one a curve with its epochs and values.

    Parameters
    ----------
    runs : stored runs; those that are no classifiers are left out.
    """
    from nclib.engine.kinds import read_config
    from nclib.engine.outline import scale_of

    facts: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for run in runs:
        if run.config["kind"] != "classifier" or "<" in run.run_id:
            continue
        group = setting(run.config, scale_of([read_config(json.dumps(run.config))]))
        number = len(facts)
        facts.append({"i": number, "run": run.run_id, "g": group, "v": variant(run.config), "s": run.config["seed"]})
        rows = run.history[run.history["metric"].isin(METRICS) & run.history["split"].isin(["train", "test"])]
        for (metric, split), curve in rows.groupby(["metric", "split"], sort=False):
            curve = curve[np.isfinite(curve["value"])]
            values = curve["value"] * (100 if METRICS[metric].percent else 1)
            if len(curve):
                shown = [float(f"{value:.4g}") for value in values]
                lines.append({"i": number, "m": metric, "p": split, "e": curve["epoch"].tolist(), "y": shown})
    return facts, lines


def _order(group: str) -> tuple[int, str]:
    """The largest evidence first, balanced before imbalanced."""
    sizes = ("all images", "1,000 images", "250 images", "digits", "pairs")
    place = next((at for at, words in enumerate(sizes) if words in group), len(sizes))
    return place, group.replace("balanced", " balanced")


def _colours(variants: Iterable[str]) -> dict[str, str]:
    """Models keep the colours that they have in all figures; variants take the others in turn."""
    plain = {style.label: style.colour for style in MODEL_STYLE.values()}
    others = [name for name in sorted(variants) if name not in plain]
    return plain | {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(others)}


def chart(facts: list[dict[str, Any]], lines: list[dict[str, Any]]) -> Any:
    """The chart of these `records` with its menus, an Altair chart."""
    import altair as alt

    groups = sorted({fact["g"] for fact in facts}, key=_order)
    several = [group for group in groups if len({fact["v"] for fact in facts if fact["g"] == group}) > 1]
    first = (several or groups)[0]
    colours = _colours({fact["v"] for fact in facts})
    places = {name: at for at, name in enumerate(colours)}
    facts = [{**fact, "c": colours[fact["v"]], "o": places[fact["v"]]} for fact in facts]
    metrics = [name for name in METRICS if any(line["m"] == name for line in lines)]
    names = [METRICS[name].label for name in metrics]

    def menu(options: list[str], labels: list[str], title: str, value: str) -> Any:
        return alt.param(value=value, bind=alt.binding_select(options=options, labels=labels, name=f"{title} "))

    group, metric = menu(groups, groups, "setting", first), menu(metrics, names, "metric", "nc1_trace_ratio")
    split = alt.param(value="train", bind=alt.binding_radio(options=["train", "test"], name="images "))
    log = alt.param(value=True, bind=alt.binding_checkbox(name="logarithmic "))
    everything = [{"v": name} for name in sorted(colours)]
    chosen = alt.selection_point(fields=["v"], on="click", toggle="true", clear=False, value=everything)
    near = alt.selection_point(fields=["run"], on="pointerover", nearest=True, empty=False, clear="pointerout")

    height = alt.expr.if_(log, alt.expr.log(alt.datum.y) / alt.expr.log(10), alt.datum.y)
    label = f"{log.name} ? format(pow(10, datum.value), '.2~g') : datum.label"
    curves = (
        alt.Chart(alt.InlineData(lines))
        .transform_filter(f"datum.m === {metric.name} && datum.p === {split.name}")
        .transform_lookup("i", alt.LookupData(alt.InlineData(facts), "i", ["run", "g", "v", "s", "c"]))
        .transform_filter(f"datum.g === {group.name}")
        .transform_filter(chosen)
        .transform_flatten(["e", "y"], ["epoch", "y"])
        .transform_calculate(at=height)
        .transform_filter("isFinite(datum.at)")
    )
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1))
    y = alt.Y("at:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(labelExpr=label))
    colour = alt.Color("c:N", scale=None)
    over_seeds = curves.transform_aggregate(mean="mean(at)", sd="stdev(at)", n="count()", groupby=["epoch", "v", "c"])
    quantile = f"{json.dumps(_STUDENT)}[min(datum.n - 2, {len(_STUDENT) - 1})]"
    band = (
        over_seeds.transform_filter("datum.n > 1")
        .transform_calculate(half=f"{quantile} * datum.sd / sqrt(datum.n)")
        .transform_calculate(low="datum.mean - datum.half", high="datum.mean + datum.half")
        .mark_area(opacity=0.15, clip=True)
        .encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour, detail="v:N")
    )
    mean = over_seeds.mark_line(strokeWidth=2.5).encode(x, alt.Y("mean:Q"), colour, detail="v:N")
    seeds = curves.mark_line(strokeWidth=1).encode(
        x, y, colour, detail="run:N", opacity=alt.when(near).then(alt.value(1.0)).otherwise(alt.value(0.35))
    )
    pointed_at = alt.when(near).then(alt.value(1.0)).otherwise(alt.value(0.0))
    told = alt.value(alt.expr(_TOLD))
    points = curves.mark_point(filled=True, size=45).encode(x, y, colour, tooltip=told, opacity=pointed_at)
    points = points.add_params(near)
    main = (band + seeds + mean + points).properties(width=540, height=400)
    legend = (
        alt.Chart(alt.InlineData(facts))
        .transform_filter(f"datum.g === {group.name}")
        .transform_aggregate(seeds="count()", groupby=["v", "c", "o"])
        .transform_calculate(name="datum.v + ' (' + datum.seeds + (datum.seeds > 1 ? ' seeds)' : ' seed)')")
        .mark_square(size=160, cursor="pointer")
        .encode(
            alt.Y("name:N", title=None, sort=alt.SortField("o")).axis(
                orient="right", domain=False, ticks=False, labelLimit=330
            ),
            colour,
            opacity=alt.when(chosen).then(alt.value(1.0)).otherwise(alt.value(0.25)),
        )
        .add_params(chosen)
        .properties(width=16, title=alt.Title("click a variant away", anchor="start", fontWeight="normal"))
    )
    page = alt.hconcat(main, legend).add_params(group, metric, split, log)
    return page.configure_view(stroke=None).configure_axis(labelFontSize=12, titleFontSize=12, gridOpacity=0.4)


_TOLD = "{variant: ROW.v, seed: ROW.s, epoch: ROW.epoch, value: format(ROW.y, '.4~g'), run: ROW.run}".replace(
    "ROW", "(datum.datum || datum)"
)
"""What a point tells, as an expression: Vega-Lite's own says "undefined" for texts where the nearest point is told."""

_HEAD = """<meta charset="UTF-8"><title>Explore the curves</title><style>
  body { font: 15px system-ui, sans-serif; margin: 0; background: #fff; color: #222 }
  #vis.vega-embed { display: flex; flex-direction: column; width: 100% }
  .vega-bindings { order: -1; display: flex; flex-wrap: wrap; gap: 6px 20px; padding: 8px 4px 14px }
  .vega-bindings select { font: inherit; max-width: 420px }
</style>"""
"""The menus stand above the chart, side by side."""


FILE = "curves.html"
TEXT = f"""\
# Explore the curves

All tracked runs of Sun & Shi's experiments, over the epochs. Choose a setting and a metric; point at a line for its
run; click a variant away. Thick lines are means over seeds and thin lines single seeds. Bands are 95 % t-intervals over
seeds, of the logarithms where the axis is logarithmic. [How to read the numbers](book/reading.md) explains the metrics
and the scales, toy and reduced.

<iframe src="{FILE}" title="Curves of all tracked runs, with menus for setting and metric"
style="width: 100%; height: 660px; border: 0"></iframe>
"""
"""The page of the site around the file."""


def page(runs: Iterable[Any]) -> str | None:
    """One HTML file that asks for nothing outside itself; None where no run is a classifier."""
    facts, lines = records(runs)
    if not facts:
        return None
    return stand_alone(chart(facts, lines), _HEAD)
