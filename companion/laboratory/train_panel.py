"""The train panel of the laboratory: choose a run, train it beside the session, watch, stop and continue it."""

from __future__ import annotations

import functools
import html
import re
import shlex
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import ipywidgets as widgets
import pandas as pd

from companion.laboratory import figures
from companion.laboratory.background import LiveTraining, history_so_far, prepare
from companion.laboratory.base import FIELD, LABEL, Panel, Refused, choice_field, heading, read_number, row, text_field
from nclib.config import CELLS, RECIPES, ConfigError, ModelConfig, RunConfig, SolverConfig, TrainConfig, run_id
from nclib.data import DATASETS, describe
from nclib.engine.options import OPTIONS, build_config, check_runs
from nclib.engine.outline import class_counts, majority_of, outline
from nclib.engine.profiles import PROFILES, get_profile
from nclib.engine.store import default_store
from nclib.publish.plotting import METHOD_STYLE, MODEL_STYLE

_LOOK = 0.2  # seconds between two looks at a training


class Choices(NamedTuple):
    """What `nclib.engine.options.build_config` takes: named options, the recipe, and "KEY=VALUE" texts."""

    given: dict[str, Any]
    recipe: str | None
    settings: tuple[str, ...]

    def config(self) -> RunConfig:
        """The run that ``nclib train`` makes of them; raises ConfigError or DataError as that does."""
        return build_config(None, self.recipe, self.given, self.settings)

    def command(self) -> str:
        """The command line that makes the same run."""
        words = ["nclib", "train"]
        for key, value in self.given.items():
            words += [OPTIONS[key], str(value)]
        if self.recipe is not None:
            words += ["--recipe", self.recipe]
        for setting in self.settings:
            words += ["-s", setting]
        return shlex.join(words)


def _library_defaults() -> dict[str, Any]:
    """Values that need not be written, since the configuration has them anyway."""
    solver, train = SolverConfig(), TrainConfig()
    return {
        "model.solver.method": solver.method,
        "model.solver.tol": solver.tol,
        "model.solver.max_steps": solver.max_steps,
        "model.cell": ModelConfig(kind="deq").cell,
        "train.log_every": train.log_every,
        "train.precision": train.precision,
    }


_DEFAULTS = _library_defaults()
_SIZES = {
    "data.dataset": "dataset",
    "data.n_max": "images_per_class",
    "data.test_per_class": "test_images_per_class",
    "model.width": "width",
    "model.num_blocks": "equal_blocks",
    "train.epochs": "epochs",
    "train.batch_size": "batch_size",
    "train.lr": "lr",
    "train.log_every": "log_every",
}
"""What a profile fills in."""


