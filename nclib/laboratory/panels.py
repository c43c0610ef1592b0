"""The three panels of ``notebooks/laboratory.ipynb``: controls, a picture, and what to type to get the same."""

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
from IPython.display import Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nclib import plots
from nclib.laboratory import compute
from nclib.profiles import PROFILES
from nclib.solvers import Solution, Status
from nclib.store import HISTORY, CorruptRun, default_store, load_run

_SOLVER = {"tol": [1e-6, 1e-2, 1e-4, 1e-8], "max_steps": (1, 200)}


def _panel(draw: Callable[..., object], **controls: Any) -> widgets.interactive:
    """Controls whose values `draw` takes by name. What cannot be plotted is answered with a sentence."""

    @functools.wraps(draw)
    def answer(**values: Any) -> object:
        try:
            return draw(**values)
        except (ValueError, CorruptRun, OSError) as error:
            return Markdown(f"**Not plotted:** {error}.")

    return widgets.interactive(answer, {"manual": False, "auto_display": True}, **controls)


def _show(fig: Figure, alt: str, said: str, code: str) -> object:
    """The picture, and below it a sentence and the Python that gives the same."""
    display(plots.picture(fig, f"{alt} {said}"))
    return Markdown(f"{said}\n```python\n{code}\n```")


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
            ax.legend(fontsize=7)
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
    texts = {"dataset": "", "K_A": "3", "R": "10", "epochs": "", "width": "", "lr": "", "seed": "0", "more": ""}
    controls = {
        "profile": widgets.Dropdown(options=list(PROFILES), value=profile),
        "model": widgets.Dropdown(options=list(plots.MODEL_STYLE), value="deq"),
        **{name: widgets.Text(text, continuous_update=False) for name, text in texts.items()},
    }

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


def _words(more: str, **values: str) -> list[str]:
    """What is typed after ``nclib train``; a field left empty is not in it."""
    given = {name: text.strip() for name, text in values.items() if text.strip()}
    return [word for name, text in given.items() for word in (f"--{name}", text)] + shlex.split(more)


def _typed(said: str, words: list[str]) -> object:
    return Markdown(f"{said}\n```sh\n{shlex.join(['nclib', 'train', *words])}\n```")


def _watch(training: Training) -> object:
    """How far a training is: its curves once there are some."""
    status, run, store = training.status(), training.run(), default_store()
    rows = pd.DataFrame(columns=HISTORY)
    if run and store.has(run):
        rows = load_run(run).history[HISTORY]
    elif run and (state := store.checkpoint(run).load()):
        rows = pd.DataFrame(state["history"], columns=HISTORY)
    said = f"**{status}**" + (f", epoch {rows['epoch'].max()} of {run}" if len(rows) else "")
    if len(rows):
        display(plots.picture(_draw_history(rows), f"Loss, accuracy, collapse and solver by epoch: {said}."))
    return _typed(said, training.words)


# --- one image -----------------------------------------------------------------------------------------------


def one_image() -> widgets.interactive:
    """How each solver finds the equilibrium of one test image."""
    stored = {run: run for run in reversed(default_store().ids()) if "-deq-" in run}
    run = widgets.Dropdown(options=stored | {"a small DEQ, not trained": None}, layout=widgets.Layout(width="640px"))
    return _panel(_one_image, run=run, image=(0, 99), **_SOLVER)


def _one_image(run: str | None, image: int = 0, tol: float = 1e-6, max_steps: int = 40) -> object:
    found = compute.image_traces(run, image, tol, max_steps)
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.0), width_ratios=(1, 2.6))
    left.imshow(found.image.transpose(1, 2, 0).squeeze(), cmap="gray")
    left.set_axis_off()
    left.set_title(f"class {found.label}")
    plots.traces({name: solution.trace[:, 0] for name, solution in found.solutions.items()}, right, tol)
    right.legend()
    predicted = ", ".join(f"{plots.METHOD_STYLE[name].label} {label}" for name, label in found.predicted.items())
    said = f"Class {found.label}; predicted: {predicted}. {_ended(found.solutions)}"
    code = f"from nclib import laboratory\nlaboratory.image_traces({run!r}, {image}, {tol:g}, {max_steps})"
    return _show(fig, "A test image, and the residual of its equilibrium by evaluations.", said, code)


def _ended(solved: Mapping[str, Solution]) -> str:
    words = {Status.CONVERGED: "converged after", Status.MAX_STEPS: "stopped at", Status.DIVERGED: "diverged after"}
    told = [f"{plots.METHOD_STYLE[name].label} {words[int(s.status)]} {int(s.steps)}" for name, s in solved.items()]
    return "Evaluations: " + ", ".join(told) + "."


# --- solvers in the plane ------------------------------------------------------------------------------------


def plane() -> widgets.interactive:
    """Pick a map of the plane and a start, and follow the solvers step by step."""
    side = (-4.0, 4.0, 0.05)
    return _panel(_plane, name=list(compute.MAPS), rho=(-2.0, 4.0, 0.05), z1=side, z2=side, **_SOLVER, step=(1, 200))


def _plane(
    name: str, rho: float = 0.9, z1: float = -2, z2: float = 1.5, tol: float = 1e-6, max_steps: int = 30, step: int = 8
) -> object:
    rho, start = round(rho, 4), (round(z1, 4), round(z2, 4))
    walks = compute.walks(name, rho, start, tol, max_steps)
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.9))
    _shade(compute.MAPS[name](rho), left)
    for method, (points, _) in walks.items():
        look = plots.METHOD_STYLE[method]
        left.plot(*points[:step].T, color=look.colour, marker=look.marker, markersize=3.5, linewidth=0.9)
    left.plot(*start, "*", color="gold", markeredgecolor="black", markersize=11)
    left.set(xlim=(-4, 4), ylim=(-4, 4), xlabel="z₁", ylabel="z₂", title=f"the first {step} evaluations")
    solutions = {method: solution for method, (_, solution) in walks.items()}
    plots.traces({method: solution.trace[:, 0] for method, solution in solutions.items()}, right, tol)
    right.axvline(step, color="0.7", linewidth=0.8, zorder=0)
    right.legend()
    code = f'from nclib import laboratory\nlaboratory.walks("{name}", {rho}, {start}, {tol:g}, {max_steps})'
    alt = "Left, where each method evaluated f, a star at the start; right, its residual."
    return _show(fig, alt, _ended(solutions), code)


def _shade(f: compute.Map, ax: Axes) -> None:
    """‖f(z) − z‖ as shading, dark where it is large."""
    side = torch.linspace(-4, 4, 81, dtype=torch.float64)
    z = torch.cartesian_prod(side, side)
    field = (f(z) - z).norm(dim=1).clamp(min=1e-2).log10().reshape(81, 81).T.numpy()
    ax.imshow(field, extent=(-4, 4, -4, 4), origin="lower", cmap="Greys", alpha=0.3, interpolation="bilinear")
