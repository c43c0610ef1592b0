"""The panels of the laboratory beside the train panel: runs side by side, one image, three classes, solvers in the
plane.

A panel is the value of a cell of ``notebooks/explore.ipynb``. Its controls work as soon as it is shown; what it draws
is also its static picture, for places without a kernel. Below the controls it says what to type to get the same.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd
from PIL import Image

from companion.laboratory import compute, figures
from companion.laboratory.background import history_so_far
from companion.laboratory.base import LABEL, Panel, beside, choice_field, heading, read_number, row, slider, text_field
from companion.laboratory.train_panel import TrainPanel
from nclib.config import ConfigError, RunConfig, run_id
from nclib.engine.experiments import experiment
from nclib.engine.reading import dotted, identity_columns
from nclib.engine.reference import load_run, reference_store
from nclib.engine.store import default_store
from nclib.publish.plotting import METHOD_STYLE, MODEL_STYLE
from nclib.solver import Status

# --- lists of runs -------------------------------------------------------------------------------------------


def known_runs() -> dict[str, dict[str, Any]]:
    """Plain configurations of all classifier runs of the run store and the reference results, by id and in the
    order of their labels."""
    store, reference = default_store(), reference_store()
    found = {run: reference.config(run) for run in reference.ids()}
    found |= {run: config for run, config, _ in store.records()}
    classifiers = {run: config for run, config in found.items() if config["kind"] == "classifier"}
    return dict(sorted(classifiers.items(), key=lambda item: run_label(*item)))


_EXTRAS = {
    "model.cell": "residual",
    "model.head": "linear",
    "model.feature_norm": "none",
    "model.start": "x",
    "model.solver.method": "broyden",
    "model.solver.tol": 1e-3,
    "train.loss": "cross_entropy",
    "data.subset_seed": None,
}
"""Named in the label of a run where they are not this."""


def run_label(run: str, config: Mapping[str, Any]) -> str:
    """A run in a line: data set, arm, imbalance, what is unusual, epochs, seed, and the end of its id."""
    facts, data = identity_columns(config), config["data"]
    style = MODEL_STYLE.get(facts["model"])
    shape = {"balanced": "balanced", "step": f"K_A={facts['K_A']} R={facts['R']:g}"}
    parts = [
        facts["dataset"],
        style.label if style else str(dotted(config, "model.network")),
        shape.get(data["imbalance"], f"exponential R={facts['R']:g}"),
    ]
    for key, usual in _EXTRAS.items():
        value = dotted(config, key)
        if value is not None and value != usual:
            parts.append(f"{key.split('.')[-1]} {value}")
    if data["majority"] == "random" and facts["dataset"] != "digit_pairs":
        parts.append("random majority")
    parts += [f"width {config['model']['width']}", f"{config['train']['epochs']} epochs", f"seed={facts['seed']}"]
    return ", ".join(parts) + f" [{run[-6:]}]"


_LISTED = 60


class OverlayPanel(Panel):
    """Tick runs, stored or among the reference results, and compare their curves and final values.

    Parameters
    ----------
    training : the panel whose run, also one under way, can be ticked too
    profile : whose pair of explicit network and DEQ at K_A = 3, R = 10 is ticked at first, where there is one
    """

    def __init__(self, training: TrainPanel | None = None, profile: str = "quick") -> None:
        super().__init__()
        self._training = training
        self.filter = widgets.Text(
            placeholder="words that must occur, such as: digits R=10 seed=0", continuous_update=True,
            layout=widgets.Layout(width="420px"),
        )  # fmt: skip
        self.refresh = widgets.Button(description="Look again", icon="refresh", layout=widgets.Layout(width="120px"))
        self.clear = widgets.Button(description="Untick all", layout=widgets.Layout(width="110px"))
        self.live = widgets.Checkbox(
            value=False, description="the run of the train panel, live", indent=False, disabled=training is None
        )
        self.ticks: dict[str, widgets.Checkbox] = {}
        self._known = known_runs()
        self.list = widgets.VBox(
            layout=widgets.Layout(max_height="210px", overflow="auto", border="1px solid #ddd", padding="4px")
        )
        self.count = widgets.HTML()
        self.metrics = widgets.SelectMultiple(
            options=list(figures.METRICS), rows=11, layout=widgets.Layout(width="230px"),
            value=("accuracy, test", "minority accuracy", "loss, train",
                   "NC1, trace ratio", "NC2, centred", "NC3, centred"),
        )  # fmt: skip
        self.table = widgets.HTML()
        self._tick_first(profile)
        left = widgets.VBox(
            [row(self.filter, self.refresh, self.clear), self.live, self.list, self.count],
            layout=widgets.Layout(flex="1 1 560px", min_width="0"),
        )
        right = widgets.VBox([heading("Quantities (Ctrl-click for several)"), self.metrics])
        self.box.children = (
            widgets.HBox([left, right], layout=widgets.Layout(grid_gap="0 16px", flex_flow="row wrap")),
            self.message, self.image, self.table, self.command,
        )  # fmt: skip
        self._when(self.filter, self._list)
        self._when(self.metrics, self._compare)
        self._when(self.live, self._compare)
        self._when(self.refresh, self._look_again)
        self._when(self.clear, self._untick)
        if training is not None:
            training.watch(self._after_epoch)
        self._look_again()

    def _tick_first(self, profile: str) -> None:
        for run in map(run_id, experiment("fig2", profile)[:2]):
            if run in self._known:
                self._tick_box(run, self._known[run], ticked=True)

    def _tick_box(self, run: str, config: Mapping[str, Any], ticked: bool = False) -> widgets.Checkbox:
        if run not in self.ticks:
            label = run_label(run, config)
            self.ticks[run] = widgets.Checkbox(
                value=ticked,
                description=label,
                tooltip=run,
                indent=False,
                layout=widgets.Layout(width="98%", height="22px"),
            )
            self._when(self.ticks[run], self._compare)
        return self.ticks[run]

    def ticked(self) -> list[str]:
        """Ids of the ticked runs."""
        return [run for run, tick in self.ticks.items() if tick.value]

    def _look_again(self) -> None:
        self._known = known_runs()
        self._list()
        self._compare()

    def _list(self) -> None:
        words = self.filter.value.lower().split()
        chosen = self.ticked()
        found = [
            run for run, config in self._known.items()
            if run not in chosen and all(word in f"{run_label(run, config)} {run}".lower() for word in words)
        ]  # fmt: skip
        shown = [*(run for run in chosen if run in self._known), *found[:_LISTED]]
        self.list.children = [self._tick_box(run, self._known[run]) for run in shown]
        more = len(found) - _LISTED
        text = f"{len(self._known)} runs" + (f"; {more} more fit: type another word" if more > 0 else "")
        self.count.value = f'<span style="color:#555">{text}</span>'

    def _untick(self) -> None:
        with self._silently():
            for tick in self.ticks.values():
                tick.value = False
        self._compare()

    def _after_epoch(self) -> None:
        if self._training.training is not None and self._training.training.run not in self._known:
            self._known = known_runs()
            self._list()
        if self.live.value:
            self._compare()

    def _histories(self) -> dict[str, pd.DataFrame]:
        runs = self.ticked()
        found = {run_label(run, self._known[run]): load_run(run).history for run in runs if run in self._known}
        training = self._training.training if self._training is not None and self.live.value else None
        if training is not None:
            sofar = history_so_far(training.run)
            if sofar is not None and sofar.source != "reference":
                found[f"live: {run_label(training.run, training.config.canonical())}"] = sofar.history
        return found

    def _compare(self) -> None:
        self._attempt(self._compare_now)

    def _compare_now(self) -> None:
        histories = self._histories()
        metrics = list(self.metrics.value)
        if not metrics:
            raise ConfigError("choose at least one quantity at the right")
        names = ", ".join(metrics)
        alt = f"Curves of {len(histories)} runs against the epoch: {names}."
        self._draw(lambda: figures.overlay(histories, metrics), alt)
        final = {
            label: {name: _last(history, *figures.METRICS[name][:2]) for name in metrics}
            for label, history in histories.items()
        }
        frame = pd.DataFrame(final, dtype=float).T
        self.table.value = frame.to_html(float_format="{:.4g}".format, na_rep="–", border=0) if len(frame) else ""
        lines = [f"nclib runs show {run}" for run in self.ticked()]
        self._say_command("\n".join(lines or ["# tick a run: its line stands here"]))


def _last(history: pd.DataFrame, split: str, metric: str) -> float:
    values = figures.values_of(history, split, metric)
    return float(values.iloc[-1]) if len(values) else np.nan


# --- one image -----------------------------------------------------------------------------------------------

_THUMBS = 14
_panel_numbers = itertools.count()


class TracePanel(Panel):
    """Click an image: how each solver finds its equilibrium in a trained network.

    Parameters
    ----------
    training : the panel whose runs join the list when they are done
    """

    def __init__(self, training: TrainPanel | None = None) -> None:
        super().__init__()
        self._name = f"nclib-thumb-{next(_panel_numbers)}"
        self.run = choice_field("network", "stored DEQ runs", _deq_runs(), None)
        self.run.value = self.run.options[0][1]
        self.run.layout.width = "640px"
        self.index = widgets.BoundedIntText(
            0, min=0, max=0, description="test image", style=LABEL, layout=widgets.Layout(width="200px")
        )
        self.thumbs = [widgets.Button(layout=widgets.Layout(width="56px", height="56px")) for _ in range(_THUMBS)]
        for number, thumb in enumerate(self.thumbs):
            thumb.add_class(f"{self._name}-{number}")
            self._when(thumb, functools.partial(self._click, number))
        self.style = widgets.HTML()
        self.earlier, self.later = (
            widgets.Button(icon=icon, tooltip=tip, layout=widgets.Layout(width="36px", height="56px"))
            for icon, tip in (("chevron-left", "images before"), ("chevron-right", "images after"))
        )
        self.methods = _method_boxes()
        self.tol = text_field("tolerance", "relative residual", "1e-5")
        self.max_steps = text_field("evaluations", "most evaluations of the cell", "40")
        self.refresh = widgets.Button(description="Look again", icon="refresh", layout=widgets.Layout(width="120px"))
        self.box.children = (
            row(self.run, self.refresh),
            row(self.earlier, *self.thumbs, self.later, grid_gap="0 2px"),
            row(self.index, self.tol, self.max_steps),
            row(beside("methods"), *self.methods.values()),
            self.message, self.image, self.command, self.style,
        )  # fmt: skip
        self._when(self.run, functools.partial(self._attempt, self._open))
        for widget in (self.index, self.tol, self.max_steps, *self.methods.values()):
            self._when(widget, functools.partial(self._attempt, self._solve))
        self._when(self.earlier, functools.partial(self._turn, -_THUMBS))
        self._when(self.later, functools.partial(self._turn, _THUMBS))
        self._when(self.refresh, self._look_again)
        if training is not None:
            training.watch(self._look_again)
        self._attempt(self._open)

    def _look_again(self) -> None:
        options, chosen = _deq_runs(), self.run.value
        if list(self.run.options) != options:
            with self.run.hold_trait_notifications():
                self.run.options = options
                self.run.value = chosen if chosen in [value for _, value in options] else options[0][1]

    def _network(self) -> str | RunConfig:
        return self.run.value or _untrained()

    def _open(self) -> None:
        _, _, self._split = compute.open_network(self._network())
        self.index.max = len(self._split.test_labels) - 1
        self._solve()

    def _turn(self, by: int) -> None:
        self.index.value = min(max(self.index.value + by, 0), self.index.max)

    def _click(self, number: int) -> None:
        self.index.value = min(self._page() + number, self.index.max)

    def _page(self) -> int:
        return self.index.value // _THUMBS * _THUMBS

    def _show_thumbs(self) -> None:
        rules = []
        names = self._split.class_names
        for number, thumb in enumerate(self.thumbs):
            place = self._page() + number
            thumb.disabled = place > self.index.max
            if thumb.disabled:
                rules.append(f".{self._name}-{number} {{visibility: hidden}}")
                continue
            label = names[int(self._split.test_labels[place])]
            thumb.tooltip = f"test image {place}, class {label}"
            edge = "3px solid #d55e00" if place == self.index.value else "1px solid #aaa"
            rules.append(
                f".{self._name}-{number} {{background: url({_data_address(self._split.test_images[place].numpy())}) "
                f"center / cover no-repeat !important; image-rendering: pixelated; border: {edge} !important}}"
            )
        self.style.value = f"<style>{' '.join(rules)}</style>"

    def _solve(self) -> None:
        self._show_thumbs()
        chosen = [name for name, box in self.methods.items() if box.value]
        if not chosen:
            raise ConfigError("tick at least one method")
        tol, max_steps = read_number(self.tol.value), read_number(self.max_steps.value)
        solvers = {name: compute.solver_methods(tol, max_steps)[name] for name in chosen}
        image = self.index.value
        found = compute.image_traces(self._network(), image, solvers)
        labels = {name: _told(name, found.solutions[name]) for name in chosen}
        guesses = {found.class_names[k] for k in found.predicted.values()}
        caption = f"class {found.class_names[found.label]}, predicted {' or '.join(sorted(guesses))}"
        traces = {name: solution.trace[:, 0].numpy() for name, solution in found.solutions.items()}
        alt = f"Test image {image}, {caption}; residual against evaluations: {'; '.join(labels.values())}."
        self._draw(lambda: figures.image_solution(found.image, caption, traces, tol, labels), alt)
        run = f'"{self.run.value}"' if self.run.value else 'nc.experiment("fig2", "smoke")[1]  # untrained'
        self._say_command(
            f"import nclib as nc\nrun = {run}\n"
            f"found = nc.laboratory.image_traces(run, {image}, nc.laboratory.solver_methods({tol!r}, {max_steps}))\n"
            f"{{name: solution.trace[:, 0] for name, solution in found.solutions.items()}}"
        )


def _untrained() -> RunConfig:
    return experiment("fig2", "smoke")[1]


def _deq_runs() -> list[tuple[str, str]]:
    """Stored DEQ runs, the newest first, with their labels; last an untrained network, named ""."""
    found = [
        (run_label(run, config), run) for run, config, _ in default_store().records()
        if dotted(config, "model.kind") == "deq" and config["kind"] == "classifier"
    ]  # fmt: skip
    return [*reversed(found), ("an untrained DEQ of smoke size (train one above to see it here)", "")]


def _method_boxes() -> dict[str, widgets.Checkbox]:
    return {
        name: widgets.Checkbox(
            value=True, description=METHOD_STYLE[name].label, indent=False, layout=widgets.Layout(width="130px")
        )
        for name in ("fixed_point", "anderson", "broyden")
    }


def _told(method: str, solution: Any) -> str:
    """A method's line in the legend: how it ended."""
    status = {Status.CONVERGED: "converged after", Status.MAX_STEPS: "stopped at", Status.DIVERGED: "diverged after"}
    return f"{METHOD_STYLE[method].label}: {status[Status(int(solution.status))]} {int(solution.steps)}"


