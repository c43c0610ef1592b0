"""How accurate: Tables 1 to 4 of Sun & Shi (2024), as printed and with ours beside them, and the
printed axes of its figures."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from nclib import paths, plots
from nclib.compare import (
    SETTING,
    VERDICT_COLUMNS,
    NotMeasured,
    Pairs,
    by_run,
    over_seeds,
    pairs,
    pooled_table,
    setting,
)

ACCURACIES = {
    "overall": "accuracy_balanced",
    "majority": "accuracy_majority",
    "minority": "accuracy_minority",
}
"""Names of the paper's accuracy columns and the metrics they are."""
NETWORKS = {"explicit": "ResNet-18", "deq": "DEQ"}

Cell = tuple[Any, ...]
"""Data set, K_A (missing for balanced classes) and R, and what follows them."""


# --- what the paper prints ------------------------------------------------------------------------


def published(paper_table: int | None = None) -> pd.DataFrame:
    """Every accuracy printed in Tables 1–4 of Sun & Shi (2024), in percent: table, dataset, K_A, R,
    model, split, mean, std.

    Parameters
    ----------
    paper_table : 1 to 4; None for all of them
    """
    frame = pd.read_csv(paths.published() / "sun_shi_2024_tables.csv")
    if paper_table is None:
        return frame
    return frame[frame["table"] == paper_table].reset_index(drop=True)


def published_ticks(figure: int, panel: str, quantity: str) -> tuple[float, float]:
    """First and last axis tick of a panel of a printed figure, for instance (3, "b", "nc2").

    Ticks bound the plotted range roughly; they are not values of curves.
    """
    frame = pd.read_csv(paths.published() / "sun_shi_2024_figures.csv", keep_default_na=False)
    same = (frame["figure"] == figure) & (frame["panel"] == panel)
    row = frame[same & (frame["quantity"] == quantity)].iloc[0]
    return float(row["axis_min_tick"]), float(row["axis_max_tick"])


# --- ours beside it -------------------------------------------------------------------------------


def accuracy_table(
    frame: pd.DataFrame,
    printed: pd.DataFrame,
    stands_for: Mapping[str, str],
    scale: str,
    remark: str = "",
) -> pd.DataFrame:
    """Test accuracies beside the printed ones, in percent.

    Parameters
    ----------
    frame : tidy frame of runs
    printed : rows of `published`
    stands_for : the paper's data set that each of ours stands for, for instance
        {"digits": "cifar10"}
    scale : of the runs (`nclib.profiles.scale_of`); sizes are compared at the paper's alone
    remark : on every row that is judged, such as `accuracy_remark`

    Returns
    -------
    DataFrame
        A row for each cell and accuracy: dataset, K_A, R, cell (both in words), accuracy; then for
        each model its value (seed mean), half (95 % interval), within_std (over the last ten logged
        epochs, mean over seeds), printed and printed_std; difference (DEQ − explicit, paired by
        seed), half, detectable (see `Interval`), seeds, printed_difference, runs (their ids), and
        verdict, scale and remark, by the rule of `verdict`. A printed cell without runs of ours has
        the paper's data set for its own and the verdict "not run", of no scale.
    """
    rows = []
    ours = set()
    for accuracy, metric in ACCURACIES.items():
        runs = by_run(frame, metric, "test", "last_epochs")
        runs[["value", "std"]] *= 100
        for cell, group in runs.groupby(SETTING, dropna=False, sort=False):
            dataset, k_a, ratio = cell
            theirs = (stands_for.get(dataset), k_a, ratio)
            beside = _beside(printed, (*theirs, accuracy))
            judged = pooled_table(
                _pairs(frame, metric, cell), scale, beside["printed_difference"], remark
            )
            judged = judged.drop(columns=["metric", "settings_found"]).iloc[0].to_dict()
            rows.append({**_named(cell, accuracy), **_ours(group), **beside, **judged})
            ours.add(_order(*theirs))
    not_run = {"seeds": 0, "runs": "", "verdict": "not run", "scale": "", "remark": ""}
    for cell, _ in printed.groupby([*SETTING, "split"], dropna=False, sort=False):
        dataset, k_a, ratio, accuracy = cell
        if _order(dataset, k_a, ratio) not in ours:
            rows.append({**_named(cell, accuracy), **_beside(printed, cell), **not_run})

    def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
        dataset = stands_for.get(row["dataset"], row["dataset"])
        return _order(dataset, row["K_A"], row["R"])

    # rows of a cell are in the order of the accuracies already, and sorting keeps it
    return pd.DataFrame(sorted(rows, key=order))


def _named(cell: Cell, accuracy: str) -> dict[str, Any]:
    dataset, k_a, ratio = cell[:3]
    text = "balanced" if pd.isna(k_a) else f"K_A={k_a:.0f}, R={ratio:g}"
    return {"dataset": dataset, "K_A": k_a, "R": ratio, "cell": text, "accuracy": accuracy}


def _ours(runs: pd.DataFrame) -> dict[str, Any]:
    """Both models' means over the seeds of a cell, and the ids of its runs."""
    columns: dict[str, Any] = {"runs": " ".join(sorted(runs["run_id"]))}
    for mean in over_seeds(runs).itertuples():
        columns[f"{mean.model}_value"] = mean.value
        columns[f"{mean.model}_half"] = mean.half
        columns[f"{mean.model}_within_std"] = mean.within_std
    return columns