class TrainPanel(Panel):
    """Choose a run, train it in a process of its own, watch, stop and continue it.

    Parameters
    ----------
    profile : size that the fields are filled with; every field can be changed
    """

    def __init__(self, profile: str = "quick") -> None:
        super().__init__("nclib-curves")
        get_profile(profile)
        self.training: LiveTraining | None = None
        self._watchers: list[Callable[[], None]] = []
        self._drawn: Any = None
        self._follower: threading.Thread | None = None
        self.size = choice_field("size", "fills the other fields", list(PROFILES), profile)
        self.fields = _train_fields()
        self.facts = widgets.HTML()
        self.train, self.stop, self.resume = (
            widgets.Button(description=text, button_style=style, icon=icon, layout=widgets.Layout(width="110px"))
            for text, style, icon in (("Train", "success", "play"), ("Stop", "danger", "stop"),
                                      ("Continue", "info", "step-forward"))
        )  # fmt: skip
        self.status = widgets.HTML()
        self.bar = widgets.IntProgress(layout=widgets.Layout(width="220px"))
        for widget, name in (
            (self.train, "train"), (self.stop, "stop"), (self.resume, "continue"), (self.status, "status")
        ):  # fmt: skip
            widget.add_class(f"nclib-{name}")
        self._lay_out()
        self._fill(profile)
        self._when(self.size, lambda: self._fill(self.size.value))
        for key, field in self.fields.items():
            self._when(field, functools.partial(self._by_hand, key))
        self._when(self.train, self.start)
        self._when(self.resume, self.start)
        self._when(self.stop, self.end)

    def _lay_out(self) -> None:
        field = self.fields
        columns = (
            ("Data", self.size, *(field[key] for key in _COLUMNS[0])),
            ("Network", *(field[key] for key in _COLUMNS[1])),
            ("Protocol", *(field[key] for key in _COLUMNS[2])),
        )
        boxes = [widgets.VBox([heading(name), *parts]) for name, *parts in columns]
        self.box.children = (
            widgets.HBox(boxes, layout=widgets.Layout(flex_flow="row wrap", grid_gap="0 14px")),
            self.message,
            self.facts,
            self.command,
            row(self.train, self.stop, self.resume, self.bar, self.status, grid_gap="0 6px"),
            self.image,
        )

    # ---- what is chosen

    def _fill(self, profile: str) -> None:
        """Put a profile's sizes into the fields."""
        sizes = get_profile(profile)
        with self._silently():
            for key, name in _SIZES.items():
                value = getattr(sizes, name)
                self.fields[key].value = "" if value is None else str(value)
            tenths, ratio = sizes.beyond
            self.fields["data.num_majority"].value = str(majority_of(sizes.dataset, tenths))
            self.fields["data.ratio"].value = f"{ratio:g}"
            self.fields["recipe"].value = sizes.recipe
        self._changed("data.num_majority")

    def _by_hand(self, key: str) -> None:
        self._changed(key)
        prepare()  # whoever chooses will train

    def _changed(self, key: str) -> None:
        with self._silently():
            if key == "recipe":  # a recipe has a learning rate of its own
                workable = self.fields["recipe"].value == "workable"
                self.fields["train.lr"].value = str(get_profile(self.size.value).lr) if workable else ""
            self._couple(key)
        self._enable()
        self._choose()

    def _couple(self, key: str) -> None:
        """K_A + K_B = K."""
        try:
            classes = outline(self.fields["data.dataset"].value).classes
        except Refused:
            return  # said by `_choose`
        here, there = ("K_B", "data.num_majority") if key == "K_B" else ("data.num_majority", "K_B")
        number = read_number(self.fields[here].value)
        if isinstance(number, int):
            self.fields[there].value = str(classes - number)

    def _enable(self) -> None:
        """Only what applies to the arm and the imbalance can be set."""
        kind, imbalance = self.fields["model.kind"].value, self.fields["data.imbalance"].value
        applies = {
            "data.num_majority": imbalance == "step",
            "K_B": imbalance == "step",
            "data.ratio": imbalance != "balanced",
            "model.cell": kind in ("deq", "explicit_matched", "weight_tied"),
            "model.num_blocks": kind == "explicit_flops",
        }
        applies |= dict.fromkeys(("model.solver.method", "model.solver.tol", "model.solver.max_steps"), kind == "deq")
        for key, yes in applies.items():
            self.fields[key].disabled = not yes

    def choices(self) -> Choices:
        """What the fields say; one that is empty or does not apply is left out."""
        given, settings = {}, []
        for key, field in self.fields.items():
            text = str(field.value).strip()
            if key in ("recipe", "K_B") or field.disabled or not text:
                continue
            value = text if isinstance(field, (widgets.Dropdown, widgets.Combobox)) else read_number(text)
            if key in OPTIONS:
                given |= {key: value} if value != _DEFAULTS.get(key) else {}
            elif key == "data.imbalance":
                settings += [f"{key}={value}"] * (value == "exponential")  # the other two follow from K_A and R
            elif value != _DEFAULTS.get(key):
                settings.append(f"{key}={value}")
        precision = get_profile(self.size.value).precision  # of the size alone: it has no field
        if precision != _DEFAULTS["train.precision"]:
            settings.append(f"train.precision={precision}")
        recipe = self.fields["recipe"].value
        return Choices(given, None if recipe == "workable" else recipe, tuple(settings))

    def config(self) -> RunConfig:
        """The run that is chosen.

        Raises
        ------
        ConfigError or DataError
            As the command line does, for what cannot be.
        """
        if self.fields["data.imbalance"].value == "step" and not self.fields["data.num_majority"].value.strip():
            raise ConfigError("K_A is empty; type the number of majority classes, for instance 3, or choose balanced")
        config = self.choices().config()
        class_counts(config.data)
        return config

    def _refuse(self, error: Exception | str) -> None:
        """In the words of the fields: "tolerance" for "SolverConfig.tol"."""
        text = str(error)
        for key, field in self.fields.items():
            text = re.sub(rf"\b(?:\w+Config\.)?{key.split('.')[-1]}\b", field.description, text)
        super()._refuse(text)

    def _choose(self) -> None:
        try:
            config = self.config()
        except Refused as error:
            self._refuse(error)
            self.facts.value = ""
            self._say_command("(no command: see above)")
            self._buttons(None)
            return
        self.message.value = ""
        self._say_command(self.choices().command())
        counts = class_counts(config.data)
        about = f"{len(counts)} classes, n_A = {int(counts.max())}, n_B = {int(counts.min())}: {int(counts.sum())}"
        self.facts.value = f'<div style="color:#555">{about} training images</div>'
        if not self.running():
            self._show(config)
        self._buttons(config)

    # ---- training

    def running(self) -> bool:
        return self.training is not None and self.training.running()

    def start(self) -> None:
        """Train what is chosen, or go on with it; what is stored already is shown."""
        if self.running():
            return
        self.wait()  # until the last one is drawn
        try:
            config = self.config()
            if describe(config.data.dataset)["present"]:
                check_runs([config])
        except Refused as error:
            self._refuse(error)
            return
        self.message.value = ""
        if default_store().has(run_id(config)):
            self._show(config)
            return
        self.training = LiveTraining(config)
        self.training.start()
        self._follower = threading.Thread(target=self._follow, args=(self.training,), daemon=True)
        self._status(f"epoch {self.training.epoch()} of {config.train.epochs}, starting", config, self.training.epoch())
        self._buttons(config, running=True)
        self._follower.start()

    def end(self) -> None:
        """Stop now; what was done up to the last epoch is kept."""
        if self.training is not None:
            self.training.stop()
            prepare()
        self.wait()

    def wait(self) -> None:
        """Until the training has ended; for use in code, without a browser."""
        if self._follower is not None:
            self._follower.join()

    def watch(self, look: Callable[[], None]) -> None:
        """Call ``look()`` after each epoch and at the end, from the thread that follows the training."""
        self._watchers.append(look)

    def _follow(self, training: LiveTraining) -> None:
        seen = training.changed()
        while training.running():
            training.wait(_LOOK)
            mark = training.changed()
            if mark != seen and not mark[0]:
                seen = mark
                self._show_epoch(training)
        self._ended(training)

    def _show_epoch(self, training: LiveTraining) -> int:
        """Draw what there is of it, and return how many epochs that are."""
        sofar = history_so_far(training.run)
        if sofar is None or sofar.source == "reference":
            return 0
        epochs = training.config.train.epochs
        if training.running() and sofar.epoch < epochs:
            self._status(f"epoch {sofar.epoch} of {epochs}", training.config, sofar.epoch)
        self._draw_history(training.config, sofar.history)
        self._tell()
        return sofar.epoch

    def _ended(self, training: LiveTraining) -> None:
        failure = training.failure()
        if default_store().has(training.run):
            self._show(training.config)
            self._tell()
        else:
            epoch = self._show_epoch(training)
            text = f"stopped after epoch {epoch} of {training.config.train.epochs}"
            if failure is not None:
                self._refuse(failure)
                text = "failed: see above"
            self._status(text, training.config, epoch)
        self._buttons(training.config)

    def _tell(self) -> None:
        for look in self._watchers:
            look()

    # ---- what is shown

    def _show(self, config: RunConfig) -> None:
        """What there is of a run that is not being trained here."""
        run = run_id(config)
        sofar = history_so_far(run)
        self._draw_history(config, None if sofar is None else sofar.history)
        epochs = config.train.epochs
        if sofar is None:
            self._status("not trained yet: press Train", config, 0)
        elif sofar.source == "stored":
            self._status(f"finished: {run}", config, epochs)
        elif sofar.source == "reference":
            self._status(f"reference result {run}; Train makes it here", config, 0)
        else:
            self._status(f"epoch {sofar.epoch} of {epochs} is stored: press Continue", config, sofar.epoch)

    def _draw_history(self, config: RunConfig, history: pd.DataFrame | None) -> None:
        nothing = "no solver in this variant" if history is not None and config.model.kind != "deq" else "nothing yet"
        alt = "Six panels against the epoch: loss, accuracy, solver evaluations, NC1, NC2 and NC3, solver failures."
        epochs = config.train.epochs
        what = nothing, epochs, None if history is None else (run_id(config), len(history))
        if what != self._drawn:
            self._draw(lambda: figures.progress(history, epochs, nothing), alt)
            self._drawn = what

    def _status(self, text: str, config: RunConfig, epoch: int) -> None:
        self.bar.max, self.bar.value = config.train.epochs, epoch
        self.status.value = html.escape(text)

    def _buttons(self, config: RunConfig | None, running: bool = False) -> None:
        running = running or self.running()
        again = config is not None and (
            default_store().checkpoint(run_id(config)).path.exists()
            or (self.training is not None and self.training.stopped and self.training.run == run_id(config))
        )
        self.train.disabled = running or config is None
        self.stop.disabled = not running
        self.resume.disabled = running or not again


