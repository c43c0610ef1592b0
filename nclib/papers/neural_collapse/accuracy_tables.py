"""Tables 1 to 4 of Sun & Shi (2024), as printed and with ours beside them, and the printed axes of its figures."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from nclib import paths, plots
from nclib.compare import SETTING, VERDICT_COLUMNS, NotMeasured, Pairs, by_run, over_seeds, pairs, pooled_table, setting

# Names of the paper's accuracy columns and the metrics they are.
ACCURACIES = {"overall": "accuracy_balanced", "majority": "accuracy_majority", "minority": "accuracy_minority"}


def published(paper_table: int | None = None) -> pd.DataFrame:
    """Every accuracy printed in Tables 1–4 of Sun & Shi (2024), in percent: table, dataset, K_A, R, model, split,
    mean, std."""
    frame = pd.read_csv(paths.published() / "sun_shi_2024_tables.csv")
    return frame if paper_table is None else frame[frame["table"] == paper_table].reset_index(drop=True)


def published_ticks(figure: int, panel: str, quantity: str) -> tuple[float, float]:
    """First and last axis tick of a panel of a printed figure, for instance (3, "b", "nc2"). Ticks bound the plotted
    range roughly; they are not values of curves."""
    frame = pd.read_csv(paths.published() / "sun_shi_2024_figures.csv", keep_default_na=False)
    rows = frame[(frame["figure"] == figure) & (frame["panel"] == panel) & (frame["quantity"] == quantity)]
    return tuple(map(float, rows[["axis_min_tick", "axis_max_tick"]].iloc[0]))


def accuracy_table(
    frame: pd.DataFrame, printed: pd.DataFrame, stands_for: Mapping[str, str], scale: str, remark: str = ""
) -> pd.DataFrame:
    """Test accuracies beside the printed ones, in percent.

    Parameters
    ----------
    frame : tidy frame of runs
    printed : rows of `published`
    stands_for : the paper's data set that each of ours stands for, for instance {"digits": "cifar10"}
    scale : of the runs (`nclib.profiles.scale_of`); sizes are compared at the paper's alone
    remark : on every row that is judged, such as `accuracy_remark`

    Returns
    -------
    DataFrame
        A row for each cell and accuracy: dataset, K_A, R, cell (both in words), accuracy; then for each model its value
        (seed mean), half (95 % interval), within_std (over the last ten logged epochs, mean over seeds), printed and
        printed_std; difference (DEQ − explicit, paired by seed), half, detectable (see `Interval`), seeds,
        printed_difference, runs (their ids), and verdict, scale and remark, by the rule of `verdict`. A printed cell
        without runs of ours has the paper's data set for its own and the verdict "not run", of no scale.
    """
    rows, ours = [], set()
    for accuracy, metric in ACCURACIES.items():
        runs = by_run(frame, metric, "test", "last_epochs")
        runs[["value", "std"]] *= 100
        for cell, group in runs.groupby(SETTING, dropna=False, sort=False):
            theirs = stands_for.get(cell[0]), *cell[1:]
            found = _named(cell, accuracy) | _ours(group) | _beside(printed, (*theirs, accuracy))
            table = pooled_table(_pairs(frame, metric, cell), scale, found["printed_difference"], remark)
            rows.append(found | table.drop(columns=["metric", "settings_found"]).iloc[0].to_dict())
            ours.add(_order(*theirs))
    for cell, _ in printed.groupby([*SETTING, "split"], dropna=False, sort=False):
        if _order(*cell[:3]) not in ours:
            idle = {"seeds": 0, "runs": "", "verdict": "not run", "scale": "", "remark": ""}
            rows.append(_named(cell, cell[3]) | _beside(printed, cell) | idle)
    # rows of a cell are in the order of the accuracies already, and sorting keeps it
    rows.sort(key=lambda row: _order(stands_for.get(row["dataset"], row["dataset"]), row["K_A"], row["R"]))
    return pd.DataFrame(rows)


def _named(cell: tuple[Any, ...], accuracy: str) -> dict[str, Any]:
    dataset, k_a, ratio = cell[:3]
    text = "balanced" if pd.isna(k_a) else f"K_A={k_a:.0f}, R={ratio:g}"
    return {"dataset": dataset, "K_A": k_a, "R": ratio, "cell": text, "accuracy": accuracy}


def _ours(runs: pd.DataFrame) -> dict[str, Any]:
    """Both models' means over the seeds of a cell, and the ids of its runs."""
    found: dict[str, Any] = {"runs": " ".join(sorted(runs["run_id"]))}
    for mean in over_seeds(runs).itertuples():
        found |= {f"{mean.model}_{name}": getattr(mean, name) for name in ("value", "half", "within_std")}
    return found


