"""The first cells of notebooks: their numbers are those of the tracked runs, and their pictures are there.

`FINDINGS` has a row for each notebook: a function that returns pieces of text, computed from the runs and tables in
``results/reference``. Each piece must stand in the first cell. What a cell says without a number, such as "on digits
nothing is significant", the function asserts.
"""

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest
from findings_of_sister_papers import COMPUTED, STORED
from marks import slow

import nclib as nc
from nclib import paths, reproduce
from nclib.compare import Pairs, by_run, pairs
from nclib.figures import minus
from nclib.metrics import LABELS
from nclib.papers.neural_collapse import protocol2, tolerance_effect, total_collapse_budget
from nclib.store import reference_store

NC2, NC3 = "nc2_etf_distance", "nc3_self_duality"
EQ13, EQ14 = "paper_eq13_uncentred", "paper_eq14_uncentred"
FIRST, NEW = "cifar10-full", "protocol-2"
"""Tracked runs on CIFAR-10: of the first experiment, with three seeds, and of the replication, with five new ones."""
BALANCED = (0, 1)
MOST_BYTES = 4_000_000
"""Of all pictures of first cells together."""

# --- what is tracked ------------------------------------------------------------------------------------------------


@functools.cache
def runs(collection: str) -> pd.DataFrame:
    """The tidy frame of tracked runs; K_A is 0 for balanced classes."""
    listing = paths.reference() / collection / "runs.json"
    frame = reference_store().frame(sorted(json.loads(listing.read_text(encoding="utf-8"))))
    return frame.assign(K_A=frame["K_A"].fillna(0))


@functools.cache
def compared(
    collection: str, setting: tuple[int, int], metric: str, relative: bool = False
) -> Pairs:
    """Both networks in a setting (K_A, R), paired by seed: accuracy over the last ten epochs, all else, and accuracy
    after logit adjustment, at the last one."""
    frame = runs(collection)
    rows = frame[(frame["K_A"] == setting[0]) & (frame["R"] == setting[1])]
    split = "test" if metric.startswith("accuracy") else "train"
    how = "last_epochs" if split == "test" and not metric.endswith(".adjusted") else "last"
    return pairs(rows, metric, split, how, relative=relative)


def change(collection: str, setting: tuple[int, int], metric: str, digits: int = 2) -> str:
    """ResNet-18 → DEQ: "0.82 → 0.75"."""
    means = compared(collection, setting, metric).table[["explicit", "deq"]].mean()
    return f"{means['explicit']:.{digits}f} → {means['deq']:.{digits}f}"


def nc2_and_nc3(collection: str, setting: tuple[int, int]) -> list[str]:
    return [
        f"{name} {change(collection, setting, metric)}"
        for name, metric in (("NC2", NC2), ("NC3", NC3))
    ]


def percent(collection: str, setting: tuple[int, int], metric: str) -> str:
    """ "8 % lower": the mean ratio DEQ / ResNet-18, which must be significant."""
    interval = compared(collection, setting, metric, relative=True).mean_difference
    return f"{100 * abs(np.expm1(interval.mean)):.0f} % {interval.side}"


def accuracy(setting: tuple[int, int]) -> str:
    return change(FIRST, setting, "accuracy_balanced", digits=1) + " %"


def points(
    collection: str, setting: tuple[int, int], metric: str = "accuracy_balanced"
) -> tuple[str, str]:
    """ "0.8 percentage points", and their interval "0.3 to 1.2", without signs where both ends have the same one."""
    interval = compared(collection, setting, metric).mean_difference
    low, high = interval.ends()
    if high < 0:
        low, high = -high, -low
    return f"{abs(interval.mean):.1f} percentage points", minus(f"{low:.1f} to {high:.1f}")


@functools.cache
def digits() -> pd.DataFrame:
    """The scorecard of the preset quick, by the names of its rows."""
    return pd.read_csv(paths.reference() / "tables/scorecard-quick.csv").set_index("item")


