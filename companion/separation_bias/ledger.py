"""Verdicts on the theory of Wu et al. (2024), from the tables of `regions`, `steep`, `diagonal` and `gotu`."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from companion.separation_bias.gotu import gotu_diagonal

LEDGER = ["place", "part", "claim", "reading", "evidence", "rule", "verdict", "scale", "remark", "certificate"]
LEDGER += ["computed"]
"""Columns of a table of verdicts.

place : where the paper, its captions or its discussion say it
part : "statement", what the paper says; "beyond the paper", what has a target, constraint, threshold or setting of ours
reading : "as printed", or "ours" where a choice of ours decides what is tested
scale : of `nclib.system.words`, "toy" for trainings of ours; "" for what is computed
remark : costs, conditions, and what is ours
certificate : id for ``nclib certify``, where there is one
computed : from what, "exact", "trained, n seeds" or "reported, n seeds"
"""
STATEMENT, BEYOND = "statement", "beyond the paper"
PRINTED, OURS = "as printed", "ours"


def row(place: str, claim: str, evidence: str, rule: str, verdict: str | bool, **more: str) -> dict[str, str]:
    """A row with the columns `LEDGER`: by default a statement as printed, judged exactly. The verdicts True and False
    are "holds" and "not shown"."""
    said = verdict if isinstance(verdict, str) else "holds" if verdict else "not shown"
    usual = dict.fromkeys(LEDGER, "") | dict(part=STATEMENT, reading=PRINTED, computed="exact")
    return usual | dict(place=place, claim=claim, evidence=evidence, rule=rule, verdict=said) | more


def separation_ledger(eps: float = 0.05, **tables: pd.DataFrame) -> pd.DataFrame:
    """Verdicts on what the theory says, from its tables; those left out are not judged.

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
    judges = {
        "regions": _regions,
        "networks": _networks,
        "steep": lambda table: _steep(table, eps),
        "trials": _flows,
        "density": _density,
        "gotu": _gotu,
    }
    rows = [judged for name, table in tables.items() for judged in judges[name](table)]
    return pd.DataFrame(rows, columns=LEDGER)


def _regions(regions: pd.DataFrame) -> Iterator[dict[str, str]]:
    counted = regions.dropna(subset=["regions"])
    same = bool((counted["regions"] == 2.0 ** counted["m"]).all())
    evidence = f"regions = 2^m for m = {', '.join(map(str, counted['m']))}" if same else "counts differ from 2^m"
    rule = "equal at every m counted"
    yield row("Proposition 1", "a DEQ of width m has 2^m linear regions", evidence, rule, same, certificate="wu_prop1")
    within = bool((regions["iterations"] <= regions["m"]).all() and (regions["residual"] == 0).all())
    most = (regions["iterations"] - regions["m"]).max()
    evidence = f"iterations − m at most {most}, residual {regions['residual'].max():g}"
    claim = "plain iteration from 0 ends after at most m steps"
    where = dict(certificate="wu_thm1_iterations")
    yield row("Theorem 1, rebuttal", claim, evidence, "at most m, residual exactly 0", within, **where)
    restart = not regions["restart"].any()
    evidence = f"one more iteration from z* {'changes nothing' if restart else 'changes z*'}"
    claim = "one iteration is enough from z*"
    yield row("Theorem 1, rebuttal", claim, evidence, "nothing changes at any m", restart, **where)
    error = regions["sawtooth_error"].max()
    where = dict(reading=OURS, part=BEYOND, certificate="wu_prop1", remark="our read-out and our pass-through neuron")
    claim = "our sawtooth: width m + 1 gives T^m"
    yield row("Theorem 1", claim, f"largest error {error:g}", "exactly 0", bool(error == 0), **where)


def _networks(networks: pd.DataFrame) -> Iterator[dict[str, str]]:
    evidence = f"{len(networks)} shapes; least distance beyond the bound {networks['margin'].min():.3f}"
    evidence += f"; pieces at most {(networks['most'] / networks['bound']).max():.2f} of (k+1)^H"
    holds = bool((networks["margin"] >= -1e-9).all() and (networks["most"] <= networks["bound"]).all())
    remark = "our bound ¼(1 − (P−1)/2^(m−1)), proved tooth by tooth; the theorem's constant is not at hand"
    rule, claim = "no random network violates the bound", "our sawtooth T^m: few pieces cannot approximate it"
    yield row("Theorem 1", claim, evidence, rule, holds, reading=OURS, part=BEYOND, remark=remark)