def _pairs(frame: pd.DataFrame, metric: str, cell: Cell) -> Pairs | None:
    """Both networks in one setting; None where only one of them was run."""
    dataset, k_a, ratio = cell
    same = setting(frame, dataset, None if pd.isna(k_a) else k_a, ratio)
    try:
        return pairs(same, metric, "test", "last_epochs")
    except NotMeasured:
        return None


def _order(dataset: str | None, k_a: float, ratio: float) -> tuple[Any, ...]:
    """The paper's order: its data sets, balanced first, then by K_A and R."""
    if pd.isna(k_a):
        return dataset, False, 0.0, ratio
    return dataset, True, float(k_a), ratio


def _beside(printed: pd.DataFrame, cell: Cell) -> dict[str, float | None]:
    """The printed columns of one cell and accuracy; empty where the paper prints none."""
    dataset, k_a, ratio, accuracy = cell
    same_k_a = printed["K_A"].isna() if pd.isna(k_a) else printed["K_A"] == k_a
    same = (printed["dataset"] == dataset) & same_k_a & (printed["R"] == ratio)
    theirs = printed[same & (printed["split"] == accuracy)].set_index("model")
    columns: dict[str, float | None] = {}
    for model in NETWORKS:
        columns[f"{model}_printed"] = theirs["mean"].get(model, np.nan)
        columns[f"{model}_printed_std"] = theirs["std"].get(model, np.nan)
    columns["printed_difference"] = None
    if set(NETWORKS) <= set(theirs.index):
        difference = columns["deq_printed"] - columns["explicit_printed"]
        columns["printed_difference"] = round(difference, 2)
    return columns


# --- as people read it ----------------------------------------------------------------------------


def accuracy_display(table: pd.DataFrame, stands_for: Mapping[str, str]) -> pd.DataFrame:
    """`accuracy_table` as people read it.

    Of both models ours ± within [± 95 % interval] beside the printed value, the difference beside
    the printed one, the smallest one that these seeds would find in 80 % of the cases (detectable),
    and verdict, scale and remark. What was not run reads so.

    Parameters
    ----------
    table, stands_for : as of `accuracy_table`
    """
    idle = table["verdict"] == "not run"
    own = table["dataset"].where(~idle, "–")
    shown: dict[str, Any] = {
        "data": own,
        "stands for": own.map(stands_for).fillna(table["dataset"].where(idle, "–")),
    }
    if table["K_A"].notna().any():
        shown["K_A"] = _texts(table, "{:.0f}", "K_A")
        shown["R"] = _texts(table, "{:.0f}", "R")
        shown["accuracy"] = table["accuracy"]
    for model, label in NETWORKS.items():
        ours = (f"{model}_value", f"{model}_within_std", f"{model}_half")
        theirs = (f"{model}_printed", f"{model}_printed_std")
        shown[f"{label}, ours ± within [95 %]"] = _texts(table, "{:.2f} ± {:.2f} [± {:.2f}]", *ours)
        shown[f"{label}, the paper"] = _texts(table, "{:.2f} ± {:.2f}", *theirs)
    shown["DEQ − ResNet-18 [95 %]"] = _texts(table, "{:+.2f} [± {:.2f}]", "difference", "half")
    shown["detectable difference"] = _texts(table, "{:.1f}", "detectable")
    shown["difference in the paper"] = _texts(table, "{:+.2f}", "printed_difference")
    for name in VERDICT_COLUMNS:
        shown[name] = table[name]
    return pd.DataFrame(shown)


def _texts(table: pd.DataFrame, pattern: str, *names: str) -> list[str]:
    """Each row's values of these columns in the pattern; "–" where the first is missing, and for
    each number that is."""
    texts = []
    for row in table.reindex(columns=names).itertuples(index=False):
        if pd.isna(row[0]):
            texts.append("–")
        else:
            texts.append(pattern.format(*row).replace("nan", "–"))
    return texts


def draw_differences(table: pd.DataFrame, accuracy: str, ax: Axes) -> Axes:
    """DEQ − ResNet-18 in percentage points, a line for each cell that was run: ours as dots with
    95 % intervals over seeds, the paper's as diamonds.

    Parameters
    ----------
    table : of `accuracy_table`
    accuracy : "overall", "majority" or "minority"
    ax : to draw in; "both 0 %" stands where neither network has a test image right
    """
    rows = table[(table["seeds"] > 0) & (table["accuracy"] == accuracy)]
    names = rows["dataset"].str.split(":").str[-1].str.replace("_", " ")
    if rows["K_A"].notna().any():
        names += ", R = " + rows["R"].map("{:g}".format)
    both_zero = rows["explicit_value"].eq(0) & rows["deq_value"].eq(0)
    notes = np.where(both_zero, "both 0 %", "")
    plots.forest(
        rows.assign(row=names, value=rows["difference"], model="deq", note=notes),
        ax,
        label="DEQ − ResNet-18\n(percentage points)",
        names=names.tolist(),
        models=False,
    )
    ax.plot([], [], "o", color="0.15", markersize=4, label="difference, ours")
    ax.plot(
        rows["printed_difference"],
        range(len(rows)),
        "D",
        markerfacecolor="none",
        markeredgecolor="0.4",
        markersize=4,
        label="difference, the paper",
    )
    return ax
