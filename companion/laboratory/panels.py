"""The five panels of ``notebooks/explore.ipynb``: controls, a picture, and what to type to get the same."""

from __future__ import annotations

import atexit
import functools
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.laboratory import compute
from nclib import metrics
from nclib.config import ConfigError, run_id
from nclib.engine.experiments import experiment
from nclib.engine.profiles import PROFILES
from nclib.engine.reference import load_run, reference_store
from nclib.engine.store import HISTORY, CorruptRun, default_store
from nclib.publish import plotting
from nclib.solver import Solution, Status

_WIDE = {"style": {"description_width": "110px"}, "layout": widgets.Layout(width="640px")}
_FIELD = {"style": {"description_width": "110px"}, "layout": widgets.Layout(width="310px")}
_TYPED = _FIELD | {"continuous_update": False}


def _panel(draw: Callable[..., object], **controls: widgets.Widget) -> widgets.interactive:
    """Controls whose values `draw` takes by name. What cannot be drawn is answered with a sentence."""

    @functools.wraps(draw)
    def answer(**values: Any) -> object:
        try:
            return draw(**values)
        except (ValueError, CorruptRun, OSError) as error:
            return plotting.prose(f"**Not drawn:** {error}.")

    panel = widgets.interactive(answer, {"manual": False, "auto_display": True}, **controls)
    panel.layout.flex_flow, panel.out.layout.width = "row wrap", "100%"
    return panel


def _show(fig: Figure, alt: str, said: str, code: str, language: str = "python") -> object:
    """The picture, and below it a sentence and what to type to get the same."""
    display(plotting.picture(fig, f"{alt} {said}"))
    return plotting.prose(f"{said}\n```{language}\n{code}\n```")


