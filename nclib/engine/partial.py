"""Plotting a part of the runs: which of them are stored with their partners, and which settings have every seed."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from nclib.compare import SETTING
from nclib.config import RunConfig, StoredConfig, run_id
from nclib.engine.reference import finished
from nclib.engine.runs import MissingRuns
from nclib.engine.store import identity_columns

PAIR = ("explicit", "deq")
"""Kinds of the two networks that are compared."""


def drawable(configs: Sequence[StoredConfig], train: str = "finished") -> list[StoredConfig]:
    """The runs that a notebook plots.

    Parameters
    ----------
    configs : all runs of the notebook
    train : of the notebook. "finished" leaves out a run that is neither stored nor tracked, and with it the runs on
        the same data, training and seed, because differences are paired by seed. Any other value leaves out nothing

    Returns
    -------
    list of configurations, in the order given

    Raises
    ------
    MissingRuns
        Where nothing would be left.

    Examples
    --------
    >>> import nclib as nc
    >>> from nclib.engine.partial import drawable
    >>> configs = nc.engine.experiments.experiment("fig3", "smoke")
    >>> len(drawable(configs, "missing")) == len(configs)
    True
    """
    if train != "finished":
        return list(configs)
    found = finished_pairs(configs)
    if not found:
        raise MissingRuns(f"none of {len(configs)} runs is finished with its partner; train='missing' trains them")
    if len(found) < len(configs):
        print(f"{len(found)} of {len(configs)} runs are plotted. The others are unfinished or lack their partner.")
    return found


def finished_pairs(configs: Sequence[StoredConfig]) -> list[StoredConfig]:
    """Those of these runs that are stored or tracked together with the runs on the same data, training and seed."""
    there = set(finished(map(run_id, configs)))
    unfinished = {_partners(config) for config in configs if run_id(config) not in there}
    return [config for config in configs if _partners(config) not in unfinished]


def _partners(config: StoredConfig) -> Any:
    """What runs that are compared have in common."""
    return (config.data, config.train, config.seed) if isinstance(config, RunConfig) else run_id(config)


def whole(rows: pd.DataFrame, planned: Sequence[StoredConfig], pair: tuple[str, str] = PAIR) -> pd.DataFrame:
    """The rows of the settings that have every seed that is planned for them, of both networks.

    Parameters
    ----------
    rows : tidy frame
    planned : all runs of the notebook, finished or not
    pair : kinds of the two networks

    Returns
    -------
    DataFrame, with the columns of `rows`
    """
    there = settings(planned).merge(_seeds(rows, pair), on=SETTING, suffixes=("_planned", ""))
    return rows.merge(there.loc[there["seed"] >= there["seed_planned"], SETTING], on=SETTING)


def counted(rows: pd.DataFrame, planned: Sequence[StoredConfig]) -> tuple[int, int]:
    """How many settings have rows, and how many are planned."""
    return len(_seeds(rows)), len(settings(planned))


def of_settings(found: int, planned: int) -> str:
    """For captions: "all 3 settings", "1 of 3 settings" or "one setting"."""
    every = f"all {planned} settings" if planned > 1 else "one setting"
    return f"{found} of {planned} settings" if found < planned else every


def settings(configs: Sequence[StoredConfig]) -> pd.DataFrame:
    """The settings of these runs and the number of their seeds: dataset, K_A (missing in balanced ones), R, seed."""
    return _seeds(pd.DataFrame([identity_columns(config.canonical()) for config in configs]))


def _seeds(rows: pd.DataFrame, pair: tuple[str, ...] = ()) -> pd.DataFrame:
    """Number of seeds of each setting, that all of these networks have."""
    rows = rows.astype({"K_A": "Float64", "R": "Float64"})
    if pair:
        kinds = rows[rows["model"].isin(pair)].groupby([*SETTING, "seed"], dropna=False)["model"].nunique()
        rows = kinds[kinds == len(pair)].reset_index()
    return rows.groupby(SETTING, dropna=False, as_index=False)["seed"].nunique()
