"""The paper's claims judged: its theory from tables of `constructions` and `diagonal`, its experiments from finished
trainings, of which tables are made here too."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nclib.compare import Verdict, interval, verdict
from nclib.config import run_id
from nclib.papers.separation_bias.constructions import NETWORKS
from nclib.papers.separation_bias.diagonal import gotu_diagonal
from nclib.papers.separation_bias.experiments import MORE_SEEDS, STEEP_DIMENSIONS
from nclib.papers.separation_bias.regression import EQUILIBRIUM, LAST_ITERATION, RegressionConfig

LEDGER = ["place", "part", "claim", "reading", "evidence", "rule", "verdict", "scale", "remark", "certificate"]
LEDGER += ["computed"]
"""Columns of a table of verdicts.

place : where the paper, its captions or its discussion say it
part : "statement", what the paper says; "beyond the paper", what has a target, constraint, threshold or setting of ours
reading : "as printed", or "ours" where a choice of ours decides what is tested
scale : of `nclib.compare.SCALES`, "toy" for trainings of ours; "" for what is computed
remark : costs, conditions, and what is ours
certificate : id for ``nclib certify``, where there is one
computed : from what, "exact", "trained, n seeds" or "reported, n seeds"
"""


def row(place: str, claim: str, evidence: str, rule: str, verdict: str | bool, **more: str) -> dict[str, str]:
    """A row with the columns `LEDGER`: by default a statement as printed, judged exactly. The verdicts True and False
    are "holds" and "not shown"."""
    said = verdict if isinstance(verdict, str) else "holds" if verdict else "not shown"
    usual = dict.fromkeys(LEDGER, "") | dict(part="statement", reading="as printed", computed="exact")
    return usual | dict(place=place, claim=claim, evidence=evidence, rule=rule, verdict=said) | more


BEYOND = {"reading": "ours", "part": "beyond the paper"}


# --- the theory ---------------------------------------------------------------------------------------------------

_TEXTS = pd.read_csv(Path(__file__).with_name("statements.csv"), index_col="name", keep_default_na=False)
_STATEMENTS = _TEXTS.to_dict("index")
"""The statements of the theory by name, each a row of `statements.csv`: columns of `LEDGER` that no table decides."""


def separation_ledger(eps: float = 0.05, **tables: pd.DataFrame) -> pd.DataFrame:
    """Verdicts on the statements of the theory, from its tables; those left out are not judged.

    Parameters
    ----------
    eps : the error that the table `steep` was made for
    tables : regions, networks, steep, trials, density and gotu, made by `regions_table`, `random_fnn_table`,
        `steep_table`, `flow_trials` (of both signs one after the other), `density_table` and `gotu_table`

    Returns
    -------
    DataFrame with the columns `LEDGER`. Verdicts: "holds", in every case computed; "holds if …", exactly where the
    condition is met; "typo", a misprint, with its correction as remark; "not shown", where a case computed here fails;
    "reported", numbers without a verdict. "False" is never said: nothing of the paper itself is at hand.
    """
    judges = dict(regions=_regions, networks=_networks, trials=_flows, density=_density, gotu=_gotu)
    judges["steep"] = lambda table: _steep(table, eps)
    return pd.DataFrame([found for name, table in tables.items() for found in judges[name](table)], columns=LEDGER)


def _said(name: str, evidence: str, verdict: str | bool, **words: object) -> dict[str, str]:
    """The row of a statement, with these words in its texts."""
    texts = {column: text.format(**words) for column, text in _STATEMENTS[name].items()}
    return row(evidence=evidence, verdict=verdict, **texts)


def _regions(regions: pd.DataFrame) -> Iterator[dict[str, str]]:
    counted = regions.dropna(subset=["regions"])
    same = (counted["regions"] == 2.0 ** counted["m"]).all()
    evidence = f"regions = 2^m for m = {', '.join(map(str, counted['m']))}" if same else "counts differ from 2^m"
    yield _said("regions", evidence, same)
    most, residual = (regions["iterations"] - regions["m"]).max(), regions["residual"].max()
    evidence = f"iterations − m at most {most}, residual {residual:g}"
    yield _said("iterations", evidence, most <= 0 and residual == 0)
    restart = not regions["restart"].any()
    yield _said("restart", f"one more iteration from z* {'changes nothing' if restart else 'changes z*'}", restart)
    error = regions["sawtooth_error"].max()
    yield _said("sawtooth", f"largest error {error:g}", error == 0)


def _networks(networks: pd.DataFrame) -> Iterator[dict[str, str]]:
    margin, share = networks["margin"].min(), (networks["most"] / networks["bound"]).max()
    evidence = f"{len(networks)} shapes; least distance beyond the bound {margin:.3f}"
    evidence += f"; pieces at most {share:.2f} of (k+1)^H"
    yield _said("networks", evidence, margin >= -1e-9 and share <= 1)


def _steep(steep: pd.DataFrame, eps: float) -> Iterator[dict[str, str]]:
    first, last = steep.iloc[0], steep.iloc[-1]
    growths = {name: last[f"{name}_weight"] / first[f"{name}_weight"] for name in NETWORKS}
    for name, slack in (("triangular", 0.0), ("scalar", 2e-4)):
        error, weight, growth = steep[f"{name}_error"].max(), steep[f"{name}_weight"].max(), growths[name]
        evidence = f"sup error at most {error:.4f}, weight at most {weight:.3g}, its growth over d {growth:.2f}"
        holds = error <= eps + slack + 1e-12 and weight <= 1 / eps + 1 and growth <= 1.3
        yield _said(name, evidence, holds, eps=eps)
    evidence = f"built weights grow by {growths['fnn']:.0f}; lower bound {first['fnn_bound']:.1f} to "
    evidence += f"{last['fnn_bound']:.0f}, built {last['fnn_weight']:.0f}"
    yield _said("fnn", evidence, (steep["fnn_bound"] <= steep["fnn_weight"]).all() and growths["fnn"] >= 100)
    error = steep["scalar_error"].max()
    evidence = f"15 bisections on [−½, 3/2] leave 2^−15; sup error {error:.4f}"
    yield _said("bisections", evidence, error <= eps + 2e-4, first=first, last=last)


def _flows(trials: pd.DataFrame) -> Iterator[dict[str, str]]:
    for signs, group in trials.groupby("signs", sort=False):
        evidence = f"largest |flow − minimum| {group['gap'].max():.0e} in {len(group)} trials"
        yield _said(signs, evidence, (group["gap"] <= 1e-8).all() and (group["rise"] > 0).all())
    plus, minus = group["plus"].max(), group["minus"].min()
    evidence = f"null-space gradient of Q at the limit: + {plus:.0e}, − {minus:.1f}"
    yield _said("sign", evidence, "typo" if plus <= 1e-8 < minus else "not shown")


def _density(density: pd.DataFrame) -> Iterator[dict[str, str]]:
    found = density.set_index(["model", "beta0"])["mean"]
    sparse, least, deq = found["network", 1e-3], found["min-norm"].iloc[0], found["deq"]
    dense = deq.index[deq > 2 * sparse]
    evidence = ", ".join(f"β(0) = {start:g}: {value:.2f}" for start, value in deq.items())
    evidence += f"; diagonal network {sparse:.2f} (1e-3), {found['network', 1e-1]:.2f} (0.1); minimum norm {least:.2f}"
    above = f"above our threshold from β(0) = {dense.min():g} on"
    yield _said("density", evidence, "reported", found=above if len(dense) else "below our threshold at every start")


def _gotu(gotu: pd.DataFrame) -> Iterator[dict[str, str]]:
    wins, feature = gotu["deq"] < gotu["network"], gotu["deq_bias_feature"] < gotu["network"]
    agreed = wins == gotu["predicted"]
    evidence = f"the DEQ is better in {wins.sum()} of {len(gotu)} cases, as 0 < β_k < 2 f̂_k predicts in "
    evidence += f"{agreed.sum()}; with the bias as a feature in {feature.sum()}"
    yield _said(
        "gotu", evidence, "holds" if wins.all() else "holds if 0 < β_k < 2 f̂_k" if agreed.all() else "not shown"
    )
    starts = ("deq", 1.0), ("network", 1.0), ("deq", 1e-2), ("network", 1e-6)
    equal = [gotu_diagonal(0, 2, *start).gotu for start in starts]
    evidence = f"f̂ = (0, 2), both from β(0) = 1: {equal[0]:.3f} and {equal[1]:.3f}; DEQ from 0.01 {equal[2]:.2f}, "
    yield _said("gotu_starts", f"{evidence}network from 1e-6 {equal[3]:.2f}", "reported")


# --- the trainings ------------------------------------------------------------------------------------------------


def regression_table(configs: Sequence[RegressionConfig], frame: pd.DataFrame) -> pd.DataFrame:
    """One row a run: run_id, task, model (its label), kind, seed, adam_steps and the metrics of the finished network.

    Metrics are those of `train_regression` by their names, `mse` being that of the test points and `train_mse` of the
    training points; residual_300 and mse_300 are NaN for networks without iterations. `equilibrium` says what the
    network is: "equilibrium", "exact" (solved by substitution), "weight-tied recurrent" (residual above
    `EQUILIBRIUM` after the trained steps or after 300) or "feed-forward".

    Parameters
    ----------
    configs : of the runs wanted, in the order of the rows
    frame : tidy frame that holds them
    """
    by_run = dict(tuple(frame.groupby("run_id")))
    rows = []
    for config in dict.fromkeys(configs):
        row = {"run_id": run_id(config), "task": config.task.label(), "model": config.model.label()}
        row |= {"kind": config.model.kind, "seed": config.seed, "adam_steps": config.steps}
        last = by_run[row["run_id"]].drop_duplicates(["split", "metric"], keep="last")
        for split, metric, value in last[["split", "metric", "value"]].itertuples(index=False):
            names = {"iterations": f"{metric}_{LAST_ITERATION}", "train": metric.replace("mse", "train_mse")}
            row[names.get(split, metric)] = value
        what = {"fnn": "feed-forward", "self_loop_deq": "exact"}.get(config.model.kind)
        found = max(row.get("residual", 0.0), row.get(f"residual_{LAST_ITERATION}", 0.0)) <= EQUILIBRIUM
        rows.append(row | {"equilibrium": what or ("equilibrium" if found else "weight-tied recurrent")})
    return pd.DataFrame(rows)


def arm_names(table: pd.DataFrame) -> dict[str, str]:
    """Names for figures, label → name: a DEQ that is not at equilibrium in every seed of these rows is called a
    weight-tied recurrent network."""
    recurrent = table.loc[table["equilibrium"] == "weight-tied recurrent", "model"].unique()
    plain = {label: label for label in table["model"].unique()}
    return plain | {label: label.replace("DEQ", "weight-tied RNN") for label in recurrent}


def curve_rows(
    configs: Sequence[RegressionConfig], frame: pd.DataFrame, task: str, split: str = "test", metric: str = "mse"
) -> pd.DataFrame:
    """Values along a training, or along the iterations of trained cells (split "iterations"), of one task.

    Returns
    -------
    DataFrame with the columns model (name for figures, see `arm_names`), kind, seed, at and value
    """
    table = regression_table([config for config in configs if config.task.label() == task], frame)
    arms = table[["run_id", "kind"]].assign(model=table["model"].map(arm_names(table)))
    rows = frame.loc[(frame["split"] == split) & (frame["metric"] == metric), ["run_id", "seed", "epoch", "value"]]
    return arms.merge(rows.rename(columns={"epoch": "at"}), on="run_id")[["model", "kind", "seed", "at", "value"]]


_CSV = pd.read_csv(Path(__file__).with_name("claims.csv"), keep_default_na=False)
CLAIMS = tuple(_CSV.assign(rivals=_CSV["rivals"].str.split(" | ", regex=False)).itertuples(index=False))
"""Every trained comparison, stated before the runs: a row of `claims.csv` each. Widths, budgets and starts are ours.

