"""The page Explore: curves of all tracked runs over the epochs, with menus, drawn by Vega-Lite in the browser."""

import json
from typing import Any

import pandas as pd

from companion.neural_collapse.collapse_tables import COLLAPSE_LABELS
from nclib.config import DataConfig, RunConfig
from nclib.engine.outline import images_of, scale_of
from nclib.engine.reference import reference_store
from nclib.publish.plotting.style import MODEL_STYLE

MENU = dict(reversed(COLLAPSE_LABELS.items())) | {
    "accuracy_balanced": "accuracy over classes (%)",
    "accuracy_majority": "accuracy of majority classes (%)",
    "accuracy_minority": "accuracy of minority classes (%)",
    "loss": "loss",
}
"""What can be chosen, in the order of the menu."""

SPLITS = {"train": ", training images", "test": ", test images"}
OPENS_AT = {"setting": "K_A = 5, R = 100", "metric": "NC3, centred, training images"}
"""The paper's question."""

FILE = "explore.js"
PAGE = """\
# Explore the curves

Every tracked run of Sun & Shi's experiments over the epochs of training. A line is a mean over seeds; a band reaches
from the lowest seed to the highest. Point at a line for its value, its 95 % interval and its seeds.
[How to read the numbers](docs/method.md) explains metrics and scales.

<div id="explore-menus"></div>
<div id="explore-chart"></div>
<script src="_static/explore.js"></script>
"""

_GIVEN = ("kind", "seed", "train.log_every", "data.dataset", "data.n_max", "data.test_per_class", "model.kind")
_GIVEN += ("data.imbalance", "data.num_majority", "data.ratio")
"""Options that other menus say, or nobody needs."""


def script() -> str:
    """The script of the page: Vega-Lite, the curves, and what draws them."""
    import vl_convert

    rows, metrics = curves().to_dict("records"), [name + split for name in MENU.values() for split in SPLITS.values()]
    colours = {style.label: style.colour for style in MODEL_STYLE.values()}
    values = json.dumps({"rows": rows, "colours": colours, "opensAt": OPENS_AT, "metrics": metrics})
    return f"(() => {{\n{vl_convert.javascript_bundle()}\nconst explore = {values};\n{_SCRIPT}}})();\n"


def curves() -> pd.DataFrame:
    """One row for each curve: the menus' words, and lists over the epochs."""
    store = reference_store()
    runs = [run for run in map(store.open, store.ids()) if run.config["kind"] == "classifier"]
    frames = []
    for run, words in zip(runs, said([run.config for run in runs]).to_dict("records"), strict=True):
        rows = run.history[run.history["metric"].isin(MENU) & run.history["split"].isin(["train", "test"])]
        frames.append(rows[["metric", "split", "epoch", "value"]].assign(**words))
    frame = pd.concat(frames, ignore_index=True).dropna(subset="value")
    frame["value"] *= frame["metric"].str.startswith("accuracy").map({True: 100, False: 1})
    frame["metric"] = frame["metric"].map(MENU) + frame["split"].map(SPLITS)
    menus = ["images", "setting", "training", "metric", "model"]
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


def said(configs: list[dict[str, Any]]) -> pd.DataFrame:
    """What the menus say of each run. Two runs with the same words differ in nothing but their seed."""
    options = pd.json_normalize(configs).map(_text)
    told = options.drop(columns=list(_GIVEN), errors="ignore")
    family = [options[name] for name in ("data.dataset", "data.n_max", "model.kind")]
    unusual = told.ne(told.groupby(family).transform(lambda column: column.mode()[0]))
    parsed = [RunConfig(**config) for config in configs]
    kinds = [config.model.kind for config in parsed]
    return pd.DataFrame(
        {
            "images": [f"{images_of(config)} ({scale_of([config])})" for config in parsed],
            "setting": [_setting(config.data) for config in parsed],
            "training": [
                ", ".join(f"{name.partition('.')[2]} = {row[name]}" for name in sorted(told.columns[differs]))
                or "as usual"
                for (_, row), differs in zip(told.iterrows(), unusual.to_numpy(), strict=True)
            ],
            "model": [MODEL_STYLE[kind].label if kind in MODEL_STYLE else kind for kind in kinds],
            "seed": [config.seed for config in parsed],
        }
    )


def _text(value: Any) -> str:
    if value is None or value != value:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _setting(images: DataConfig) -> str:
    if images.imbalance == "balanced":
        return "balanced"
    head = f"K_A = {images.num_majority}" if images.num_majority else "long tail"
    return f"{head}, R = {images.ratio:g}"


_SCRIPT = """
const choice = {};
const names = {images: "images", setting: "setting", training: "training", metric: "metric"};
const places = ["CIFAR-10, all", "1,000", "250", "digits", "pairs"];  // the largest evidence first
const order = {
  images: text => places.findIndex(part => text.includes(part)),
  setting: text => text === "balanced" ? 0 : Number(text.match(/\\d+/g).map(n => n.padStart(3, "0")).join("")),
  training: text => text === "as usual" ? 0 : 1,
  metric: text => explore.metrics.indexOf(text),
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
        y: y("mean", choice.metric),
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