def verdicts(start: str) -> dict[str, str]:
    """Verdicts of the scorecard on digits by the end of their names, which begin with `start`."""
    rows = digits()
    return {
        name.removeprefix(start): word
        for name, word in rows["verdict"].items()
        if name.startswith(start)
    }


def nothing_is_significant(start: str) -> bool:
    return set(verdicts(start).values()) <= {"not significant", "not run"}


# --- Sun & Shi, NeurIPS 2024 ----------------------------------------------------------------------------------------


def fig2() -> Iterator[str]:
    setting = (3, 10)
    yield f"NC2 {change(FIRST, setting, NC2)}"
    yield f"({change(FIRST, setting, 'nc2_equiangular')})"
    yield f"({change(FIRST, setting, 'nc1_cdnv', 3)})"
    assert not compared(FIRST, setting, NC2).mean_difference.significant
    assert nothing_is_significant("Figure 2: ")


def fig3() -> Iterator[str]:
    yield " and ".join(nc2_and_nc3(FIRST, (5, 100))) + " at 100 : 1"
    yield " and ".join(nc2_and_nc3(FIRST, BALANCED)) + " on balanced classes"
    yield "Five new seeds give " + " and ".join(nc2_and_nc3(NEW, (5, 100)))
    yield f"NC3 is {percent(FIRST, (5, 100), EQ14)} at 100 : 1"
    assert not compared(FIRST, (5, 100), EQ13).mean_difference.significant
    assert nothing_is_significant("Figure 3b: ")


def fig4() -> Iterator[str]:
    for collection in (FIRST, NEW):
        yield " and ".join(nc2_and_nc3(collection, (3, 100)))
    yield f"NC3 is {percent(FIRST, (3, 100), EQ14)}"
    yield f"turns upwards after epoch {_lowest_epoch(NC3)}"
    assert not compared(FIRST, (3, 100), EQ13).mean_difference.significant
    assert [verdicts("Figure 4: ")[LABELS[metric]] for metric in (EQ13, EQ14)] == [
        "opposite here"
    ] * 2


def _lowest_epoch(metric: str) -> int:
    """Where the mean of ResNet-18 over seeds is lowest, at K_A = 3, R = 100."""
    rows = runs(FIRST).query(
        "K_A == 3 and R == 100 and model == 'explicit' and split == 'train' and metric == @metric"
    )
    return int(rows.groupby("epoch")["value"].mean().idxmin())


def fig5() -> Iterator[str]:
    for collection in (FIRST, NEW):
        yield " and ".join(nc2_and_nc3(collection, (7, 100)))
    yield f"NC3 is {percent(FIRST, (7, 100), EQ14)}"
    assert not compared(FIRST, (7, 100), EQ13).mean_difference.significant
    assert [verdicts("Figure 5: ")[LABELS[metric]] for metric in (EQ13, EQ14, NC2, NC3)] == [
        "opposite here"
    ] * 4


def table1() -> Iterator[str]:
    yield accuracy(BALANCED)
    yield from points(FIRST, BALANCED)
    assert nothing_is_significant("Table 1: all cells")


def table2() -> Iterator[str]:
    for ratio, where in (
        (10, "at 10 : 1 (not significant)"),
        (50, "at 50 : 1"),
        (100, "at 100 : 1"),
    ):
        yield f"{accuracy((3, ratio))} {where}"
    yield f"five new seeds also give {points(NEW, (3, 100))[0]}"
    yield f"it is {points(NEW, (3, 100), 'accuracy_balanced.adjusted')[0]} less accurate"
    assert not compared(FIRST, (3, 10), "accuracy_balanced").mean_difference.significant
    assert nothing_is_significant("Table 2")
    _gains_on_minority_classes(3, (10, 50, 100))