`arm` is compared with the best of `rivals`; `metric` is one of `regression_table`, and lower is better, except for snr,
density and heat. `ours` says what of it is ours and not the paper's: with an entry the row is "beyond the paper".
"""
_LOOPS, _SCALED = "DEQ-10, self-loops", "FNN 20×L3, scaled"
UNLEARNED = 0.9 / 12
"""Test error of a sawtooth above which nothing was learned; the constant predictor has 1/12."""


def trained_ledger(table: pd.DataFrame, notebook: str | None = None) -> pd.DataFrame:
    """Verdicts on the trained comparisons of `CLAIMS`, from a `regression_table`.

    Each is a paired 95 % t-interval over seeds of DEQ − best rival of that seed, in decades for errors, in dB for snr,
    plain for density and heat, judged by `nclib.verdict` at toy scale: widths, budgets and starts are ours
    in every row. What is beyond the paper is "higher", "lower" or "not significant". "Reported" are fewer than three
    seeds, or than `MORE_SEEDS` asks for, and a sawtooth on which no arm is below 0.9/12.

    Parameters
    ----------
    table : rows of all tasks wanted; claims about others are left out
    notebook : only the claims of this one

    Returns
    -------
    DataFrame with the columns of `LEDGER`
    """
    rows = []
    for claim in CLAIMS:
        of_task = table[table["task"] == claim.task]
        present = set(of_task["model"])
        if notebook in (None, claim.notebook) and claim.arm in present and set(claim.rivals) <= present:
            rows.append(_judged(claim, of_task))
    if notebook in (None, "theorem2_steep"):
        rows += _judged_weights(table)
    return pd.DataFrame(rows, columns=LEDGER)


def _row(where: Sequence[str], verdict: str, seeds: int, remarks: Sequence[str], ours: str) -> dict[str, str]:
    """A row of trainings of ours; `where` is place, claim, evidence and rule. With an entry in `ours` it is beyond the
    paper."""
    more = dict(scale="toy", remark="; ".join(filter(None, (*remarks, ours))), computed=f"trained, {_seeds(seeds)}")
    return row(*where, verdict, **more, **(BEYOND if ours else {}))


def _judged(claim: Any, rows: pd.DataFrame) -> dict[str, str]:
    higher = claim.metric in ("snr", "density", "heat")
    values = rows.pivot_table(index="seed", columns="model", values=claim.metric)
    rivals, ours = values[list(claim.rivals)], values[claim.arm]
    best = rivals.max(axis=1) if higher else rivals.min(axis=1)
    found = interval(np.log10(ours / best) if claim.metric == "mse" else ours - best)
    unit = {"mse": " decades", "snr": " dB"}.get(claim.metric, "")
    arms, flops = rows[rows["model"] == claim.arm], rows.groupby("model")["flops"].first()
    text = f"{claim.arm} {_spread(ours)}, best rival {_spread(best)}; difference {found}{unit}; FLOPs "
    text += f"{arms['flops'].mean():.3g} and {', '.join(f'{flops[name]:.3g}' for name in claim.rivals)}"
    if arms["residual"].notna().any():
        text += f"; residual {arms['residual'].mean():.1e}, after {LAST_ITERATION} {arms['residual_300'].mean():.1e}"
    if found.n < MORE_SEEDS.get(claim.task, 0):
        said = Verdict("reported", "toy", _seeds(found.n))
    elif claim.task.startswith("sawtooth") and values[[claim.arm, *claim.rivals]].mean().min() > UNLEARNED:
        said = Verdict("reported", "toy", "no network here learns this target")
    else:
        said = verdict(found, "toy", None if claim.ours else "higher" if higher else "lower")
    remarks = [said.remark]
    if said.word in ("higher", "lower") and claim.metric in ("mse", "snr"):
        remarks.append(f"DEQ {'better' if (said.word == 'higher') == higher else 'worse'}")
    if (arms["equilibrium"] == "weight-tied recurrent").any():
        remarks.append("not an equilibrium: a weight-tied recurrent network")
    where = claim.place, claim.claim, text, "paired interval over seeds beside 0"
    return _row(where, said.word, found.n, remarks, claim.ours)


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _spread(values: pd.Series) -> str:
    """Mean and range over seeds."""
    return f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})"


def _judged_weights(table: pd.DataFrame) -> list[dict[str, str]]:
    """Figure 4: how the largest trained weight grows with d, as ratios of geometric means over seeds."""
    rows = table[table["task"].str.startswith("steep") & table["model"].isin([_LOOPS, _SCALED])]
    rows = rows.assign(d=rows["task"].str.removeprefix("steep-d").astype(int))
    first, last = STEEP_DIMENSIONS[0], STEEP_DIMENSIONS[-1]
    if not {first, last} <= set(rows["d"]):
        return []
    keys = ["model", "d"]
    typical = np.exp(np.log(rows.set_index([*keys, "seed"])[["largest", "rebalanced"]]).groupby(keys).mean())
    growth = (typical.xs(last, level="d") / typical.xs(first, level="d"))["largest"]
    balanced, seeds = typical["rebalanced"][_SCALED], rows["seed"].nunique()
    text = f"d = {first} to {last}: DEQ ×{growth[_LOOPS]:.2f}, FNN ×{growth[_SCALED]:.0f}, rebalanced "
    text += f"×{balanced[last] / balanced[first]:.0f}"
    errors = rows.groupby(keys)["mse"].mean()
    ratio = errors[_LOOPS] / errors[_SCALED]
    other = f"mean squared error, DEQ over FNN: {ratio.min():.2g} to {ratio.max():.2g} over d"
    steady, near = growth[_SCALED] > 100 and growth[_LOOPS] < 3, ((ratio > 1 / 3) & (ratio < 3)).all()
    ours = f"our threshold, {next(claim.ours for claim in CLAIMS if claim.arm == _LOOPS)}"

    def reported(claim: str, evidence: str, rule: str, met: bool) -> dict[str, str]:
        where = "Figure 4", f"our g: {claim}", evidence, f"our threshold: {rule}"
        return _row(where, "reported", seeds, [f"{'met' if met else 'not met'} in the mean of {_seeds(seeds)}"], ours)

    rule = "FNN by more than 100, DEQ by less than 3"
    first_row = reported("the DEQ's weights stay, the FNN's grow", text, rule, steady)
    return [first_row, reported("at comparable loss", other, "within a factor of 3 at every d", near)]


def describe_regressions(configs: Sequence[RegressionConfig]) -> str:
    """One sentence for captions: profile, tasks, budgets, seeds."""
    runs = pd.DataFrame([(c.task.label(), c.steps, c.seed) for c in configs], columns=["task", "steps", "seed"])
    tasks = runs.groupby("task", sort=False).agg({"steps": lambda steps: sorted(set(steps)), "seed": "nunique"})
    said = (f"{name} ({', '.join(map(str, s))} steps of Adam, {_seeds(n)})" for name, s, n in tasks.itertuples())
    return f"Profile {configs[0].profile}: {'; '.join(said)}."
