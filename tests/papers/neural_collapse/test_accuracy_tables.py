"""Printed numbers are the paper's, and ours stand beside the right ones."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from tidy import rows, stack, trained

from nclib.compare import interval
from nclib.papers.neural_collapse import accuracy_tables


def test_printed_numbers_are_the_papers():
    table = accuracy_tables.published(1).set_index(["dataset", "model"])
    assert len(table) == 4 and table["K_A"].isna().all() and (table["R"] == 1).all()
    wanted = {("cifar10", "explicit"): (93.05, 0.17), ("cifar100", "deq"): (64.77, 0.36)}
    for key, numbers in wanted.items():
        assert tuple(table.loc[key, ["mean", "std"]]) == numbers
    table = accuracy_tables.published(3).set_index(["dataset", "K_A", "R", "model", "split"])[
        "mean"
    ]
    hundred = {
        ("explicit", "overall"): 44.86,
        ("explicit", "majority"): 89.32,
        ("explicit", "minority"): 0.40,
    }
    hundred |= {("deq", "overall"): 46.09, ("deq", "majority"): 90.20, ("deq", "minority"): 1.26}
    for (model, split), value in hundred.items():
        assert table["cifar10", 5, 100, model, split] == value
    assert table["cifar100", 50, 10, "deq", "majority"] == 72.90
    assert accuracy_tables.published_ticks(3, "b", "nc2") == (0.7, 0.9)
    assert accuracy_tables.published_ticks(4, "", "accuracy") == (20, 28)


def _accuracies(model, seed, overall, majority, minority, **cell):
    values = {
        "accuracy_balanced": overall,
        "accuracy_majority": majority,
        "accuracy_minority": minority,
    }
    given = {
        name: [0.99 * value, 1.01 * value] for name, value in values.items() if value is not None
    }
    return trained(
        stack(
            *(rows(name, model=model, seed=seed, values=two, **cell) for name, two in given.items())
        )
    )


def test_accuracy_table_puts_each_cell_beside_its_printed_one():
    five, balanced = {"k_a": 5, "ratio": 100.0}, {}
    frame = stack(
        *(
            _accuracies("explicit", s, 0.40 + s / 100, 0.8 + s / 1000, 0.0, **five)
            for s in range(3)
        ),
        *(
            _accuracies("deq", s, 0.42 + s / 90, 0.8 + s / 1000, 0.1 + s / 1000, **five)
            for s in range(3)
        ),
        *(
            _accuracies(m, s, 0.9 + s / 1000, None, None, **balanced)
            for s in range(3)
            for m in ("explicit", "deq")
        ),
        *(_accuracies("explicit", s, 0.5, 0.5, 0.5, k_a=4, ratio=100.0) for s in range(3)),
    )
    table = accuracy_tables.accuracy_table(
        frame, accuracy_tables.published(), {"digits": "cifar10"}, "toy"
    )
    table = table[table["verdict"] != "not run"]
    assert len(table) == 3 + 1 + 3
    assert pd.isna(table["K_A"].iloc[0])  # the balanced row comes first
    keyed = table.set_index(["K_A", "accuracy"])
    row = keyed.loc[(5, "overall")]
    assert row["explicit_value"] == pytest.approx(41) and row["deq_value"] == pytest.approx(
        42 + 10 / 9
    )
    assert row["explicit_within_std"] == pytest.approx(
        0.41 * 2**0.5
    )  # of two epochs 1 % to either side, in percent
    assert (row["explicit_printed"], row["explicit_printed_std"]) == (44.86, 1.43)
    assert (row["deq_printed"], row["deq_printed_std"]) == (46.09, 1.77)
    wanted = interval([2.0, 2.0 + 1 / 9, 2.0 + 2 / 9])
    assert (row["difference"], row["half"]) == pytest.approx((wanted.mean, wanted.half))
    assert row["detectable"] == pytest.approx(wanted.detectable)
    assert row["printed_difference"] == 1.23 and row["seeds"] == 3
    assert row[["verdict", "scale", "remark"]].tolist() == [
        "as claimed here",
        "toy",
        "size not comparable",
    ]
    assert row["explicit_half"] == pytest.approx(interval([40, 41, 42]).half)
    assert keyed.loc[(5, "minority"), "deq_printed"] == 1.26
    first = table.iloc[0]
    assert (first["explicit_printed"], first["deq_printed"], first["printed_difference"]) == (
        93.05,
        93.23,
        0.18,
    )
    unprinted = keyed.loc[(4, "overall")]  # no such cell in the paper, and no DEQ either
    assert np.isnan(unprinted["explicit_printed"]) and pd.isna(unprinted["printed_difference"])
    assert unprinted[["verdict", "remark"]].tolist() == ["reported", "0 seeds"]


def test_accuracy_table_of_balanced_runs_alone():
    frame = stack(
        *(
            _accuracies(m, s, 0.9 + s / 1000, None, None)
            for s in range(3)
            for m in ("explicit", "deq")
        )
    )
    table = accuracy_tables.accuracy_table(
        frame, accuracy_tables.published(1), {"digits": "cifar10"}, "paper"
    )
    assert table["accuracy"].tolist() == ["overall"] * 2
    assert table["verdict"].tolist() == ["equal", "not run"]  # CIFAR-100 is printed and not run
    assert table["scale"].tolist() == ["paper", ""]


def test_accuracy_table_names_printed_cells_that_were_not_run():
    arms = [(seed, model) for seed in range(3) for model in ("explicit", "deq")]
    frame = stack(
        *(_accuracies(m, s, 0.4, 0.8 + s / 1000, 0.0, k_a=5, ratio=100.0) for s, m in arms)
    )
    stand_ins = {"digits": "cifar10"}
    table = accuracy_tables.accuracy_table(frame, accuracy_tables.published(3), stand_ins, "toy")
    assert len(table) == 18 and (table["verdict"] == "not run").sum() == 15
    assert table["runs"].str.split().str.len().tolist().count(6) == 3
    row = table[
        (table["dataset"] == "cifar10") & (table["R"] == 10) & (table["accuracy"] == "minority")
    ].iloc[0]
    assert row["seeds"] == 0 and pd.isna(row["explicit_value"]) and row["explicit_printed"] > 0
    shown = accuracy_tables.accuracy_display(table, stand_ins)
    idle = shown[shown["verdict"] == "not run"]
    assert set(idle["data"]) == {"–"} and set(idle["ResNet-18, ours ± within [95 %]"]) == {"–"}
    assert set(idle["stands for"]) == {"cifar10", "cifar100"}
    run = shown[(shown["verdict"] != "not run") & (shown["accuracy"] == "overall")].iloc[0]
    assert run[["data", "stands for", "K_A", "R"]].tolist() == ["digits", "cifar10", "5", "100"]
    assert run["DEQ, the paper"] == "46.09 ± 1.77" and run["difference in the paper"] == "+1.23"
    assert run["DEQ − ResNet-18 [95 %]"] == "+0.00 [± 0.00]"


def test_drawn_differences_are_those_of_the_table():
    runs = []
    for model, value in (("explicit", 0.4), ("deq", 0.5)):
        for seed in range(3):
            for metric in accuracy_tables.ACCURACIES.values():
                values = [value + seed / (100 if model == "deq" else 90)]
                runs.append(rows(metric, model=model, seed=seed, values=values, k_a=5, ratio=100.0))
    frame = trained(stack(*runs)).drop_duplicates()
    table = accuracy_tables.accuracy_table(
        frame, accuracy_tables.published(3), {"digits": "cifar10"}, "toy"
    )
    ax = accuracy_tables.draw_differences(table, "minority", plt.figure().subplots())
    (row,) = table[(table["seeds"] > 0) & (table["accuracy"] == "minority")].to_dict("records")
    dots, _, (bars,) = ax.containers[0]
    assert list(dots.get_xdata()) == [row["difference"]]
    assert bars.get_segments()[0][:, 0].tolist() == pytest.approx(
        [row["difference"] - row["half"], row["difference"] + row["half"]]
    )
    diamonds = [line for line in ax.get_lines() if line.get_label() == "difference, the paper"]
    assert list(diamonds[0].get_xdata()) == [row["printed_difference"]]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["digits, R = 100"]
    plt.close("all")