def _data_address(image: np.ndarray) -> str:
    """An image (C, H, W) uint8 as a data: address."""
    pixels = image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# --- three classes -------------------------------------------------------------------------------------------

_DOTS = 300  # features drawn of each class


class SimplexPanel(Panel):
    """Three classes of a trained network as a triangle in space, which the sliders turn."""

    def __init__(self, profile: str = "quick") -> None:
        super().__init__()
        runs = _runs_with_features()
        preferred = run_id(experiment("fig2", profile)[1])
        self.run = choice_field("run", "stored runs and reference results with features", runs, None)
        if runs:
            self.run.value = preferred if preferred in dict(map(reversed, runs)) else runs[0][1]
        self.run.layout.width = "640px"
        self.classes = [choice_field("classes" if k == 0 else "", "", [], None) for k in range(3)]
        for k, field in enumerate(self.classes):
            field.layout.width = "220px" if k == 0 else "100px"
            field.style.description_width = "118px" if k == 0 else "0px"
        self.azimuth = slider("turn", 40, -180, 180, 1)
        self.elevation = slider("tilt", 35, -90, 90, 1)
        self.facts = widgets.HTML()
        self.refresh = widgets.Button(description="Look again", icon="refresh", layout=widgets.Layout(width="120px"))
        self.box.children = (
            row(self.run, self.refresh), row(*self.classes), row(self.azimuth, self.elevation),
            self.message, self.facts, self.image, self.command,
        )  # fmt: skip
        self._when(self.run, functools.partial(self._attempt, self._open))
        self._when(self.refresh, self._look_again)
        for widget in (*self.classes, self.azimuth, self.elevation):
            self._when(widget, functools.partial(self._attempt, self._turn))
        self._attempt(self._open)

    def _look_again(self) -> None:
        chosen, options = self.run.value, _runs_with_features()
        with self._silently():
            self.run.options = options
            self.run.value = chosen if chosen in [run for _, run in options] else None
        if self.run.value is None and options:
            self.run.value = options[0][1]

    def _open(self) -> None:
        if self.run.value is None:
            raise ConfigError("no run with features is stored; train one above, then press Look again")
        stored = load_run(self.run.value)
        labels = stored.arrays["train_labels"]
        names = stored.provenance["facts"]["class_names"]
        present = [(names[k], k) for k in np.unique(labels).tolist()]
        self._stored, self._names = stored, names
        with self._silently():
            for field, (_, k) in zip(self.classes, present[:: max(1, len(present) // 3)], strict=False):
                field.options, field.value = present, k
        self._turn()

    def _turn(self) -> None:
        arrays, classes = self._stored.arrays, [field.value for field in self.classes]
        seen = compute.class_triangle(arrays["train_features"], arrays["train_labels"], arrays["classifier"], classes)
        shown = np.concatenate([np.flatnonzero(seen.labels == k)[:_DOTS] for k in range(3)])
        names = [f"class {self._names[k]}" for k in classes]
        parts = seen.points[shown], seen.labels[shown], seen.means, seen.weights, seen.ideal
        facts = ", ".join(f"{name} = {value:.3g}" for name, value in seen.facts.items())
        text = f"these three classes alone, {len(seen.labels)} training images: {facts} (ideal 0)"
        self.facts.value = f'<div style="color:#555">{text}</div>'
        alt = f"Features, means and classifier rows of three classes beside a simplex ETF; {text}."
        self._draw(lambda: figures.triangle(*parts, names, self.elevation.value, self.azimuth.value), alt)
        self._say_command(
            f'import nclib as nc\narrays = nc.load_run("{self.run.value}").arrays\n'
            'wanted = (arrays[name] for name in ("train_features", "train_labels", "classifier"))\n'
            f"nc.laboratory.class_triangle(*wanted, {classes})"
        )


def _runs_with_features() -> list[tuple[str, str]]:
    """Stored runs and, of the reference results, those of seed 0 that keep features; with at least three classes."""
    stored = set(default_store().ids())
    return [
        (run_label(run, config), run)
        for run, config in known_runs().items()
        if run in stored or (config["seed"] == 0 and "train_features" in load_run(run).arrays)
    ]


# --- solvers in the plane ------------------------------------------------------------------------------------

_EDGE = 4.0
_GRID = np.linspace(-_EDGE, _EDGE, 81)


class PlaygroundPanel(Panel):
    """Pick a map of the plane and a start, and follow the solvers step by step."""

    def __init__(self) -> None:
        super().__init__()
        first = "rotation"
        options = [(f"{name}: {plane.formula}", name) for name, plane in compute.MAPS.items()]
        self.map = choice_field("map", "f", options, first)
        self.map.layout.width = "480px"
        plane = compute.MAPS[first]
        self.strength = slider("ρ", plane.strength, plane.lowest, plane.highest)
        self.start = [slider(f"start z{sub}", value, -_EDGE, _EDGE) for sub, value in (("₁", -2.0), ("₂", 1.5))]
        self.methods = _method_boxes()
        self.tol = text_field("tolerance", "relative residual", "1e-6")
        self.max_steps = text_field("evaluations", "most evaluations of f, up to 200", "30")
        self.step = widgets.IntSlider(
            8, min=0, max=29, description="step", style=LABEL, layout=widgets.Layout(width="430px")
        )
        self.play = widgets.Play(value=8, min=0, max=29, interval=500, show_repeat=False)
        widgets.jslink((self.play, "value"), (self.step, "value"))
        self.box.children = (
            row(self.map, self.strength), row(*self.start), row(self.tol, self.max_steps),
            row(beside("methods"), *self.methods.values()),
            row(self.step, self.play), self.message, self.image, self.command,
        )  # fmt: skip
        self._when(self.map, functools.partial(self._attempt, self._new_map))
        for widget in (self.strength, *self.start, self.tol, self.max_steps, *self.methods.values()):
            self._when(widget, functools.partial(self._attempt, self._solve))
        self._when(self.step, functools.partial(self._attempt, self._step))
        self._attempt(self._solve)

    def _new_map(self) -> None:
        plane = compute.MAPS[self.map.value]
        with self._silently():
            self.strength.min, self.strength.max = min(plane.lowest, self.strength.min), plane.highest
            self.strength.value, self.strength.min = plane.strength, plane.lowest
        self._solve()

    def _solve(self) -> None:
        chosen = [name for name, box in self.methods.items() if box.value]
        if not chosen:
            raise ConfigError("tick at least one method")
        tol, max_steps = read_number(self.tol.value), read_number(self.max_steps.value)
        solvers = compute.solver_methods(tol, max_steps)
        if max_steps > 200:
            raise ConfigError(f"evaluations: {max_steps} are too many to look at; type at most 200")
        strength, *start = (
            round(slider.value, 4) for slider in (self.strength, *self.start)
        )  # 0.8999… is meant as 0.9
        f = compute.plane_map(self.map.value, strength)
        self.walks = {name: compute.solver_walk(f, solvers[name], start) for name in chosen}
        self._field, self._tol = compute.residual_field(f, _GRID, _GRID), tol
        with self._silently():
            self.step.max = self.play.max = max(len(walk.points) for walk in self.walks.values()) - 1
        self._step()
        self._say_command(
            f'import nclib as nc\nf = nc.laboratory.plane_map("{self.map.value}", {strength})\n'
            f"solvers = nc.laboratory.solver_methods({tol!r}, {max_steps})\n"
            f"{{name: nc.laboratory.solver_walk(f, solver, {start}).points for name, solver in solvers.items()}}"
        )

    def _step(self) -> None:
        points = {name: walk.points for name, walk in self.walks.items()}
        traces = {name: walk.solution.trace[:, 0].numpy() for name, walk in self.walks.items()}
        told = "; ".join(_told(name, walk.solution) for name, walk in self.walks.items())
        alt = f"Left: where each method evaluated f, on the plane; right: its residual. {told}."
        step = self.step.value
        self._draw(lambda: figures.plane(_GRID, _GRID, self._field, points, traces, step, self._tol), alt)
