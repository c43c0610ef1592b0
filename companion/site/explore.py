"""The page Explore: curves of all tracked runs over the epochs, with menus, drawn by Vega-Lite in the browser."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from companion.neural_collapse.collapse_tables import ROWS
from nclib.config import RunConfig
from nclib.engine.outline import images_of, scale_of
from nclib.engine.reference import reference_store
from nclib.publish.plotting.style import MODEL_STYLE

METRICS = {ROWS[name].metric: ROWS[name].label for name in ("nc3c", "nc2c", "eq14", "eq13", "nc1", "trace")} | {
    "accuracy_balanced": "accuracy over classes (%)",
    "accuracy_majority": "accuracy of majority classes (%)",
    "accuracy_minority": "accuracy of minority classes (%)",
    "loss": "loss",
}
"""What can be chosen, in the order of the menu."""

OPENS_AT = {"setting": "K_A = 5, R = 100", "metric": "NC3, centred"}
"""The paper's question."""

FILE = "explore.js"
PAGE = """\
# Explore the curves

Every tracked run of Sun & Shi's experiments over the epochs of training. A line is a mean over seeds; a band reaches
from the lowest seed to the highest. Point at a line for its value, its 95 % interval and its seeds.
[How to read the numbers](book/reading.md) explains metrics and scales.

<div id="explore-menus"></div>
<div id="explore-chart"></div>
<script src="_static/explore.js"></script>
"""

_GIVEN = ("kind", "seed", "train.log_every", "data.dataset", "data.n_max", "data.test_per_class", "model.kind")
_SETTING = ("data.imbalance", "data.num_majority", "data.ratio")


def script() -> str:
    """The script of the page: Vega-Lite, the curves, and what draws them."""
    import vl_convert

    rows = curves().to_dict("records")
    colours = {style.label: style.colour for style in MODEL_STYLE.values()}
    values = json.dumps({"rows": rows, "colours": colours, "opensAt": OPENS_AT, "metrics": list(METRICS.values())})
    return f"(() => {{\n{vl_convert.javascript_bundle()}\nconst explore = {values};\n{_SCRIPT}}})();\n"


def curves() -> pd.DataFrame:
    """One row for each curve: the menus' words, and lists over the epochs."""
    store = reference_store()
    runs = [run for run in map(store.load, store.ids()) if run.config["kind"] == "classifier"]
    usual = _usual([run.config for run in runs])
    frames = []
    for run in runs:
        rows = run.history[run.history["metric"].isin(METRICS) & run.history["split"].isin(["train", "test"])]
        frames.append(rows[["metric", "split", "epoch", "value"]].assign(**_words(run.config, usual)))
    frame = pd.concat(frames, ignore_index=True).dropna(subset="value")
    frame["value"] *= frame["metric"].str.startswith("accuracy").map({True: 100, False: 1})
    frame["metric"] = frame["metric"].map(METRICS)
    menus = ["images", "setting", "training", "metric", "split", "model"]
    return _over_seeds(frame, menus).groupby(menus, sort=False).agg(list).reset_index()


def _over_seeds(frame: pd.DataFrame, menus: list[str]) -> pd.DataFrame:
    """Mean, 95 % t-interval, lowest and highest seed at each epoch, and the seeds."""
    from scipy.stats import t

    grouped = frame.sort_values("seed").groupby([*menus, "epoch"], sort=False)
    found = grouped["value"].agg(["mean", "sem", "count", "min", "max"])
    half = t.ppf(0.975, found["count"] - 1) * found["sem"]
    found = found.assign(low=found["mean"] - half, high=found["mean"] + half)
    told = found[["mean", "min", "max", "low", "high"]].map(lambda value: float(f"{value:.4g}")).astype(object)
    told = told.where(told.notna(), None)  # a single seed has no interval
    return told.assign(seeds=grouped["seed"].agg(lambda seeds: ", ".join(map(str, seeds)))).reset_index()


