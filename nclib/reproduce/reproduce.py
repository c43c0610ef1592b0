"""Headless regeneration: parameters checked, missing runs trained, notebooks executed, one table of what happened.

The order is the promise: everything that can be refused is refused before the first run is trained; a run or a notebook
that fails stops only what needs it; what is unchanged is not done again. A notebook's figures and tables are those
that it saves under its own name, ``paper/notebook`` or ``paper/notebook_…``.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nclib import paths, profiles, runs
from nclib.config import StoredConfig, one_of, run_id, search_working_directory
from nclib.profiles import given
from nclib.publish.notebooks import select, source
from nclib.reproduce.drawing import Drawing, Row, Task, urgency
from nclib.reproduce.execute import environment
from nclib.reproduce.parameters import given_values, parameters
from nclib.system.terminal import duration, progress_bar, short

DRAWN_AS_FAR_AS_THERE = dict(profiles.from_papers("DRAWN_AS_FAR_AS_THERE"))
"""Notebooks that train nothing and plot those of another's runs that are stored or tracked."""

DRAW_A_PART = profiles.from_papers("DRAW_A_PART")
"""Other notebooks that do so with ``--train finished``: they plot the pairs of runs that are available."""


@dataclass(frozen=True)
class Summary:
    """What one call of `reproduce` did; `parameters` are those that are not the profile's own."""

    parameters: dict[str, Any]
    rows: list[Row]

    ok = property(lambda self: all(row.status != "failed" for row in self.rows), doc="Whether no notebook failed.")


def reproduce(
    names: Iterable[str] = (),
    profile: str = "quick",
    overrides: Sequence[str] = (),
    workers: int | None = None,
    train: Literal["missing", "never", "finished"] = "missing",
    force: bool = False,
    echo: Callable[[str], None] = print,
) -> Summary:
    """Regenerate notebooks with their figures and tables: train what is missing, and render each as soon as it has
    its runs, those of `FIRST` before all others.

    Parameters
    ----------
    names : see `select`; none means every notebook.
    profile : the size, see `nclib.profiles.PROFILES`.
    overrides : "name=value" texts, see `given_values`; a relative ``dataset=folder:PATH`` starts at the working
        directory. Where one differs from the profile's own value, all results of the call lie in a folder of their own,
        ``results/<profile>/with/<parameters>/``.
    workers : runs trained at once, in processes of this machine; left out: one on each GPU, else one a core.
    train : "never" leaves out the notebooks whose runs are neither stored nor among the reference results (where that
        are all, and no override is given, the parameters are those of the profile's tracked runs); "finished"
        renders those of `DRAW_A_PART` from the runs that are available, too, and leaves out one that has none.
    force : execute notebooks that are unchanged, too. Runs are never trained again for it.
    echo : receives each line of progress.

    Raises
    ------
    ConfigError or ClusterError
        Before anything is trained; KeyboardInterrupt after all processes started here have ended. What was finished by
        then is kept and found by the next call.
    """
    clock = time.monotonic()
    one_of(train, runs.TRAIN, "value of train")
    profiles.get_profile(profile)
    with environment():
        tasks = prepare(chosen(names), profile, overrides, train)
        configs = {run: config for task in tasks for run, config in task.needed.items()}
        own = paths.SET_BY_THE_COMMAND
        others = {name: value for task in tasks for name, value in task.values.items() if name not in own}
        os.environ["NCLIB_WITH"] = paths.folder_name(others)
        plan = runs.plan(list(configs.values())).set_index("run_id")
        stored = plan["state"] == "stored"
        said = " with " * bool(others) + ", ".join(f"{name}={value}" for name, value in others.items())
        echo(f"profile {profile}{said}: {len(tasks)} notebooks, {len(plan)} runs, {stored.sum()} of them stored")
        missing = set(plan.index[plan["state"] == "missing"])
        left = [task for task in tasks if train != "missing" and (missing & task.needed.keys() or not task.drawable)]
        tracked = next((typed(scale) for scale in scales() if scale["profile"] == profile), [])
        if tracked and left == tasks and not overrides:  # none of its own runs is there
            return reproduce(names, profile, tracked, workers, train, force, echo)
        with Drawing([task for task in tasks if task not in left], profile, force, echo) as drawing:
            lacking = list(plan.index[~stored])
            failed = _train(configs, lacking, workers, drawing, echo) if train == "missing" else {}
            rows = drawing.finish(failed)
        for row in [row for row in rows if row.message]:
            echo(f"{row.status}: {row.notebook}: {row.message}")
        rows += [Row(task.name, "not drawn") for task in left]
        if left:
            echo(f"not rendered, as some of their runs are missing: {', '.join(task.name for task in left)}")
        unchanged = sum(row.status == "unchanged" for row in rows)
        took = duration(time.monotonic() - clock)
        echo(f"{took} in all, {unchanged} of {len(rows)} notebooks unchanged; results are in {paths.results(profile)}")
    return Summary(others, rows)


def scales() -> list[dict[str, Any]]:
    """Profile and parameters of the tracked runs, the largest first."""
    listing = paths.reference() / "scales.json"
    return json.loads(listing.read_bytes()) if listing.is_file() else []


def typed(scale: Mapping[str, Any]) -> list[str]:
    """The parameters of a scale as one types them."""
    return [f"{name}={value}" for name, value in scale["parameters"].items()]


def chosen(names: Iterable[str]) -> list[str]:
    """The notebooks named; where none is, all of them, what is rendered first and the main paper before the others."""
    if names:
        return select(names)
    return sorted(select(), key=lambda name: (urgency(name), not name.startswith(f"{profiles.MAIN_PAPER}/")))


def prepare(names: Sequence[str], profile: str, overrides: Sequence[str] = (), train: str = "missing") -> list[Task]:
    """Everything that can be checked without training: parameters, data set, and the runs that follow from them.

    Parameters
    ----------
    names : full names, from `select`. The other arguments are those of `reproduce`.

    Raises
    ------
    ConfigError, DataError
    """
    tasks, makers = [], profiles.makers()
    if any(text.startswith("cell=") for text in overrides):
        search_working_directory()
    for name, values in given_values(names, overrides).items():
        declared = parameters(source(name))
        maker, configs = DRAWN_AS_FAR_AS_THERE.get(name, name), {}
        if maker in makers:
            found = profiles.experiment(maker, profile, **given(declared | values))
            configs = {run_id(config): config for config in found}
        partly = maker != name or (train == "finished" and name in DRAW_A_PART)
        values |= {key: value for key, value in {"profile": profile, "train": train}.items() if key in declared}
        tasks.append(Task(name, values, *(({}, configs) if partly else (configs, {}))))
    return tasks


def _train(
    configs: Mapping[str, StoredConfig],
    lacking: Sequence[str],
    workers: int | None,
    drawing: Drawing,
    echo: Callable[[str], None],
) -> dict[str, str]:
    """Train what is missing or damaged, and render meanwhile; returns the runs that are not there with the reason."""
    clock, wanted = time.monotonic(), [configs[run] for run in drawing.order()]
    workers = workers or runs.default_workers(len(lacking))
    echo(f"to train: {len(lacking)} runs, {workers} at once")
    with progress_bar("training") as progress:
        failed = runs.train_missing(wanted, None, workers, progress, stored=drawing.stored)
    failures = {run: short(message) for run, message in failed.items()}
    done = len(set(lacking) - failures.keys())
    echo(f"trained {done} of {len(lacking)} runs in {duration(time.monotonic() - clock)}")
    return failures
