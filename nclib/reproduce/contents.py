"""The front door: every notebook by its own title, what is stored of it, and what the rest will cost.

Read from the notebooks and the run store each time, so that no list has to be kept up to date.
"""

from __future__ import annotations

from collections import Counter

import pandas as pd

from nclib.engine import runs
from nclib.engine.costs import makespan
from nclib.engine.executors import default_workers
from nclib.engine.profiles import PROFILES
from nclib.publish import notebooks
from nclib.publish.plots.display import Prose, prose
from nclib.reproduce.reproduce import prepare
from nclib.system.terminal import duration


def notebook_list(folder: str, profile: str = "quick") -> Prose:
    """One line for each notebook of a folder: its title as a link, its runs by state, and whether it was executed.

    Links start in ``notebooks/``, where the index lies.

    Parameters
    ----------
    folder : such as "walkthrough"
    profile : whose runs and executed notebooks are meant

    Raises
    ------
    ConfigError
        For an unknown folder or profile, with the nearest right one.
    """
    names = [name for name in notebooks.select([folder]) if name.startswith(f"{folder}/")]
    tasks, configs = prepare(names, profile)
    states = runs.plan(list(configs.values())).set_index("run_id")["state"].to_dict()
    lines = []
    for task in tasks:
        title = notebooks.title(notebooks.read_cells(notebooks.source(task.name))) or task.name
        counted = Counter(states[run] for run in task.runs)
        needs = f"{len(task.runs)} runs ({', '.join(f'{n} {state}' for state, n in sorted(counted.items()))})"
        drawn = "executed" if notebooks.executed(task.name, profile).exists() else "not executed yet"
        facts = f"{needs}, {drawn}" if task.runs else drawn
        lines.append(f"- [{title}]({task.name}.ipynb) · {facts}")
    return prose("\n".join(lines))


def reproduction_costs() -> pd.DataFrame:
    """What ``nclib reproduce`` still has to do, a row a profile.

    Columns: executed (of all notebooks); runs, stored, and reference (those not stored whose results are tracked, for
    ``--train never``); to_train, estimated from the finished runs of this machine, with as many at once as it trains by
    default.
    """
    names, workers, rows = notebooks.available(), default_workers(), {}
    for profile in PROFILES:
        plan = runs.plan(list(prepare(names, profile)[1].values()))
        lacking = plan[plan["state"] != "stored"]["seconds"].sort_values(ascending=False)
        rows[profile] = {
            "executed": f"{sum(notebooks.executed(name, profile).exists() for name in names)} of {len(names)}",
            "runs": len(plan),
            "stored": int((plan["state"] == "stored").sum()),
            "reference": int((plan["state"] == "reference").sum()),
            "to_train": f"about {duration(makespan(lacking, workers))}" if len(lacking) else "nothing",
        }
    return pd.DataFrame(rows).T.rename_axis("profile")