def table3() -> Iterator[str]:
    yield f"{accuracy((5, 50))} at 50 : 1 (one seed)"
    yield f"{accuracy((5, 100))} at 100 : 1 (three seeds, not significant)"
    yield "give {}, with a 95 % interval of {}".format(*points(NEW, (5, 100)))
    yield f"the DEQ is {points(NEW, (5, 100), 'accuracy_balanced.adjusted')[0]} less accurate"
    assert not compared(FIRST, (5, 100), "accuracy_balanced").mean_difference.significant
    assert {word for name, word in verdicts("Table 3").items() if name.endswith("overall")} == {
        "not significant",
        "not run",
    }
    _gains_on_minority_classes(5, (50, 100))


def table4() -> Iterator[str]:
    yield f"{accuracy((7, 50))} at 50 : 1 (one seed)"
    yield f"{accuracy((7, 100))} at 100 : 1 (three seeds)"
    yield "give {}, with a 95 % interval of {}".format(*points(NEW, (7, 100)))
    yield f"the DEQ is {points(NEW, (7, 100), 'accuracy_balanced.adjusted')[0]} less accurate"
    for collection in (FIRST, NEW):
        assert not compared(collection, (7, 100), "accuracy_balanced").mean_difference.significant
    assert nothing_is_significant("Table 4")
    _gains_on_minority_classes(7, (50, 100))


def _gains_on_minority_classes(k_a: int, ratios: tuple[int, ...]) -> None:
    for ratio in ratios:
        minority, majority = (
            compared(FIRST, (k_a, ratio), f"accuracy_{which}") for which in ("minority", "majority")
        )
        assert minority.mean_difference.mean > 1 > majority.mean_difference.mean


def collapse() -> Iterator[str]:
    settings = {BALANCED: FIRST, (3, 10): FIRST, (3, 100): NEW, (5, 100): NEW, (7, 100): NEW}
    for name, metric in (("NC2", NC2), ("NC3", NC3)):
        cells = [change(collection, setting, metric) for setting, collection in settings.items()]
        yield f"| {name} | {' | '.join(cells)} |"
    found = protocol2.tracked_analysis()
    assert found.verdict == "supported"
    changes = found.primary.set_index("metric")["change"]
    yield minus(f"NC2 {changes[NC2]:.0f} %, NC3 {changes[NC3]:.0f} %")
    assert not any(
        compared(FIRST, (3, 10), metric).mean_difference.significant for metric in (NC2, NC3)
    )
    pooled = pd.read_csv(paths.reference() / "tables/collapse_pooled-quick.csv").set_index("metric")
    yield f"(eq. 13) is {pooled['change'][EQ13]:.0f} % higher"
    assert set(pooled["verdict"][[NC2, NC3]]) == {"not significant"}


# The following are of digits, or of nothing trained.


def fig1() -> Iterator[str]:
    network = nc.build_model(nc.ModelConfig(kind="deq", width=64), 10, 3)
    every = nc.models.count_parameters(network)
    assert every == nc.models.count_parameters(
        nc.build_model(nc.ModelConfig(kind="explicit", width=64), 10, 3)
    )
    yield f"{every / 1e6:.1f} million parameters"
    yield f"{100 * nc.models.count_parameters(network.block) / every:.0f} % of them in the last block"


def theory_layer_peeled() -> Iterator[str]:
    found = verdicts("")
    assert {found[f"Theorem 3.1, NC{number}"] for number in (1, 2, 3)} | {found["Lemma B.1"]} == {
        "holds"
    }
    (infima,) = (
        word for claim, word in found.items() if claim.startswith("Theorem B.3, read as infima")
    )
    assert (infima, found["Remark B.2"]) == ("false", "typo")
    yield "Theorem 3.1 holds"
    yield "Theorem B.3 is false"


def theory_imbalance() -> Iterator[str]:
    found = verdicts("")
    names = (
        "Theorem 4.1, NC1",
        "Theorem 4.1, NC2, for all i, j",
        "Theorem 4.1, NC3",
        "Proposition 4.2",
    )
    assert [found[name] for name in names] == [
        "holds",
        "vacuous",
        "false",
        "holds if √(E_W E_H) ≤ E0",
    ]
    first, second, third = (total_collapse_budget(10, k_a) for k_a in (3, 5, 7))
    yield f"E0 = {first:.3f}, {second:.3f} and {third:.3f} for 3, 5 and 7 majority classes"


