"""Names that nobody would give, to everything that has one; see `hostile.cases`."""

import shutil
import warnings

import pytest
from hostile import acting, cases

from nclib.config import run_id
from nclib.engine import experiments, runs

ROWS = [line.split() for line in cases.PLACES.strip().splitlines()]


def test_each_place_has_a_letter_for_each_name():
    assert {len(letters) for _, letters in ROWS} == {len(cases.NAMES)}


@pytest.mark.parametrize("size", acting.SIZES)
@pytest.mark.parametrize(("place", "letters"), ROWS, ids=lambda text: text)
def test_names(place, letters, size, project, tmp_path, counted):
    wanted = experiments.experiment("fig9", "smoke")
    runs.ensure_runs(wanted)
    tried, wrong = acting.chosen(cases.NAMES.items(), letters, ROWS.index([place, letters]), size), []
    with counted("names", len(tried)):
        for (name, text), letter in tried:
            for made in (project / "photos", project / "in"):
                shutil.rmtree(made, ignore_errors=True)
            before = acting.tree(tmp_path)
            with warnings.catch_warnings(), acting.little_memory():
                warnings.simplefilter("ignore")
                became, said = acting.named(place, text, project, run_id(wanted[0]))
            if became != letter:
                wrong.append(f"{place} {name}: must be {letter}, is {became}: {said[-300:]}")
            for made in (project / "photos", project / "in"):
                shutil.rmtree(made, ignore_errors=True)
            wrong += [f"{name}: {what}" for what in acting.changed_outside(tmp_path, before, project)]
            wrong += [] if (project / "results/runs" / run_id(wanted[0]) / "DONE").is_file() else [f"{name}: run lost"]
        assert not wrong, "\n".join(wrong)
