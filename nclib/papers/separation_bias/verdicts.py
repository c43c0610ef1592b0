"""The paper's claims judged: its theory from computed tables, its experiments from trainings.

Texts are in two tables beside this file: `statements.csv` for the theory, `claims.csv` for every
trained comparison, stated before the runs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.compare import Interval, Verdict, interval, verdict
from nclib.papers.separation_bias.diagonal import gotu_diagonal
from nclib.papers.separation_bias.experiments import MORE_SEEDS, STEEP_DIMENSIONS
from nclib.papers.separation_bias.regression import LAST_ITERATION
from nclib.papers.separation_bias.results import RECURRENT, count_of_seeds
from nclib.papers.separation_bias.steep import NETWORKS

LEDGER = [
    "place", "part", "claim", "reading", "evidence", "rule", "verdict", "scale", "remark",
    "certificate", "computed",
]  # fmt: skip
"""Columns of a table of verdicts.

place : where the paper, its captions or its discussion say it
part : "statement", what the paper says; "beyond the paper", what has a target, constraint,
    threshold or setting of ours
reading : "as printed", or "ours" where a choice of ours decides what is tested
scale : of `nclib.compare.SCALES`, "toy" for trainings of ours; "" for what is computed
remark : costs, conditions, and what is ours
certificate : id for ``nclib certify``, where there is one
computed : from what, "exact" or "trained, n seeds"
"""

Row = dict[str, str]


# --- the theory -----------------------------------------------------------------------------------


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(__file__).with_name(name), keep_default_na=False)


STATEMENTS: dict[str, Row] = _read("statements.csv").set_index("name").to_dict("index")
"""The statements of the theory by name: columns of `LEDGER` that no table decides."""


def separation_ledger(eps: float = 0.05, **tables: pd.DataFrame) -> pd.DataFrame:
    """Verdicts on the statements of the theory, from its tables; those left out are not judged.

    Parameters
    ----------
    eps : the error that the table `steep` was made for
    tables : regions, networks, steep, trials, density and gotu, made by `regions_table`,
        `random_fnn_table`, `steep_table`, `flow_trials` (of both signs one after the other),
        `density_table` and `gotu_table`

    Returns
    -------
    DataFrame
        With the columns `LEDGER`. Verdicts: "holds", in every case computed; "holds if …", exactly
        where the condition is met; "typo", a misprint, with its correction as remark; "not shown",
        where a case computed here fails; "reported", numbers without a verdict. "False" is never
        said: nothing of the paper itself is at hand.
    """
    judges: dict[str, Callable[[pd.DataFrame], list[Row]]] = {
        "regions": _judge_regions,
        "networks": _judge_networks,
        "steep": lambda table: _judge_steep(table, eps),
        "trials": _judge_flows,
        "density": _judge_density,
        "gotu": _judge_gotu,
    }
    rows = []
    for name, table in tables.items():
        rows += judges[name](table)
    return pd.DataFrame(rows, columns=LEDGER)


def _row(name: str, evidence: str, word: str, **numbers: object) -> Row:
    """The row of a statement, with these numbers in its texts."""
    texts = {column: text.format(**numbers) for column, text in STATEMENTS[name].items()}
    return texts | {"evidence": evidence, "verdict": word, "scale": "", "computed": "exact"}


def _holds(condition: bool) -> str:
    return "holds" if condition else "not shown"


def _judge_regions(regions: pd.DataFrame) -> list[Row]:
    counted = regions.dropna(subset=["regions"])
    all_equal = (counted["regions"] == 2.0 ** counted["m"]).all()
    levels = ", ".join(str(m) for m in counted["m"])
    counts = f"regions = 2^m for m = {levels}" if all_equal else "counts differ from 2^m"
    most = (regions["iterations"] - regions["m"]).max()
    residual = regions["residual"].max()
    changes = regions["restart"].any()
    restart = "changes z*" if changes else "changes nothing"
    error = regions["sawtooth_error"].max()
    return [
        _row("regions", counts, _holds(all_equal)),
        _row(
            "iterations",
            f"iterations − m at most {most}, residual {residual:g}",
            _holds(most <= 0 and residual == 0),
        ),
        _row("restart", f"one more iteration from z* {restart}", _holds(not changes)),
        _row("sawtooth", f"largest error {error:g}", _holds(error == 0)),
    ]


def _judge_networks(networks: pd.DataFrame) -> list[Row]:
    margin = networks["margin"].min()
    share = (networks["most"] / networks["bound"]).max()
    evidence = (
        f"{len(networks)} shapes; least distance beyond the bound {margin:.3f}; "
        f"pieces at most {share:.2f} of (k+1)^H"
    )
    return [_row("networks", evidence, _holds(margin >= -1e-9 and share <= 1))]


def _judge_steep(steep: pd.DataFrame, eps: float) -> list[Row]:
    first = steep.iloc[0]
    last = steep.iloc[-1]
    growths = {name: last[f"{name}_weight"] / first[f"{name}_weight"] for name in NETWORKS}
    rows = []
    for name, slack in (("triangular", 0.0), ("scalar", 2e-4)):
        error = steep[f"{name}_error"].max()
        weight = steep[f"{name}_weight"].max()
        growth = growths[name]
        evidence = (
            f"sup error at most {error:.4f}, weight at most {weight:.3g}, "
            f"its growth over d {growth:.2f}"
        )
        is_close = error <= eps + slack + 1e-12
        is_bounded = weight <= 1 / eps + 1 and growth <= 1.3
        rows.append(_row(name, evidence, _holds(is_close and is_bounded), eps=eps))

    evidence = (
        f"built weights grow by {growths['fnn']:.0f}; lower bound {first['fnn_bound']:.1f} to "
        f"{last['fnn_bound']:.0f}, built {last['fnn_weight']:.0f}"
    )
    is_above = (steep["fnn_bound"] <= steep["fnn_weight"]).all()
    rows.append(_row("fnn", evidence, _holds(is_above and growths["fnn"] >= 100)))

    error = steep["scalar_error"].max()
    evidence = f"15 bisections on [−½, 3/2] leave 2^−15; sup error {error:.4f}"
    word = _holds(error <= eps + 2e-4)
    rows.append(_row("bisections", evidence, word, first=first, last=last))
    return rows


def _judge_flows(trials: pd.DataFrame) -> list[Row]:
    rows = []
    for signs, group in trials.groupby("signs", sort=False):
        evidence = f"largest |flow − minimum| {group['gap'].max():.0e} in {len(group)} trials"
        is_minimum = (group["gap"] <= 1e-8).all() and (group["rise"] > 0).all()
        rows.append(_row(signs, evidence, _holds(is_minimum)))
    # The post is about negative entries, which trials of mixed signs have.
    mixed = trials[trials["signs"] == "mixed"]
    plus = mixed["plus"].max()
    minus = mixed["minus"].min()
    evidence = f"null-space gradient of Q at the limit: + {plus:.0e}, − {minus:.1f}"
    is_misprint = plus <= 1e-8 < minus
    rows.append(_row("sign", evidence, "typo" if is_misprint else "not shown"))
    return rows


def _judge_density(density: pd.DataFrame) -> list[Row]:
    mean = density.set_index(["model", "beta0"])["mean"]
    network = mean["network"]
    minimum_norm = mean["min-norm"].iloc[0]
    deq = mean["deq"]
    dense_starts = deq.index[deq > 2 * network[1e-3]]
    if len(dense_starts) > 0:
        found = f"above our threshold from β(0) = {dense_starts.min():g} on"
    else:
        found = "below our threshold at every start"
    of_starts = ", ".join(f"β(0) = {start:g}: {value:.2f}" for start, value in deq.items())
    evidence = (
        f"{of_starts}; diagonal network {network[1e-3]:.2f} (1e-3), {network[1e-1]:.2f} (0.1); "
        f"minimum norm {minimum_norm:.2f}"
    )
    return [_row("density", evidence, "reported", found=found)]


def _judge_gotu(gotu: pd.DataFrame) -> list[Row]:
    wins = gotu["deq"] < gotu["network"]
    wins_with_feature = gotu["deq_bias_feature"] < gotu["network"]
    as_predicted = wins == gotu["predicted"]
    evidence = (
        f"the DEQ is better in {wins.sum()} of {len(gotu)} cases, as 0 < β_k < 2 f̂_k predicts in "
        f"{as_predicted.sum()}; with the bias as a feature in {wins_with_feature.sum()}"
    )
    if wins.all():
        word = "holds"
    elif as_predicted.all():
        word = "holds if 0 < β_k < 2 f̂_k"
    else:
        word = "not shown"
    deq = gotu_diagonal(0, 2, "deq", 1.0).gotu
    network = gotu_diagonal(0, 2, "network", 1.0).gotu
    small_deq = gotu_diagonal(0, 2, "deq", 1e-2).gotu
    small_network = gotu_diagonal(0, 2, "network", 1e-6).gotu
    starts = (
        f"f̂ = (0, 2), both from β(0) = 1: {deq:.3f} and {network:.3f}; "
        f"DEQ from 0.01 {small_deq:.2f}, network from 1e-6 {small_network:.2f}"
    )
    return [_row("gotu", evidence, word), _row("gotu_starts", starts, "reported")]


# --- the trainings --------------------------------------------------------------------------------

_CLAIMS = _read("claims.csv")
_CLAIMS["rivals"] = _CLAIMS["rivals"].str.split(" | ", regex=False)
CLAIMS = tuple(_CLAIMS.itertuples(index=False))
"""Every trained comparison. Widths, budgets and starts are ours.