_COLUMNS = (
    ("data.dataset", "data.imbalance", "data.num_majority", "K_B", "data.ratio", "data.n_max"),
    ("model.kind", "model.cell", "model.width", "model.solver.method", "model.solver.tol", "model.solver.max_steps",
     "model.num_blocks"),
    ("recipe", "train.epochs", "train.batch_size", "train.lr", "seed", "train.log_every", "data.test_per_class"),
)  # fmt: skip


def _train_fields() -> dict[str, widgets.Widget]:
    """Every field of the train panel by its configuration key, in the order of the command line."""
    arms = [(style.label, kind) for kind, style in MODEL_STYLE.items()]
    methods = [(METHOD_STYLE[name].label, name) for name in ("broyden", "anderson", "fixed_point")]
    dataset = widgets.Combobox(
        options=DATASETS, ensure_option=False, description="data set", continuous_update=False,
        tooltip="a name, or folder:PATH for images of your own", style=LABEL, layout=widgets.Layout(**FIELD),
    )  # fmt: skip
    cell = widgets.Combobox(
        options=CELLS, ensure_option=False, description="cell", continuous_update=False, value="residual",
        tooltip="of the equilibrium and its controls; package.module:Class for one of your own", style=LABEL,
        layout=widgets.Layout(**FIELD),
    )  # fmt: skip
    return {
        "data.dataset": dataset,
        "model.kind": choice_field("variant", "the last block", arms, "deq"),
        "data.imbalance": choice_field("imbalance", "", ["balanced", "step", "exponential"], "step"),
        "data.num_majority": text_field("K_A", "majority classes; K_A + K_B = K"),
        "K_B": text_field("K_B", "minority classes; K_A + K_B = K"),
        "data.ratio": text_field("R", "n_A / n_B: images of a majority class for each of a minority class"),
        "data.n_max": text_field("n_A", "images of a majority class; empty: as many as there are"),
        "data.test_per_class": text_field("test images", "of each class; empty: all"),
        "model.width": text_field("width", "channels of the first stage; features have 8 times as many"),
        "model.cell": cell,
        "model.solver.method": choice_field("solver", "of the equilibrium", methods, "broyden"),
        "model.solver.tol": text_field("tolerance", "relative residual", str(_DEFAULTS["model.solver.tol"])),
        "model.solver.max_steps": text_field(
            "evaluations", "most evaluations of the cell for an image", str(_DEFAULTS["model.solver.max_steps"])
        ),
        "model.num_blocks": text_field("untied blocks", "of the variant of the same compute"),
        "recipe": choice_field("protocol", "workable trains; paper is the literal one", list(RECIPES), "workable"),
        "train.epochs": text_field("epochs", ""),
        "train.batch_size": text_field("batch", "images in a step"),
        "train.lr": text_field("learning rate", "empty: the protocol's"),
        "seed": text_field("seed", "of subset, initial weights and order", "0"),
        "train.log_every": text_field("evaluate every", "epochs between two full evaluations"),
    }
