"""Headless regeneration: parameters checked, missing runs trained, notebooks executed, one table of what happened.

The order is the promise: everything that can be refused is refused before the first run is trained; a run or a notebook
that fails stops only what needs it; what is unchanged is not done again. A notebook's figures and tables are those
that it saves under its own name, ``paper/notebook`` or ``paper/notebook_…``.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nclib import data
from nclib.config import ConfigError, StoredConfig, run_id, suggest
from nclib.engine import experiments, profiles, runs
from nclib.engine.executors import place
from nclib.engine.options import check_runs
from nclib.publish.notebooks import MAIN_PAPER, select, source
from nclib.reproduce.drawing import AT_ONCE, OUT_OF_TIME, Drawing, urgency
from nclib.reproduce.execute import environment, notebook_pool
from nclib.reproduce.parameters import given_values, parameters
from nclib.reproduce.stamps import Task, made_from, mark_of, sources, why_due
from nclib.reproduce.summary import Summary, write_summary
from nclib.system import other_parameters, paths
from nclib.system.terminal import duration, progress_bar, short

if TYPE_CHECKING:
    import pandas as pd

DRAWN_AS_FAR_AS_THERE = {"neural_collapse/collapse": "neural_collapse/equilibrium_or_cell"}
"""Notebooks that train nothing and draw those of another's runs that are stored or tracked."""

DRAW_A_PART = tuple(
    f"neural_collapse/{name}"
    for name in ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "fig5", "scorecard")
)
"""Other notebooks that do so with ``--train finished``: they draw the pairs of runs that are there."""


def reproduce(
    names: Iterable[str] = (),
    profile: str = "quick",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    train: Literal["missing", "never", "finished"] = "missing",
    force: bool = False,
    scheduler: str | None = None,
    minutes: float | None = None,
    echo: Callable[[str], None] = print,
) -> Summary:
    """Regenerate notebooks with their figures and tables: train what is missing, and draw each as soon as its runs are
    there, those of `FIRST` before all others.

    Parameters
    ----------
    names : see `select`; none means every notebook.
    profile : the size, see `nclib.engine.profiles.PROFILES`.
    overrides : "name=value" texts, see `given_values`; a relative ``dataset=folder:PATH`` starts at the working
        directory. Where one differs from the profile's own value, all results of the call lie in a folder of their own,
        ``results/<profile>/with/<parameters>/``.
    workers : runs trained at once, in processes of this machine; left out: one on each GPU, else one a core, and this
        process alone for a few seconds of work.
    train : "never" fails the notebooks whose runs are neither stored nor among the reference results; "finished" draws
        those of `DRAW_A_PART` from the runs that are there, and fails one that has none.
    force : execute notebooks that are unchanged, too. Runs are never trained again for it.
    scheduler : address or scheduler file of a Dask cluster to train on instead.
    minutes : train for no longer than this, one seed of all notebooks before the next, in the order they are named;
        then draw the notebooks whose runs are there. The next call goes on.
    echo : receives each line that is said.

    Returns
    -------
    a `Summary`, also written to ``summary.json`` among the results and said as a table at the end.

    Raises
    ------
    ConfigError, DataError or ClusterError
        Before anything is trained; KeyboardInterrupt after all processes started here have ended. What was finished by
        then is kept and found by the next call.
    """
    clock = time.monotonic()
    if scheduler and workers:
        raise ConfigError("--scheduler names a cluster with workers of its own; leave out --workers")
    _check_limits(workers, train, minutes)
    profiles.get_profile(profile)
    with environment():
        tasks, configs = prepare(chosen(names), profile, overrides, train)
        others = other_parameters.other_values(task.values for task in tasks)
        os.environ["NCLIB_WITH"] = other_parameters.folder_name(others)
        folder = paths.results(profile)
        plan = runs.plan(list(configs.values()))
        lacking = plan[plan["state"] != "stored"].set_index("run_id")["seconds"].to_dict()
        _say_plan(plan, len(tasks), other_parameters.in_words(profile, others), train, echo)
        for needed in [folder, *([paths.runs()] if len(lacking) and train == "missing" else [])]:
            _require_writable(needed)
        before, training = {run: mark_of(run) for run in configs}, None
        with notebook_pool(AT_ONCE) as pool:
            drawing = Drawing(tasks, profile, pool, force, echo)
            if train != "missing":
                failed = _missing(plan, train)
            else:
                failed, training = _train(configs, lacking, (workers, scheduler), minutes, drawing, echo)
            rows = drawing.finish(failed, before)
        summary = Summary(profile, others, rows, failed, round(time.monotonic() - clock, 1), training)
        write_summary(summary)
    echo(summary.text())
    echo(f"{duration(summary.seconds)} in all; results are in {folder}")
    return summary