def audit() -> Iterator[str]:
    evidence = digits()["regenerated"]
    yield evidence["Finding 1"].partition(" of the majority")[0]
    yield evidence["Finding 2"].partition(" for means")[0]
    yield f"{evidence['Finding 3'].partition(' ')[0]} are larger than ten accuracies of that mean"
    etf = nc.class_moments(nc.simplex_etf(10, 10), np.arange(10), 10)
    yield f"{nc.metrics.paper_eq13_uncentred_printed_constant(etf):.3f} instead of 0 at K = 10"


@functools.cache
def trained(name: str) -> tuple[list[nc.RunConfig], pd.DataFrame]:
    """The runs of a notebook on digits, which are tracked, and their frame."""
    configs = nc.experiment(f"neural_collapse/{name}", "quick")
    return configs, nc.ensure_runs(configs, train="never")


def recipes() -> Iterator[str]:
    configs, frame = trained("recipes")
    constant = {nc.run_id(config): config.train.schedule == "constant" for config in configs}
    ends = frame.query("split == 'test' and metric == 'accuracy_balanced' and epoch == 20")
    ends = ends.assign(stated=ends["run_id"].map(constant))
    stated, workable = (
        ends[ends["stated"] == which].groupby("model")["value"].mean() * 100
        for which in (True, False)
    )
    yield f"{stated['explicit']:.1f} % (ResNet-18) and {stated['deq']:.1f} % (DEQ)"
    yield f"{workable['explicit']:.1f} % and {workable['deq']:.1f} % (three seeds)"


def spoken(identifier: str) -> str:
    """ "+1.3 ± 2.6" of a row of the scorecard on digits."""
    row = digits().loc[identifier]
    return minus(f"{float(row['regenerated']):+.1f} ± {row['interval']:.1f}")


def controls() -> Iterator[str]:
    yield f"{spoken('controls: accuracy, DEQ − explicit matched')} percentage points"
    for accuracy in ("accuracy", "majority accuracy", "minority accuracy"):
        assert nothing_is_significant(f"controls: {accuracy}, ")
    row = digits().loc[f"controls: {LABELS[NC3]}, DEQ − explicit matched"]
    assert row["verdict"] == "higher"
    yield f"centred NC3 is {float(row['regenerated']):.2f} higher"


def equilibrium_or_cell() -> Iterator[str]:
    table = pd.read_csv(paths.reference() / "tables/equilibrium_or_cell-quick.csv").set_index(
        ["step", "metric"]
    )
    change = table["change"].abs().map("{:.0f} %".format)
    row = table.loc["DEQ / cell", "nc1_trace_ratio"]
    yield f"is {change['DEQ / explicit', 'nc1_trace_ratio']} lower for the DEQ"
    yield f"lowers it by {change['cell / explicit', 'nc1_trace_ratio']}"
    yield f"another {change['DEQ / cell', 'nc1_trace_ratio']}"
    yield f"95 % interval {-row['high']:.0f} to {-row['low']:.0f}"
    yield f"centred NC2 {change['DEQ / cell', NC2]}, NC3 {change['DEQ / cell', NC3]} higher"
    assert set(table["verdict"]["DEQ / cell"][[NC2, NC3]]) == {"higher"}


def your_own_cell() -> Iterator[str]:
    _, frame = trained("your_own_cell")
    against = {"arm": "deq", "against": "explicit_matched"}
    accuracy = pairs(frame, "accuracy_balanced", "test", "last_epochs", **against).mean_difference
    yield f"{accuracy.mean:+.1f} ± {accuracy.half:.1f} percentage points"
    others = [pairs(frame, "accuracy_minority", "test", "last_epochs", **against)]
    others += [pairs(frame, metric, **against) for metric in ("nc1_trace_ratio", NC2, NC3)]
    assert not any(
        interval.significant
        for interval in (accuracy, *(other.mean_difference for other in others))
    )