def _options(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The options of a run by dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        within = isinstance(value, Mapping)
        found |= _options(value, f"{before}{name}.") if within else {f"{before}{name}": value}
    return {name: value for name, value in found.items() if value is not None}


def _family(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return config["data"]["dataset"], config["data"]["n_max"], config["model"]["kind"]


def _usual(configs: list[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """For each data set and model the value that most of its runs have, by option."""
    counted: dict[tuple[Any, ...], Counter[Any]] = {}
    for config in configs:
        counted.setdefault(_family(config), Counter()).update(_options(config).items())
    return {family: dict(pair for pair, _ in reversed(counter.most_common())) for family, counter in counted.items()}


def _words(config: Mapping[str, Any], usual: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> dict[str, Any]:
    """What the menus say of a run. Two runs with the same words differ in nothing but their seed."""
    parsed = RunConfig.from_json(json.dumps(config))
    options, expected = _options(config), usual[_family(config)]
    unusual = [
        f"{name.partition('.')[2]} = {options.get(name, 'none')}"
        for name in sorted({*options, *expected} - {*_GIVEN, *_SETTING})
        if options.get(name) != expected.get(name)
    ]
    kind = config["model"]["kind"]
    return {
        "images": f"{images_of(parsed)} ({scale_of([parsed])})",
        "setting": _setting(config["data"]),
        "training": ", ".join(unusual) or "as usual",
        "model": MODEL_STYLE[kind].label if kind in MODEL_STYLE else kind,
        "seed": config["seed"],
    }


def _setting(data: Mapping[str, Any]) -> str:
    if data["imbalance"] == "balanced":
        return "balanced"
    head = f"K_A = {data['num_majority']}" if data["num_majority"] else "long tail"
    return f"{head}, R = {data['ratio']:g}"


_SCRIPT = """
const choice = {};
const names = {images: "images", setting: "setting", training: "training", metric: "metric", split: "measured on"};
const places = ["CIFAR-10, all", "1,000", "250", "digits", "pairs"];  // the largest evidence first
const order = {
  images: text => places.findIndex(part => text.includes(part)),
  setting: text => text === "balanced" ? 0 : Number(text.match(/\\d+/g).map(n => n.padStart(3, "0")).join("")),
  training: text => text === "as usual" ? 0 : 1,
  metric: text => explore.metrics.indexOf(text),
  split: text => text === "train" ? 0 : 1,
};
function menus() {
  let rows = explore.rows;
  document.getElementById("explore-menus").replaceChildren(...Object.keys(names).map(name => {
    const values = [...new Set(rows.map(row => row[name]))].sort((a, b) => order[name](a) - order[name](b));
    if (!values.includes(choice[name]))
      choice[name] = values.includes(explore.opensAt[name]) ? explore.opensAt[name] : values[0];
    rows = rows.filter(row => row[name] === choice[name]);
    const label = document.createElement("label"), select = document.createElement("select");
    select.id = `explore-${name}`;
    select.append(...values.map(value => new Option(value, value, false, value === choice[name])));
    select.onchange = () => { choice[name] = select.value; draw(menus()); };
    label.append(names[name], " ", select);
    label.hidden = values.length < 2;
    return label;
  }));
  return rows;
}
function draw(rows) {
  const points = rows.flatMap(row => row.epoch.map((epoch, i) => ({
    model: row.model, epoch, mean: row.mean[i], min: row.min[i], max: row.max[i], seeds: row.seeds[i],
    interval: row.low[i] === null ? "one seed" : `${row.low[i].toPrecision(3)} to ${row.high[i].toPrecision(3)}`,
  })));
  const lows = points.map(point => point.min), highs = points.map(point => point.max);
  const far = !choice.metric.includes("%") && Math.min(...lows) > 0 && Math.max(...highs) > 20 * Math.min(...lows);
  const scale = {type: far ? "log" : "linear", zero: false};
  const y = (field, title) => ({field, type: "quantitative", title, scale});
  const models = Object.keys(explore.colours).filter(model => points.some(point => point.model === model));
  vegaEmbed("#explore-chart", {
    width: "container", height: 380, background: "transparent", data: {values: points},
    encoding: {
      x: {field: "epoch", type: "quantitative", title: "epoch", axis: {tickMinStep: 1}},
      color: {
        field: "model", title: null, legend: {orient: "top", columns: 2, labelFontSize: 13, symbolOpacity: 1},
        scale: {domain: models, range: models.map(model => explore.colours[model])},
      },
    },
    layer: [
      {mark: {type: "area", opacity: 0.2}, encoding: {y: y("min"), y2: {field: "max"}}},
      {mark: {type: "line", strokeWidth: 2.5, point: {size: 40}}, encoding: {
        y: y("mean", `${choice.metric}, ${choice.split === "train" ? "training" : "test"} images`),
        tooltip: [{field: "model"}, {field: "epoch"}, {field: "mean"}, {field: "interval", title: "95 % interval"},
                  {field: "seeds"}],
      }},
    ],
    config: {
      axis: {labelColor: "currentColor", titleColor: "currentColor", gridColor: "#8885", tickColor: "#888",
             domainColor: "#888", labelFontSize: 12, titleFontSize: 13},
      legend: {labelColor: "currentColor"}, view: {stroke: null},
    },
  }, {renderer: "svg", actions: false});
}
draw(menus());
"""