def _check_limits(workers: int | None, train: str, minutes: float | None) -> None:
    if workers is not None and not 1 <= workers <= 1000:
        raise ConfigError(f"workers must be a number from 1 to 1000, got {workers}")
    if train not in runs.TRAIN:
        raise ConfigError(suggest(train, runs.TRAIN, "value of train"))
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"minutes must be a number above 0, got {minutes:g}")
    if minutes is not None and train != "missing":
        raise ConfigError(f"--minutes limits training, and --train {train} forbids it; leave one of them out")


def dry_run(
    names: Iterable[str] = (),
    profile: str = "quick",
    overrides: Sequence[str] = (),
    echo: Callable[[str], None] = print,
) -> None:
    """Say what `reproduce` would do, and why, a line for each run and notebook that is due; nothing is changed."""
    tasks, configs = prepare(chosen(names), profile, overrides)
    others = other_parameters.other_values(task.values for task in tasks)
    plan = runs.plan(list(configs.values()))
    lacking = plan[plan["state"] != "stored"]
    _say_plan(plan, len(tasks), other_parameters.in_words(profile, others), "missing", echo)
    for row in lacking.itertuples():
        users = [task.name for task in tasks if row.run_id in task.runs]
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        why = "not stored" if row.state == "missing" else "not stored, though its results are tracked"
        echo(f"  train {row.run_id}, {duration(row.seconds)}: {why}; for {', '.join(users[:3])}{more}")
    marks, due = {run: mark_of(run) for run in configs}, 0
    with other_parameters.results_with(other_parameters.folder_name(others)):
        echo(f"results would lie in {paths.results(profile)}")
        for task in tasks:
            to_train = len(set(task.runs) & set(lacking["run_id"]))
            why = f"{to_train} of its {len(task.runs)} runs are to be trained" if to_train else ""
            why = why or why_due(task.name, profile, made_from(task, marks, profile))
            due += bool(why)
            if why:
                echo(f"  draw {task.name}: {why}")
    echo(f"{len(tasks) - due} of {len(tasks)} notebooks are unchanged")


def chosen(names: Iterable[str]) -> list[str]:
    """The notebooks named; where none is, all of them, what is drawn first and the main paper before the others."""
    if names:
        return select(names)
    return sorted(select(), key=lambda name: (urgency(name), not name.startswith(f"{MAIN_PAPER}/")))


def prepare(
    names: Sequence[str], profile: str, overrides: Sequence[str] = (), train: str = "missing"
) -> tuple[list[Task], dict[str, StoredConfig]]:
    """Everything that can be checked without training: parameters, data set, and the runs that follow from them.

    Parameters
    ----------
    names : full names, from `select`. The other arguments are those of `reproduce`.

    Returns
    -------
    one `Task` for each notebook, and the configurations of all their runs by id.

    Raises
    ------
    ConfigError, DataError
    """
    sources.cache_clear()  # files may have changed since the last call in this process
    tasks, configs, makers = [], {}, experiments.known()
    for name, values in given_values(names, overrides).items():
        declared = parameters(source(name))
        in_force = {key: parameter.default for key, parameter in declared.items()} | values
        settings = {key: value for key, value in in_force.items() if key in profiles.OVERRIDES}
        maker, needed = DRAWN_AS_FAR_AS_THERE.get(name, name), {}
        if maker in makers:
            needed = {run_id(config): config for config in experiments.experiment(maker, profile, **settings)}
        optional = needed if maker != name or (train == "finished" and name in DRAW_A_PART) else {}
        needed = {} if optional else needed
        configs |= needed
        command = {"profile": profile, "train": train}
        values |= {key: value for key, value in command.items() if key in declared}
        tasks.append(Task(name, values, settings, tuple(needed), tuple(optional)))
    return tasks, configs