def _float(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, such as 1e-5, and not {text!r}") from None


# --- train ---------------------------------------------------------------------------------------------------


class Training:
    """One ``nclib train`` in a process of its own. It can be ended at any moment, and the same command goes on from
    the last finished epoch.

    Parameters
    ----------
    words : what is typed after ``nclib train``
    """

    def __init__(self, words: list[str]) -> None:
        self.stopped = False
        self.words, self._said = words, tempfile.TemporaryFile("w+")  # noqa: SIM115, read while the process writes
        command = [sys.executable, "-m", "nclib.cli", "train", *words]
        self.process = subprocess.Popen(command, stdout=self._said, stderr=subprocess.STDOUT)
        atexit.register(self.stop)

    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        self.stopped = self.running()
        self.process.terminate()
        self.process.wait()

    def said(self) -> list[str]:
        """Lines of its output so far."""
        self._said.seek(0)
        return self._said.read().splitlines()

    def run(self) -> str | None:
        """The id of its run, once it is known."""
        return next((line.split()[1] for line in self.said() if line.startswith("run ")), None)

    def status(self) -> str:
        if self.running():
            return "training"
        if self.process.returncode == 0:
            return "finished"
        if self.stopped:
            return "stopped; Train goes on from the last finished epoch"
        return f"failed: {self.said()[-1]}" if self.said() else "failed"


def history(run: str) -> pd.DataFrame:
    """The history of a run, finished or not: of an unfinished one from its checkpoint, as far as that is.

    Raises
    ------
    CorruptRun
        Where there is nothing of it yet, or what there is is damaged.
    """
    store = default_store()
    state = None if store.has(run) else store.checkpoint(run).load()
    return load_run(run).history[HISTORY] if state is None else pd.DataFrame(state["history"], columns=HISTORY)


VIEWS = {
    "loss": ["loss"],
    "accuracy": ["accuracy_balanced", "accuracy_majority", "accuracy_minority"],
    "solver evaluations": ["solver_steps", "backward_steps"],
    "NC1": ["nc1_trace_ratio", "nc1_pinv"],
    "NC2 and NC3": ["nc2_etf_distance", "nc3_self_duality"],
    "share not converged": ["not_converged", "backward_not_converged"],
}
"""What is watched while a network trains, by the title of its axes."""


def _draw_history(rows: pd.DataFrame) -> Figure:
    fig, axes = plt.subplots(2, 3, figsize=(9.4, 4.6), sharex=True)
    for (title, names), ax in zip(VIEWS.items(), axes.flat, strict=True):
        shown = rows[rows["metric"].isin(names) & np.isfinite(rows["value"])]
        if len(shown):
            sns.lineplot(shown, x="epoch", y="value", hue="metric", style="split", errorbar=None, ax=ax)
            ax.legend(fontsize=6)
            ax.set_yscale("log" if title in ("loss", "NC1") else "linear")
        ax.set(title=title, ylabel="")
    return fig


def train(profile: str = "quick") -> widgets.VBox:
    """Choose a run, train it beside the notebook, watch and stop it.

    Parameters
    ----------
    profile : size at which the fields start
    """
    current: list[Training] = []
    go, halt = widgets.Button(description="Train", icon="play"), widgets.Button(description="Stop", icon="stop")
    ticks = widgets.Play(interval=1500, max=10**6, layout=widgets.Layout(display="none"))
    controls = _train_controls(profile)

    def draw(ticks_: int, **values: str) -> object:
        words = _words(**values)
        ticks.playing = bool(current) and current[0].running()
        return _watch(current[0]) if current and current[0].words == words else _typed("Press **Train**.", words)

    def start(_: widgets.Button) -> None:
        stop(_)
        current[:] = [Training(_words(**{name: control.value for name, control in controls.items()}))]
        panel.update()

    def stop(_: widgets.Button) -> None:
        if current and current[0].running():
            current[0].stop()
            panel.update()

    go.on_click(start)
    halt.on_click(stop)
    panel = _panel(draw, **controls, ticks_=ticks)
    return widgets.VBox([widgets.HBox([go, halt]), panel])


def _train_controls(profile: str) -> dict[str, widgets.Widget]:
    kinds = [(style.label, kind) for kind, style in plotting.MODEL_STYLE.items()]
    texts = {"dataset": "", "K_A": "3", "R": "10", "epochs": "", "width": "", "lr": "", "seed": "0", "more": ""}
    hints = {"more": "such as -s train.momentum=0.8"}
    fields = {
        name: widgets.Text(text, description=name, placeholder=hints.get(name, "the profile's"), **_TYPED)
        for name, text in texts.items()
    }
    return {
        "profile": widgets.Dropdown(options=list(PROFILES), value=profile, description="profile", **_FIELD),
        "model": widgets.Dropdown(options=kinds, value="deq", description="model", **_FIELD),
        **fields,
    }


def _words(more: str, **values: str) -> list[str]:
    """What is typed after ``nclib train``; a field left empty is not in it."""
    given = {name: text.strip() for name, text in values.items() if text.strip()}
    return [word for name, text in given.items() for word in (f"--{name}", text)] + shlex.split(more)


def _typed(said: str, words: list[str]) -> object:
    return plotting.prose(f"{said}\n```sh\n{shlex.join(['nclib', 'train', *words])}\n```")


def _watch(training: Training) -> object:
    """How far a training is: its curves once there are some."""
    status, run = training.status(), training.run()
    try:
        rows = history(run) if run else pd.DataFrame(columns=HISTORY)
    except CorruptRun:
        if not training.running():
            raise
        rows = pd.DataFrame(columns=HISTORY)  # no epoch is finished yet
    said = f"**{status}**" + (f", epoch {rows['epoch'].max()} of {run}" if len(rows) else "")
    if len(rows):
        display(plotting.picture(_draw_history(rows), f"Loss, accuracy, collapse and solver by epoch: {said}."))
    return _typed(said, training.words)


# --- compare -------------------------------------------------------------------------------------------------


def _known() -> list[str]:
    return sorted({*default_store().ids(), *reference_store().ids()})


def compare(profile: str = "quick") -> widgets.VBox:
    """Lay the curves of stored and tracked runs over one another.

    Parameters
    ----------
    profile : whose pair of ResNet-18 and DEQ at K_A = 3, R = 10 is chosen at first, where it is there
    """
    known = _known()
    first = [run for run in map(run_id, experiment("fig2", profile)[:2]) if run in known]
    runs = widgets.SelectMultiple(options=known, value=first, rows=10, description="runs", **_WIDE)
    words = widgets.Text("", description="only with", placeholder="digits KA5 deq s0", **_WIDE)
    names = {metric.label: name for name, metric in (metrics.LOGGED | metrics.METRICS).items()}

    def narrow(_: object) -> None:
        fitting = [run for run in _known() if all(word in run for word in words.value.split())]
        kept = [run for run in runs.value if run in fitting]
        runs.options, runs.value = fitting, kept

    words.observe(narrow, "value")
    panel = _panel(
        _compare,
        runs=runs,
        metric=widgets.Dropdown(options=names, value="nc1_trace_ratio", description="metric", **_FIELD),
        split=widgets.Dropdown(options=["train", "test", "steps"], description="images", **_FIELD),
        logarithmic=widgets.Checkbox(value=True, description="logarithmic", **_FIELD),
    )
    return widgets.VBox([words, panel])


def _compare(runs: tuple[str, ...], metric: str, split: str, logarithmic: bool) -> object:
    if not runs:
        raise ConfigError("choose runs from the list; Ctrl adds another one")
    rows = pd.concat([load_run(run).history.assign(run=run) for run in runs], ignore_index=True)
    rows = rows[(rows["metric"] == metric) & (rows["split"] == split) & np.isfinite(rows["value"])]
    if not len(rows):
        raise ConfigError(f"these runs have no {metric} on {split} images")
    fig, ax = plt.subplots(figsize=(9.4, 3.6))
    sns.lineplot(rows, x="epoch", y="value", hue="run", style="run", markers=True, dashes=False, ax=ax)
    ax.set(ylabel=f"{metric}, {split}", yscale="log" if logarithmic else "linear")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=7)
    last = rows.sort_values("epoch").groupby("run")["value"].last()
    said = "Last values: " + ", ".join(f"{run} {value:.4g}" for run, value in last.items()) + "."
    return _show(fig, f"{metric} against the epoch.", said, "\n".join(f"nclib runs show {run}" for run in runs), "sh")