def nc_definitions() -> Iterator[str]:
    for stage in ("ReLU", "BatchNorm1d"):
        assert nothing_is_significant(f"nc definitions, {stage}: ")
    words = list(verdicts("nc definitions, GroupNorm: ").values())
    yield f"in {words.count('higher')} of {len(words)}"


def remedies() -> Iterator[str]:
    yield f"{spoken('remedies: all five, DEQ − explicit, overall accuracy')} percentage points"
    assert nothing_is_significant("remedies")


def long_tail() -> Iterator[str]:
    pooled = spoken("long tail: all R, DEQ − explicit, overall accuracy")
    yield f"{pooled.lstrip('−+')} percentage points"
    single = verdicts("long tail, ")
    yield f"none of the {len(single)} single differences"
    assert nothing_is_significant("long tail")


def seeds_and_subsets() -> Iterator[str]:
    ratios = _ratios_of_variation()
    yield f"is {ratios.min():.1f} to {ratios.max():.1f} times"
    yield f"(median {ratios.median():.1f})"
    for name, verdict in verdicts("seeds and subsets, ").items():
        assert verdict == "not significant" or "majority accuracy" in name


def _ratios_of_variation() -> pd.Series:
    """Standard deviation over seeds, over that of the last ten epochs, for each repetition, accuracy and network."""
    configs, frame = trained("seeds_and_subsets")
    groups: dict[str, list[str]] = {"weights alone": [], "weights and images": [], "all three": []}
    for config in configs:
        random, fixed = config.data.majority == "random", config.data.subset_seed is not None
        names = ["all three"] if random else ["weights alone"] if fixed else ["weights and images"]
        if config.seed == 0 and names == ["weights and images"]:
            names.append("weights alone")  # seed 0 is the first of both
        for name in names:
            groups[name].append(nc.run_id(config))
    ratios = []
    for runs_of, metric in itertools.product(
        groups.values(), ("accuracy_balanced", "accuracy_minority")
    ):
        rows = by_run(frame[frame["run_id"].isin(runs_of)], metric, "test", "last_epochs").groupby(
            "model"
        )
        ratios.append(rows["value"].std(ddof=1) / rows["std"].mean())
    return pd.concat(ratios)


def solver_and_collapse() -> Iterator[str]:
    found = digits()["regenerated"].astype(str)
    inside = "inside the solver, "
    whole = f"start → equilibrium: {LABELS[NC2]}"
    yield f"NC2 falls by {-float(found[inside + whole]):.2f}"
    once = f"one evaluation → equilibrium: {LABELS[NC2]}"
    assert verdicts(inside)[once] == "not significant"
    minority = "solver, minority − majority, test: "
    assert verdicts(minority)["evaluations"] == "higher"
    assert verdicts(minority)["not converged (%)"] == "not significant"
    yield f"need {float(found[minority + 'evaluations']):.1f} evaluations more"
    configs, frame = trained("solver_and_collapse")
    solver = configs[0].model.solver
    effects = tolerance_effect(frame, [NC2, NC3, "nc1_pinv"], "toy", solver.tol, solver.method)
    assert set(effects["verdict"]) == {"equal"}
    yield f"The tolerance of {solver.tol:.0e}".replace("e-0", "e-")


def optimisers() -> Iterator[str]:
    rows = pd.read_csv(paths.reference() / "tables/optimisers-quick.csv").set_index(
        ["network", "pair", "metric"]
    )
    change = rows["change"].abs().map("{:.0f} %".format)
    yield f"NC3 is {change['explicit', 'adamw / sgd', NC3]} higher with AdamW than with SGD in ResNet-18"
    yield f"{change['deq', 'adamw / sgd', NC3]} in the DEQ"
    yield f"({change['explicit', 'adamw / adam', NC3]} apart in ResNet-18, not significant)"
    words = rows["verdict"]
    assert words["explicit", "adamw / adam", NC3] == "not significant"
    assert words["explicit", "adamw / sgd", "nc1_trace_ratio"] == "opposite here"