def _pairs(frame: pd.DataFrame, metric: str, cell: tuple[Any, ...]) -> Pairs | None:
    """Both networks in one setting; None where only one of them was run."""
    same = setting(frame, cell[0], None if pd.isna(cell[1]) else cell[1], cell[2])
    try:
        return pairs(same, metric, "test", "last_epochs")
    except NotMeasured:
        return None


def _order(dataset: str | None, k_a: float, ratio: float) -> tuple[Any, ...]:
    """The paper's order: its data sets, balanced first, then by K_A and R."""
    return dataset, *((False, 0.0) if pd.isna(k_a) else (True, float(k_a))), ratio


def _beside(printed: pd.DataFrame, cell: tuple[Any, ...]) -> dict[str, float | None]:
    """The printed columns of one cell and accuracy; empty where the paper prints none."""
    dataset, k_a, ratio, accuracy = cell
    same = (printed["dataset"] == dataset) & (printed["split"] == accuracy) & (printed["R"] == ratio)
    theirs = printed[same & (printed["K_A"].isna() if pd.isna(k_a) else printed["K_A"] == k_a)].set_index("model")
    found: dict[str, float | None] = {}
    for model, (name, value) in product(("explicit", "deq"), {"printed": "mean", "printed_std": "std"}.items()):
        found[f"{model}_{name}"] = theirs[value].get(model, np.nan)
    both = {"explicit", "deq"} <= set(theirs.index)
    return found | {"printed_difference": round(found["deq_printed"] - found["explicit_printed"], 2) if both else None}


def accuracy_display(table: pd.DataFrame, stands_for: Mapping[str, str]) -> pd.DataFrame:
    """`accuracy_table` as people read it: of both models ours ± within [± 95 % interval] beside the printed value, the
    difference beside the printed one, the smallest one that these seeds would find in 80 % of the cases
    (detectable), and verdict, scale and remark. What was not run reads so."""

    def text(pattern: str, *names: str) -> list[str]:
        rows = zip(*[table[name] if name in table else pd.Series(np.nan, table.index) for name in names], strict=True)
        return [pattern.format(*row).replace("nan", "–") if pd.notna(row[0]) else "–" for row in rows]

    idle = table["verdict"] == "not run"
    own = table["dataset"].where(~idle, "–")
    shown: dict[str, Any] = {"data": own, "stands for": own.map(stands_for).fillna(table["dataset"].where(idle, "–"))}
    if table["K_A"].notna().any():
        shown |= {name: text("{:.0f}", name) for name in ("K_A", "R")} | {"accuracy": table["accuracy"]}
    for model, label in (("explicit", "ResNet-18"), ("deq", "DEQ")):
        ours = text("{:.2f} ± {:.2f} [± {:.2f}]", f"{model}_value", f"{model}_within_std", f"{model}_half")
        shown[f"{label}, ours ± within [95 %]"] = ours
        shown[f"{label}, the paper"] = text("{:.2f} ± {:.2f}", f"{model}_printed", f"{model}_printed_std")
    shown["DEQ − ResNet-18 [95 %]"] = text("{:+.2f} [± {:.2f}]", "difference", "half")
    shown["detectable difference"] = text("{:.1f}", "detectable")
    shown["difference in the paper"] = text("{:+.2f}", "printed_difference")
    return pd.DataFrame(shown | {name: table[name] for name in VERDICT_COLUMNS})


def draw_differences(table: pd.DataFrame, accuracy: str, ax: Axes) -> Axes:
    """DEQ − ResNet-18 in percentage points, a line for each cell that was run: ours as dots with 95 % intervals over
    seeds, the paper's as diamonds.

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
    plots.forest(
        rows.assign(row=names, value=rows["difference"], model="deq", note=np.where(both_zero, "both 0 %", "")),
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