# --- one image -----------------------------------------------------------------------------------------------


def one_image() -> widgets.interactive:
    """How each solver finds the equilibrium of one test image."""
    stored = {run: run for run in reversed(default_store().ids()) if "-deq-" in run}
    return _panel(
        _one_image,
        run=widgets.Dropdown(options=stored | {"a small DEQ, not trained": None}, description="network", **_WIDE),
        image=widgets.IntSlider(0, 0, 99, description="test image", **_FIELD),
        tol=widgets.Text("1e-5", description="tolerance", **_TYPED),
        max_steps=widgets.IntSlider(40, 1, 200, description="evaluations", **_FIELD),
    )


def _one_image(run: str | None, image: int, tol: str, max_steps: int) -> object:
    limit = _float(tol, "tolerance")
    found = compute.image_traces(run, image, limit, max_steps)
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.0), width_ratios=(1, 2.6))
    pixels = found.image.transpose(1, 2, 0).squeeze()
    left.imshow(pixels, cmap="gray")
    left.set_axis_off()
    left.set_title(f"class {found.label}")
    plotting.traces({name: solution.trace[:, 0] for name, solution in found.solutions.items()}, right, limit)
    right.legend()
    predicted = ", ".join(f"{plotting.METHOD_STYLE[name].label} {label}" for name, label in found.predicted.items())
    said = f"Class {found.label}; predicted: {predicted}. {_ended(found.solutions)}"
    code = f"from companion import laboratory\nlaboratory.image_traces({run!r}, {image}, {limit:g}, {max_steps})"
    return _show(fig, "A test image, and the residual of its equilibrium by evaluations.", said, code)


def _ended(solutions: Mapping[str, Solution]) -> str:
    words = {Status.CONVERGED: "converged after", Status.MAX_STEPS: "stopped at", Status.DIVERGED: "diverged after"}
    told = [
        f"{plotting.METHOD_STYLE[name].label} {words[Status(int(s.status))]} {int(s.steps)}"
        for name, s in solutions.items()
    ]
    return "Evaluations: " + ", ".join(told) + "."


# --- three classes -------------------------------------------------------------------------------------------

_DOTS = 300  # features drawn of each class


def three_classes(profile: str = "quick") -> widgets.interactive:
    """Three classes of a trained network beside a simplex ETF, to be turned.

    Parameters
    ----------
    profile : whose DEQ at K_A = 3, R = 10 is shown at first, where it is there
    """
    known, first = _known(), run_id(experiment("fig2", profile)[1])
    if first not in known:
        first = next((run for run in known if "-deq-s0-" in run), None)
    controls = {
        name: widgets.BoundedIntText(k, 0, 999, description=f"{name} class", **_FIELD)
        for k, name in enumerate(("first", "second", "third"))
    }
    return _panel(
        _three_classes,
        run=widgets.Dropdown(options=known, value=first, description="run", **_WIDE),
        **controls,
        turn=widgets.IntSlider(40, -180, 180, description="turn", continuous_update=False, **_FIELD),
        tilt=widgets.IntSlider(35, -90, 90, description="tilt", continuous_update=False, **_FIELD),
    )


def _three_classes(run: str | None, first: int, second: int, third: int, turn: int, tilt: int) -> object:
    if run is None:
        raise ConfigError("choose a run")
    arrays, classes = load_run(run).arrays, [first, second, third]
    parts = ("train_features", "train_labels", "classifier")
    if lacking := [part for part in parts if part not in arrays]:
        raise ConfigError(f"{run} has kept no {lacking[0]}; choose a run of seed 0, or train it here")
    seen = compute.class_triangle(*(arrays[part] for part in parts), classes)
    facts = ", ".join(f"{name} {value:.3g}" for name, value in seen.facts.items())
    said = f"These three classes alone, {len(seen.labels)} training images: {facts}; complete collapse is 0."
    code = (
        f'import nclib as nc\nfrom companion import laboratory\narrays = nc.load_run("{run}").arrays\n'
        f"wanted = [arrays[name] for name in {parts}]\nlaboratory.class_triangle(*wanted, {classes})"
    )
    alt = "Features, means and classifier rows of three classes beside a simplex ETF."
    return _show(_draw_triangle(seen, classes, turn, tilt), alt, said, code)