def _require_writable(folder: Path) -> None:
    """Raise PermissionError where nothing can be written to a folder, or where it would have to be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "results cannot be written there; set NCLIB_RESULTS to a folder that is yours"
        raise PermissionError(errno.EACCES, advice, str(there))


def _say_plan(plan: pd.DataFrame, notebooks: int, profile: str, train: str, echo: Callable[[str], None]) -> None:
    lacking = plan[plan["state"] != "stored"]
    drawn = f"{notebooks} notebook{'s' * (notebooks != 1)}"
    echo(f"profile {profile}: {drawn}, {len(plan)} runs, {len(plan) - len(lacking)} of them stored")
    if len(lacking) and train == "missing":
        echo(f"to train: {len(lacking)} runs, about {duration(lacking['seconds'].sum())} of one core")


def _missing(plan: pd.DataFrame, train: str) -> dict[str, str]:
    absent = plan.loc[plan["state"] == "missing", "run_id"]
    return dict.fromkeys(absent, f"not stored, and --train {train} forbids training it; leave that out to train it")


def _train(
    configs: Mapping[str, StoredConfig],
    lacking: Mapping[str, float],
    where: tuple[int | None, str | None],
    minutes: float | None,
    drawing: Drawing,
    echo: Callable[[str], None],
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Train what is missing or damaged, and draw meanwhile; returns the runs that are not there with the reason, and
    how long it took. `lacking` has the seconds expected of each run that is not stored, `where` workers and
    scheduler."""
    failures = _fetch({run: configs[run] for run in sorted(lacking)}, echo)
    missing = [run for run in lacking if run not in failures]
    check_runs(configs[run] for run in sorted(missing))
    wanted = [config for run, config in configs.items() if run not in failures]
    with contextlib.ExitStack() as stack:
        seconds = sum(lacking[run] for run in missing)
        executor = stack.enter_context(place(*where, len(missing), seconds, echo)) if missing else None
        progress = stack.enter_context(progress_bar("training", echo))

        def tell(done: float, total: float, text: str) -> None:
            drawing.look()
            progress(done, total, text)

        trained = runs.train_missing(
            wanted, executor, tell, minutes=minutes, urgency=drawing.urgent_runs(), stored=drawing.stored
        )
    failures |= trained.failures
    for run, message in failures.items():
        failures[run] = short(message)
        echo(f"run failed: {run}: {failures[run]}")
    if trained.unfinished:
        echo(f"{len(trained.unfinished)} of {len(missing)} runs are left: {OUT_OF_TIME}")
        return failures | dict.fromkeys(trained.unfinished, OUT_OF_TIME), None
    if not trained.runs:
        return failures, None
    echo(trained.text())
    return failures, {"runs": trained.runs, "seconds": trained.seconds}


def _fetch(lacking: Mapping[str, StoredConfig], echo: Callable[[str], None]) -> dict[str, str]:
    """Bring the data of the missing runs here before any process needs it; returns the runs that cannot have theirs."""
    failures: dict[str, str] = {}
    wanted = {run: config.data.dataset for run, config in lacking.items() if hasattr(config, "data")}
    for dataset in sorted(set(wanted.values())):
        try:
            data.fetch(dataset)
        except data.DataError as error:
            echo(f"data set {dataset}: {error}")
            failures |= {run: short(str(error)) for run, name in wanted.items() if name == dataset}
    return failures
