"""Run ids and plotted numbers are those that were recorded. `record.py` says how to write them anew."""

import json
import re
from pathlib import Path

import executed
import pytest
import record
from certified import wrong_verdicts

from nclib import profiles

RECORDED = json.loads(record.NUMBERS.read_text(encoding="utf-8"))
FAST = ("quick/neural_collapse/table1", "quick/neural_collapse/audit")
FAST += ("full-jpeg/neural_collapse/table3",)


def test_run_ids_are_the_recorded_ones():
    """Of every experiment at every size, and of every tracked reference run: nobody's run store may be lost."""
    recorded, now = set(record.IDS.read_text().splitlines()), set(record.ids().splitlines())
    assert sorted(recorded - now) == [], "these are gone"
    assert sorted(now - recorded) == [], (
        "these are new. If this was meant: python tests/golden/record.py ids"
    )


def test_every_drawing_is_recorded_and_drew_something():
    assert set(RECORDED["drawings"]) == {*record.DRAWN, *record.COMPUTED} and all(
        RECORDED["drawings"].values()
    )


@pytest.fixture(scope="session")
def place(shared):
    """A folder for all drawings, each drawn once by the processes of a test run."""
    return shared / "golden"


# Lesson 4 trains a layer beyond what its solver can do, to show it; at smoke size few steps are taken.
@pytest.mark.filterwarnings("default::nclib.deq.ForwardNotConverged")
@pytest.mark.filterwarnings("ignore:epoch .* of the backward passes")
@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
                                  for name in (*record.DRAWN, *record.COMPUTED)])  # fmt: skip
def test_numbers_are_the_recorded_ones(name, place, shared):
    if name in record.COMPUTED:
        seen = executed.at_smoke_size(name.removeprefix("smoke/"), shared)
        tables = map(Path, seen["tables"])
        drawn = record.read(tables, shared / "results" / "smoke")
    else:
        drawn = record.drawn(name, place)
        saved = place / name / name.partition("/")[0].partition("-")[0]
        assert wrong_verdicts(saved.rglob("*.csv")) == []
        sidecars = [json.loads(path.read_text("utf-8")) for path in saved.rglob("*.json")]
        assert sidecars, "saved nothing"
        if name.partition("/")[2] in profiles.makers() and name != record.SUMMARY:
            assert all(each["runs"] for each in sidecars)
    recorded, here = RECORDED["drawings"][name], record.machine()
    there = RECORDED["elsewhere"].get(name, RECORDED["machine"])
    said = record.changes(recorded, drawn)
    other = [
        f"{part} was {there.get(part)}, is {here[part]}"
        for part in here
        if here[part] != there.get(part)
    ]
    if (
        said
        and other
        and (name in record.COMPUTED or not record.changes(recorded, drawn, floats=False))
    ):
        pytest.skip(
            f"recorded elsewhere ({'; '.join(other)}), and these differ:\n" + "\n".join(said)
        )
    if said:
        pytest.fail(
            "\n".join([*said, f"If this was meant: python tests/golden/record.py numbers {name}"]),
            pytrace=False,
        )


@pytest.mark.slow
def test_reproduce_writes_the_same_bytes_as_its_notebook_run_here(isolated, place, monkeypatch):
    """The drawings above run in this process; the command runs a notebook in a process of its own."""
    from nclib.reproduce import reproduce

    monkeypatch.setenv("NCLIB_ROOT", str(record.ROOT))
    summary = reproduce(["table1"], workers=1, train="never", echo=lambda line: None)
    assert summary.ok
    folder = isolated / "results" / "quick"
    files = {
        path.relative_to(folder).as_posix(): record._read(path, folder)
        for path in folder.rglob("*.csv")
    }
    assert record.changes(record.drawn("quick/neural_collapse/table1", place), files) == []


FILE = {"rows": 2, "columns": {"metric": "aa", "verdict": "bb"}, "sha256": "cc"}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            {"t.csv": FILE | {"columns": {"metric": "aa", "verdict": "dd"}, "sha256": "ee"}},
            "column 'verdict' changed",
        ),
        (
            {"t.csv": FILE | {"columns": {"metric": "aa"}, "sha256": "ee"}},
            "column 'verdict' is gone",
        ),
        (
            {"t.csv": FILE | {"columns": FILE["columns"] | {"n": "ff"}, "sha256": "ee"}},
            "column 'n' is new",
        ),
        ({"t.csv": FILE | {"rows": 3, "sha256": "ee"}}, "2 rows became 3"),
        ({"t.csv": FILE | {"sha256": "ee"}}, "other bytes"),
        ({}, "no longer drawn"),
        ({"t.csv": FILE, "u.csv": FILE}, "u.csv is new"),
    ],
)
def test_a_difference_is_named(now, said):
    (line,) = record.changes({"t.csv": FILE}, now)
    assert re.search(said, line) and not re.search("metric", line)


def test_on_another_processor_last_digits_are_passed_over_and_words_are_not():
    changed = FILE | {"columns": {"metric": "aa", "verdict": "dd"}, "sha256": "ee"}
    assert (
        record.changes({"t.csv": FILE}, {"t.csv": changed | {"floats": ["verdict"]}}, floats=False)
        == []
    )
    assert (
        record.changes({"t.csv": FILE}, {"t.csv": changed | {"floats": ["metric"]}}, floats=False)
        != []
    )


def test_a_number_that_is_computed_is_told_from_a_word_and_a_count(tmp_path):
    (tmp_path / "t.csv").write_text("word,count,value,hole\nlower,3,0.1,\nnan,-4,1e-5,2.5\n")
    assert record._read(tmp_path / "t.csv", tmp_path)["floats"] == ["value", "hole"]