def _draw_triangle(seen: compute.Triangle, classes: list[int], turn: int, tilt: int) -> Figure:
    fig = plt.figure(figsize=(8.0, 4.6), layout="none")
    ax = fig.add_axes((0.0, 0.0, 0.74, 1.0), projection="3d", computed_zorder=False)
    ax.set_axis_off()
    ax.plot(*seen.ideal[[0, 1, 2, 0]].T, color="0.4", linestyle="--", linewidth=1.0, label="simplex ETF")
    ax.plot([0, 0], [0, 0], [-1, 1], color="0.75", linewidth=0.8, label="across: widest spread\nwithin a class")
    for k, colour in enumerate(sns.color_palette("colorblind", 3)):
        points = seen.points[seen.labels == k][:_DOTS]
        ax.scatter(*points.T, s=7, color=colour, alpha=0.45, linewidths=0, label=f"class {classes[k]}")
        ax.plot(*np.stack([np.zeros(3), seen.weights[k]]).T, color=colour, linewidth=1.6)
        ax.scatter(*seen.weights[k], marker="^", s=45, color=colour, edgecolor="white")
        ax.scatter(*seen.means[k], marker="o", s=75, color=colour, edgecolor="black")
    for marker, text in (("o", "class mean"), ("^", "classifier row"), (".", "feature")):
        ax.plot([], [], marker, color="0.5", label=text)
    reach = 1.4
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    ax.set_box_aspect((1, 1, 1), zoom=1.4)
    ax.view_init(elev=tilt, azim=turn)
    fig.legend(*ax.get_legend_handles_labels(), loc="center right", fontsize=8)
    return fig


# --- solvers in the plane ------------------------------------------------------------------------------------


def plane() -> widgets.interactive:
    """Pick a map of the plane and a start, and follow the solvers step by step."""
    sliders = {"ρ": ("rho", 0.9, -2), "start z₁": ("z1", -2.0, -4), "start z₂": ("z2", 1.5, -4)}
    controls = {
        name: widgets.FloatSlider(value, min=low, max=4, step=0.05, description=label, **_FIELD)
        for label, (name, value, low) in sliders.items()
    }
    return _panel(
        _plane,
        name=widgets.Dropdown(options=list(compute.MAPS), value="rotation", description="map", **_FIELD),
        **controls,
        tol=widgets.Text("1e-6", description="tolerance", **_TYPED),
        max_steps=widgets.IntSlider(30, 1, 200, description="evaluations", **_FIELD),
        step=widgets.IntSlider(8, 1, 200, description="shown up to", **_FIELD),
    )


def _plane(name: str, rho: float, z1: float, z2: float, tol: str, max_steps: int, step: int) -> object:
    limit, rho, start = _float(tol, "tolerance"), round(rho, 4), (round(z1, 4), round(z2, 4))
    walks = compute.walks(name, rho, start, limit, max_steps)
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.9))
    _shade(compute.plane_map(name, rho), left)
    for method, walk in walks.items():
        look = plotting.METHOD_STYLE[method]
        left.plot(*walk.points[:step].T, color=look.colour, marker=look.marker, markersize=3.5, linewidth=0.9)
    left.plot(*start, "*", color="gold", markeredgecolor="black", markersize=11)
    left.set(
        xlim=(-4, 4), ylim=(-4, 4), xlabel="z₁", ylabel="z₂", aspect="equal", title=f"the first {step} evaluations"
    )
    plotting.traces({method: walk.solution.trace[:, 0] for method, walk in walks.items()}, right, limit)
    right.axvline(step, color="0.7", linewidth=0.8, zorder=0)
    right.legend()
    said = _ended({method: walk.solution for method, walk in walks.items()})
    code = f'from companion import laboratory\nlaboratory.walks("{name}", {rho}, {start}, {limit:g}, {max_steps})'
    return _show(fig, "Left, where each method evaluated f, a star at the start; right, its residual.", said, code)


def _shade(f: compute.Map, ax: Axes) -> None:
    """‖f(z) − z‖ as shading, dark where it is large."""
    side = torch.linspace(-4, 4, 81, dtype=torch.float64)
    z = torch.cartesian_prod(side, side)
    field = (f(z) - z).norm(dim=1).clamp(min=1e-2).log10().reshape(81, 81).T.numpy()
    ax.imshow(field, extent=(-4, 4, -4, 4), origin="lower", cmap="Greys", alpha=0.3, interpolation="bilinear")