`arm` is compared with the best of `rivals`; `metric` is one of `regression_table`, and lower is
better, except for snr, density and heat. `ours` says what of it is ours and not the paper's: with
an entry the row is "beyond the paper".
"""
HIGHER_IS_BETTER = ("snr", "density", "heat")
UNITS = {"mse": " decades", "snr": " dB"}
UNLEARNED = 0.9 / 12
"""Test error of a sawtooth above which nothing was learned; the constant predictor has 1/12."""
SELF_LOOPS = "DEQ-10, self-loops"
SCALED_FNN = "FNN 20×L3, scaled"


def trained_ledger(table: pd.DataFrame, notebook: str | None = None) -> pd.DataFrame:
    """Verdicts on the trained comparisons of `CLAIMS`.

    Each is a paired 95 % t-interval over seeds of DEQ − best rival of that seed, in decades for
    errors, in dB for snr, plain for density and heat, judged by `nclib.verdict` at toy scale:
    widths, budgets and starts are ours in every row. What is beyond the paper is "higher", "lower"
    or "not significant". "Reported" are fewer than three seeds, or than `MORE_SEEDS` asks for, and
    a sawtooth on which no arm is below 0.9/12.

    Parameters
    ----------
    table : of `regression_table`, rows of all tasks wanted; claims about others are left out
    notebook : only the claims of this one

    Returns
    -------
    DataFrame with the columns of `LEDGER`
    """
    rows = []
    for claim in CLAIMS:
        of_task = table[table["task"] == claim.task]
        arms_are_there = {claim.arm, *claim.rivals} <= set(of_task["model"])
        if notebook in (None, claim.notebook) and arms_are_there:
            rows.append(_judge_training(claim, of_task))
    if notebook in (None, "theorem2_steep"):
        rows += _judge_weights(table)
    return pd.DataFrame(rows, columns=LEDGER)


def _trained_row(
    place: str,
    claim: str,
    evidence: str,
    rule: str,
    word: str,
    seeds: int,
    remarks: Sequence[str],
    ours: str,
) -> Row:
    remark = "; ".join(text for text in (*remarks, ours) if text)
    return {
        "place": place,
        "part": "beyond the paper" if ours else "statement",
        "claim": claim,
        "reading": "ours" if ours else "as printed",
        "evidence": evidence,
        "rule": rule,
        "verdict": word,
        "scale": "toy",
        "remark": remark,
        "certificate": "",
        "computed": f"trained, {count_of_seeds(seeds)}",
    }


def _judge_training(claim: Any, table: pd.DataFrame) -> Row:
    """The row of one claim, from the runs of its task."""
    higher_is_better = claim.metric in HIGHER_IS_BETTER
    values = table.pivot_table(index="seed", columns="model", values=claim.metric)
    ours = values[claim.arm]
    rivals = values[list(claim.rivals)]
    best = rivals.max(axis=1) if higher_is_better else rivals.min(axis=1)
    difference = interval(np.log10(ours / best) if claim.metric == "mse" else ours - best)
    said = _verdict_of(claim, values, difference, higher_is_better)

    runs = table[table["model"] == claim.arm]
    remarks = [said.remark]
    if said.word in ("higher", "lower") and claim.metric in ("mse", "snr"):
        is_better = (said.word == "higher") == higher_is_better
        remarks.append("DEQ better" if is_better else "DEQ worse")
    if (runs["equilibrium"] == RECURRENT).any():
        remarks.append("not an equilibrium: a weight-tied recurrent network")

    flops = table.groupby("model")["flops"].first()
    rival_flops = ", ".join(f"{flops[name]:.3g}" for name in claim.rivals)
    evidence = (
        f"{claim.arm} {_mean_and_range(ours)}, best rival {_mean_and_range(best)}; "
        f"difference {difference}{UNITS.get(claim.metric, '')}; "
        f"FLOPs {runs['flops'].mean():.3g} and {rival_flops}"
    )
    if runs["residual"].notna().any():
        at_end = runs["residual"].mean()
        at_300 = runs[f"residual_{LAST_ITERATION}"].mean()
        evidence += f"; residual {at_end:.1e}, after {LAST_ITERATION} {at_300:.1e}"
    rule = "paired interval over seeds beside 0"
    return _trained_row(
        claim.place, claim.claim, evidence, rule, said.word, difference.n, remarks, claim.ours
    )


def _verdict_of(
    claim: Any, values: pd.DataFrame, difference: Interval, higher_is_better: bool
) -> Verdict:
    if difference.n < MORE_SEEDS.get(claim.task, 0):
        return Verdict("reported", "toy", count_of_seeds(difference.n))
    least_error = values[[claim.arm, *claim.rivals]].mean().min()
    if claim.task.startswith("sawtooth") and least_error > UNLEARNED:
        return Verdict("reported", "toy", "no network here learns this target")
    if claim.ours:
        return verdict(difference, "toy")
    return verdict(difference, "toy", "higher" if higher_is_better else "lower")


def _mean_and_range(values: pd.Series) -> str:
    return f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})"


def _judge_weights(table: pd.DataFrame) -> list[Row]:
    """Figure 4: how the largest trained weight grows with d.

    Ratios of geometric means over seeds.
    """
    is_steep = table["task"].str.startswith("steep")
    runs = table[is_steep & table["model"].isin([SELF_LOOPS, SCALED_FNN])]
    runs = runs.assign(d=runs["task"].str.removeprefix("steep-d").astype(int))
    first = STEEP_DIMENSIONS[0]
    last = STEEP_DIMENSIONS[-1]
    if not {first, last} <= set(runs["d"]):
        return []
    logs = np.log(runs.set_index(["model", "d", "seed"])[["largest", "rebalanced"]])
    typical = np.exp(logs.groupby(["model", "d"]).mean())
    growth = typical.xs(last, level="d") / typical.xs(first, level="d")
    deq_growth = growth["largest"][SELF_LOOPS]
    fnn_growth = growth["largest"][SCALED_FNN]
    balanced_growth = growth["rebalanced"][SCALED_FNN]
    errors = runs.groupby(["model", "d"])["mse"].mean()
    ratio = errors[SELF_LOOPS] / errors[SCALED_FNN]

    seeds = runs["seed"].nunique()
    ours = next(claim.ours for claim in CLAIMS if claim.arm == SELF_LOOPS)

    def reported(claim: str, evidence: str, rule: str, met: bool) -> Row:
        remark = f"{'met' if met else 'not met'} in the mean of {count_of_seeds(seeds)}"
        return _trained_row(
            "Figure 4",
            f"our g: {claim}",
            evidence,
            f"our threshold: {rule}",
            "reported",
            seeds,
            [remark],
            f"our threshold, {ours}",
        )

    return [
        reported(
            "the DEQ's weights stay, the FNN's grow",
            f"d = {first} to {last}: DEQ ×{deq_growth:.2f}, FNN ×{fnn_growth:.0f}, "
            f"rebalanced ×{balanced_growth:.0f}",
            "FNN by more than 100, DEQ by less than 3",
            fnn_growth > 100 and deq_growth < 3,
        ),
        reported(
            "at comparable loss",
            f"mean squared error, DEQ over FNN: {ratio.min():.2g} to {ratio.max():.2g} over d",
            "within a factor of 3 at every d",
            ((ratio > 1 / 3) & (ratio < 3)).all(),
        ),
    ]