def _steep(steep: pd.DataFrame, eps: float) -> Iterator[dict[str, str]]:
    ours = dict(reading=OURS, remark="eq. (5) is not at hand; the theorem says that a g exists, ours is δ/(1 + δ − x₁)")
    exact = dict(certificate="wu_thm2")
    for name, slack in (("triangular", 0.0), ("scalar", 2e-4)):
        error, weight = steep[f"{name}_error"].max(), steep[f"{name}_weight"]
        ratio = weight.iloc[-1] / weight.iloc[0]
        evidence = f"sup error at most {error:.4f}, weight at most {weight.max():.3g}, its growth over d {ratio:.2f}"
        rule = f"error ≤ {eps:g}{' + 2e-4' if slack else ''}, weights ≤ 1/ε + 1, growth ≤ 1.3"
        holds = bool(error <= eps + slack + 1e-12 and (weight <= 1 / eps + 1).all() and ratio <= 1.3)
        claim = f"our g: a DEQ of bounded weights is ε-close ({name})"
        yield row("Theorem 2", claim, evidence, rule, holds, **ours, **({} if slack else exact))
    bound, weight = steep["fnn_bound"], steep["fnn_weight"]
    growth = weight.iloc[-1] / weight.iloc[0]
    evidence = f"built weights grow by {growth:.0f}; lower bound {bound.iloc[0]:.1f} to {bound.iloc[-1]:.0f}, "
    evidence += f"built {weight.iloc[-1]:.0f}"
    rule, holds = "growth ≥ 100 and the bound below what was built", bool((bound <= weight).all()) and growth >= 100
    claim = "our g: one hidden layer needs weights that grow like 2^(d/2)"
    yield row("Theorem 2", claim, evidence, rule, bool(holds), **ours, **exact)
    error, (first, last) = steep["scalar_error"].max(), (steep.iloc[0], steep.iloc[-1])
    evidence = f"15 bisections on [−½, 3/2] leave 2^−15; sup error {error:.4f}"
    claim = "our g: log₂(1/tolerance) + log₂(b − a) bisections find the scalar fixed point"
    remark = f"plain iteration of our amplifier takes {first['picard_steps']:.0f} steps at d = {first['d']:.0f} and "
    remark += f"{last['picard_steps']:.1e} at d = {last['d']:.0f}"
    rule, near = "error ≤ ε + 2e-4", bool(error <= eps + 2e-4)
    yield row("Theorem 2, rebuttal", claim, evidence, rule, near, reading=OURS, remark=remark)


def _flows(trials: pd.DataFrame) -> Iterator[dict[str, str]]:
    for signs, group in trials.groupby("signs", sort=False):
        evidence = f"largest |flow − minimum| {group['gap'].max():.0e} in {len(group)} trials"
        rule = "below 1e-8, and Q rises under every feasible perturbation"
        holds = bool((group["gap"] <= 1e-8).all() and (group["rise"] > 0).all())
        place, claim = "Theorem 3", f"gradient flow ends at the minimum of Q, with the plus, {signs} entries"
        if signs == "positive":
            yield row(place, claim, evidence, rule, holds, certificate="wu_thm3_sign")
            continue
        yield row(f"{place}, rebuttal", claim, evidence, rule, holds, certificate="wu_thm3_sign")
        plus, minus = group["plus"].max(), group["minus"].min()
        evidence = f"null-space gradient of Q at the limit: + {plus:.0e}, − {minus:.1f}"
        slip = bool(plus <= 1e-8 < minus)
        yield row(
            f"{place}, rebuttal",
            "q_i(x) = 1/(2x²) − β_i(0)^−3 x for β_i(0) < 0",
            evidence,
            "a typo where the minus is not stationary and the plus is, within 1e-8",
            "typo" if slip else "not shown",
            remark="in a discussion post, not in the theorem: true for x = |β_i|; for x = β_i the sign is +",
            certificate="wu_thm3_sign",
        )


def _density(density: pd.DataFrame) -> Iterator[dict[str, str]]:
    found = density.set_index(["model", "beta0"])["mean"]
    sparse, least = found["network", 1e-3], found["min-norm"].iloc[0]
    deq = found["deq"]
    dense = [start for start in deq.index if deq[start] > 2 * sparse]
    evidence = ", ".join(f"β(0) = {start:g}: {value:.2f}" for start, value in deq.items())
    evidence += f"; diagonal network {sparse:.2f} (1e-3), {found['network', 1e-1]:.2f} (0.1); minimum norm {least:.2f}"
    remark = f"above our threshold from β(0) = {min(dense):g} on" if dense else "below our threshold at every start"
    where = dict(reading=OURS, part=BEYOND, remark=f"{remark}; the paper names no number")
    rule = "our threshold: participation ratio above twice the network's from 1e-3"
    yield row("Density", "the bias of a diagonal DEQ is dense", evidence, rule, "reported", **where)


def _gotu(gotu: pd.DataFrame) -> Iterator[dict[str, str]]:
    wins = gotu["deq"] < gotu["network"]
    evidence = f"the DEQ is better in {int(wins.sum())} of {len(gotu)} cases, as 0 < β_k < 2 f̂_k predicts in "
    evidence += f"{int((wins == gotu['predicted']).sum())}; with the bias as a feature in "
    evidence += f"{int((gotu['deq_bias_feature'] < gotu['network']).sum())}"
    as_predicted = bool((wins == gotu["predicted"]).all())
    said = "holds" if wins.all() else "holds if 0 < β_k < 2 f̂_k" if as_predicted else "not shown"
    rule = "better in every case; else exactly where predicted"
    claim = "our plain bias and natural starts: the diagonal DEQ generalises better on the unseen half"
    remark = "our condition; those of the theorem are not at hand"
    where = dict(reading=OURS, part=BEYOND)
    yield row("GOTU theorem", claim, evidence, rule, said, remark=remark, certificate="wu_gotu", **where)
    both = [gotu_diagonal(0, 2, model, 1.0).gotu for model in ("deq", "network")]
    small = [gotu_diagonal(0, 2, model, start).gotu for model, start in (("deq", 1e-2), ("network", 1e-6))]
    evidence = f"f̂ = (0, 2), both from β(0) = 1: {both[0]:.3f} and {both[1]:.3f}; DEQ from 0.01 {small[0]:.2f}, "
    evidence += f"network from 1e-6 {small[1]:.2f}"
    remark = "equal starts give nearly equal errors; the authors too say that the start influences the bias"
    rule = "both models from equal starts"
    claim = "our control: the advantage of the model apart from its start"
    yield row("GOTU theorem, control", claim, evidence, rule, "reported", remark=remark, **where)
