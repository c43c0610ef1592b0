"""The first cells of notebooks: their numbers are those of the tracked runs, and their pictures are there.

`FINDINGS` has a row for each notebook: a function that returns pieces of text, computed from the runs and tables in
``results/reference``. Each piece must stand in the first cell. What a cell says without a number, such as "on digits
nothing is significant", the function asserts.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest

from companion.neural_collapse import replication
from nclib.comparison import Pairs, pairs
from nclib.engine.reference import reference_store
from nclib.publish import notebooks
from nclib.publish.numbers import minus
from nclib.system import paths

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
def compared(collection: str, setting: tuple[int, int], metric: str, relative: bool = False) -> Pairs:
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
    return [f"{name} {change(collection, setting, metric)}" for name, metric in (("NC2", NC2), ("NC3", NC3))]


def percent(collection: str, setting: tuple[int, int], metric: str) -> str:
    """ "8 % lower": the mean ratio DEQ / ResNet-18, which must be significant."""
    interval = compared(collection, setting, metric, relative=True).interval
    return f"{100 * abs(np.expm1(interval.mean)):.0f} % {interval.side}"


def accuracy(setting: tuple[int, int]) -> str:
    return change(FIRST, setting, "accuracy_balanced", digits=1) + " %"


def points(collection: str, setting: tuple[int, int], metric: str = "accuracy_balanced") -> tuple[str, str]:
    """ "0.8 percentage points", and their interval "0.3 to 1.2", without signs where both ends have the same one."""
    interval = compared(collection, setting, metric).interval
    low, high = interval.ends()
    if high < 0:
        low, high = -high, -low
    return f"{abs(interval.mean):.1f} percentage points", minus(f"{low:.1f} to {high:.1f}")


@functools.cache
def digits() -> pd.DataFrame:
    """The scorecard of the preset quick, by the id of its rows."""
    return pd.read_csv(paths.reference() / "tables/scorecard-quick.csv").set_index("id")


def verdicts(start: str) -> dict[str, str]:
    """Verdicts of the scorecard on digits by the end of their ids, which begin with `start`."""
    rows = digits()
    return {name.removeprefix(start): word for name, word in rows["verdict"].items() if name.startswith(start)}


def nothing_is_significant(start: str) -> bool:
    return set(verdicts(start).values()) <= {"not significant", "not run"}


# --- Sun & Shi, NeurIPS 2024 ----------------------------------------------------------------------------------------


def fig2() -> Iterator[str]:
    setting = (3, 10)
    yield f"NC2 {change(FIRST, setting, NC2)}"
    yield f"({change(FIRST, setting, 'nc2_equiangular')})"
    yield f"({change(FIRST, setting, 'nc1_cdnv', 3)})"
    assert not compared(FIRST, setting, NC2).interval.significant
    assert nothing_is_significant("fig2_claims/")


def fig3() -> Iterator[str]:
    yield " and ".join(nc2_and_nc3(FIRST, (5, 100))) + " at 100 : 1"
    yield " and ".join(nc2_and_nc3(FIRST, BALANCED)) + " on balanced classes"
    yield f"NC3 is {percent(FIRST, (5, 100), EQ14)} at 100 : 1"
    assert not compared(FIRST, (5, 100), EQ13).interval.significant
    assert nothing_is_significant("fig3_claims/b/")


def fig4() -> Iterator[str]:
    for collection in (FIRST, NEW):
        yield " and ".join(nc2_and_nc3(collection, (3, 100)))
    yield f"NC3 is {percent(FIRST, (3, 100), EQ14)}"
    yield f"turns upwards after epoch {_lowest_epoch(NC3)}"
    assert not compared(FIRST, (3, 100), EQ13).interval.significant
    assert [verdicts("fig4_claims/")[metric] for metric in (EQ13, EQ14)] == ["opposite here"] * 2


def _lowest_epoch(metric: str) -> int:
    """Where the mean of ResNet-18 over seeds is lowest, at K_A = 3, R = 100."""
    rows = runs(FIRST).query("K_A == 3 and R == 100 and model == 'explicit' and split == 'train' and metric == @metric")
    return int(rows.groupby("epoch")["value"].mean().idxmin())


def fig5() -> Iterator[str]:
    for collection in (FIRST, NEW):
        yield " and ".join(nc2_and_nc3(collection, (7, 100)))
    yield f"NC3 is {percent(FIRST, (7, 100), EQ14)}"
    assert not compared(FIRST, (7, 100), EQ13).interval.significant
    assert [verdicts("fig5_claims/")[metric] for metric in (EQ13, EQ14, NC2, NC3)] == ["opposite here"] * 4


def table1() -> Iterator[str]:
    yield accuracy(BALANCED)
    yield from points(FIRST, BALANCED)
    assert nothing_is_significant("table1_pooled")


def table2() -> Iterator[str]:
    for ratio, where in ((10, "at 10 : 1 (not significant)"), (50, "at 50 : 1"), (100, "at 100 : 1")):
        yield f"{accuracy((3, ratio))} {where}"
    yield f"five new seeds also give {points(NEW, (3, 100))[0]}"
    yield f"it is {points(NEW, (3, 100), 'accuracy_balanced.adjusted')[0]} less accurate"
    assert not compared(FIRST, (3, 10), "accuracy_balanced").interval.significant
    assert nothing_is_significant("table2")
    _gains_on_minority_classes(3, (10, 50, 100))


def table3() -> Iterator[str]:
    yield f"{accuracy((5, 50))} at 50 : 1 (one seed)"
    yield f"{accuracy((5, 100))} at 100 : 1 (three seeds, not significant)"
    yield "give {}, with a 95 % interval of {}".format(*points(NEW, (5, 100)))
    yield f"the DEQ is {points(NEW, (5, 100), 'accuracy_balanced.adjusted')[0]} less accurate"
    assert not compared(FIRST, (5, 100), "accuracy_balanced").interval.significant
    assert {word for name, word in verdicts("table3").items() if name.endswith("overall")} == {
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
        assert not compared(collection, (7, 100), "accuracy_balanced").interval.significant
    assert nothing_is_significant("table4")
    _gains_on_minority_classes(7, (50, 100))


def _gains_on_minority_classes(k_a: int, ratios: tuple[int, ...]) -> None:
    for ratio in ratios:
        minority, majority = (compared(FIRST, (k_a, ratio), f"accuracy_{which}") for which in ("minority", "majority"))
        assert minority.interval.mean > 1 > majority.interval.mean


def collapse() -> Iterator[str]:
    settings = {BALANCED: FIRST, (3, 10): FIRST, (3, 100): NEW, (5, 100): NEW, (7, 100): NEW}
    for name, metric in (("NC2", NC2), ("NC3", NC3)):
        cells = [change(collection, setting, metric) for setting, collection in settings.items()]
        yield f"| {name} | {' | '.join(cells)} |"
    found = replication.found()
    assert found.verdict == "supported"
    changes = found.primary.set_index("metric")["change"]
    yield minus(f"NC2 {changes[NC2]:.0f} %, NC3 {changes[NC3]:.0f} %")
    assert not any(compared(FIRST, (3, 10), metric).interval.significant for metric in (NC2, NC3))
    pooled = pd.read_csv(paths.reference() / "tables/collapse_pooled-quick.csv").set_index("metric")
    yield f"(eq. 13) is {pooled['change'][EQ13]:.0f} % higher"
    assert set(pooled["verdict"][[NC2, NC3]]) == {"not significant"}


SUN_SHI = {
    function.__name__: function for function in (fig2, fig3, fig4, fig5, table1, table2, table3, table4, collapse)
}
FINDINGS: dict[str, Callable[[], Iterator[str]]] = {
    **{f"neural_collapse/{name}": function for name, function in SUN_SHI.items()}
}
"""Notebooks whose first cell has the finding; another paper has its own functions and its own line."""


def first_cell(name: str) -> str:
    """The text of a first cell, its lines joined."""
    return " ".join(notebooks.text_of(notebooks.read_cells(notebooks.source(name))[0]).split())


@pytest.mark.parametrize("name", FINDINGS)
def test_the_numbers_of_a_finding_are_those_of_the_tracked_runs(name):
    text = first_cell(name)
    assert [piece for piece in FINDINGS[name]() if piece not in text] == []


@pytest.mark.parametrize("name", FINDINGS)
def test_a_first_cell_has_claim_finding_and_picture(name):
    text = first_cell(name)
    assert re.match(
        r"# .*(\*\*The paper says\*\*|\*\*The question\*\*) .*\*\*We find\*\* .*\*\*See\*\* .*!\[[^]]+\]", text
    )
    assert [image.is_file() for image in notebooks.images(name)] == [True]


def test_all_pictures_together_are_small():
    sizes = {path: path.stat().st_size for path in paths.notebooks().glob("*/images/*.png")}
    assert sum(sizes.values()) < MOST_BYTES and max(sizes.values()) < 100_000