def which_gradient() -> Iterator[str]:
    rows = pd.read_csv(paths.reference() / "tables/which_gradient-quick.csv").set_index("claim")
    change = rows["change"].abs().map("{:.0f} %".format)
    ratio = "solved: NC1, trace ratio"
    yield f"{change[f'Neumann, 3 terms / {ratio}']} higher with three Neumann terms"
    yield f"{change[f'JFB, 1 step / {ratio}']} higher with JFB"
    yield f"JFB's NC3 is {change['JFB, 1 step / solved: NC3, centred']} lower"
    two = [
        rows["verdict"][f"2 products / solved: {name}"]
        for name in ("NC3, centred", "NC2, centred", "NC1, trace ratio")
    ]
    assert two == ["equal", "not significant", "not significant"]


def scorecard() -> Iterator[str]:
    card = digits()
    words = (
        card.loc[card["part"].isin(["tables", "figures"]), "verdict"].value_counts().drop("not run")
    )
    yield f"of the {words.sum()} claims about accuracy and collapse that were run on digits"
    names = {
        "not significant": "not significant",
        "opposite here": "opposite to the claim",
        "equal": "equal as claimed",
    }
    names["reported"] = "reported without a verdict"
    yield ", ".join(f"{words[word]} {said}" for word, said in names.items())
    theory = (
        card.loc[card["part"] == "theory", "verdict"]
        .str.replace(" if .*", " if", regex=True)
        .value_counts()
    )
    said = {"holds": "hold", "holds if": "holds under a condition", "typo": "is a misprint"}
    yield ", ".join(f"{theory[word]} {phrase}" for word, phrase in said.items())
    yield f"{theory['vacuous']} is vacuous and {theory['false']} are false"


SUN_SHI = (fig1, fig2, fig3, fig4, fig5, table1, table2, table3, table4, collapse)
SUN_SHI += (
    theory_layer_peeled,
    theory_imbalance,
    audit,
    recipes,
    controls,
    equilibrium_or_cell,
    your_own_cell,
)
SUN_SHI += (nc_definitions, remedies, long_tail, seeds_and_subsets, solver_and_collapse)
SUN_SHI += (optimisers, which_gradient, scorecard)
FINDINGS: dict[str, Callable[[], Iterator[str]]] = {
    **{f"neural_collapse/{function.__name__}": function for function in SUN_SHI},
    **STORED,
    **COMPUTED,
}
"""Notebooks whose first cell has the finding; another paper has its own functions and its own line."""


def first_cell(name: str) -> str:
    """The text of a first cell, its lines joined."""
    return " ".join(reproduce.read_cells(reproduce.source(name))[0]["source"].split())


@pytest.mark.parametrize("name", [slow(name)[0] if name in COMPUTED else name for name in FINDINGS])
def test_the_numbers_of_a_finding_are_those_of_the_tracked_runs(name):
    text = first_cell(name)
    assert [piece for piece in FINDINGS[name]() if piece not in text] == []


def test_a_first_cell_has_claim_finding_and_picture():
    claim = r"# .*(\*\*The paper says\*\*|\*\*The question\.\*\*) "
    rest = r".*\*\*We find\*\* .*\*\*See\*\* .*!\[[^]]+\]"
    for name in FINDINGS:
        assert re.match(claim + rest, first_cell(name)), name
        assert [image.is_file() for image in reproduce.pictures(name)] == [True], name


def test_all_pictures_together_are_small():
    sizes = {path: path.stat().st_size for path in paths.notebooks().glob("*/images/*.png")}
    assert sum(sizes.values()) < MOST_BYTES and max(sizes.values()) < 100_000
