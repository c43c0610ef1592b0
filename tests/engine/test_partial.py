"""Runs drawn as far as they are there: pairs, and settings with every seed."""

import pandas as pd
import pytest

from nclib.config import DataConfig, ModelConfig, RunConfig, run_id
from nclib.engine import partial
from nclib.engine.runs import MissingRuns, ensure_runs

BALANCED = DataConfig(dataset="digits", n_max=2, test_per_class=2)
STEP = BALANCED.replace(imbalance="step", num_majority=5, ratio=2.0)


def runs(*images, seeds=range(3), kinds=partial.PAIR):
    return [
        RunConfig(data=each, model=ModelConfig(kind=kind, width=2), seed=seed)
        for each in images
        for seed in seeds
        for kind in kinds
    ]


@pytest.fixture
def there(isolated, monkeypatch):
    """A run store in which exactly the runs of this set are."""
    found = set()
    monkeypatch.setattr(partial, "finished", lambda runs: [run for run in runs if run in found])
    return found


@pytest.mark.parametrize("train", ["missing", "never"])
def test_nothing_is_left_out_unless_a_part_is_wanted(there, train):
    assert partial.drawable(runs(BALANCED), train) == runs(BALANCED)


def test_a_network_without_its_partner_is_left_out(there, capsys):
    planned = runs(BALANCED, STEP)
    there |= {run_id(config) for config in runs(BALANCED)} | {run_id(config) for config in runs(STEP, kinds=["deq"])}
    there.remove(run_id(runs(BALANCED)[-1]))
    assert partial.drawable(planned) == runs(BALANCED, seeds=[0, 1])
    assert "4 of 12 runs are plotted. The others are unfinished or lack their partner." in capsys.readouterr().out
    assert partial.finished_pairs(runs(STEP)) == []


def test_without_any_pair_there_is_nothing_to_draw(there):
    with pytest.raises(MissingRuns, match="none of 6 runs is finished with its partner; train='missing' trains them"):
        partial.drawable(runs(STEP))
    with pytest.raises(MissingRuns, match="train='finished' forbids"):
        ensure_runs(runs(STEP), train="finished")


def rows(*settings, models=("explicit", "deq")):
    columns = ["dataset", "K_A", "R", "seed", "model"]
    return pd.DataFrame([("digits", *setting, model) for setting in settings for model in models], columns=columns)


def test_a_setting_counts_once_it_has_every_seed():
    planned = runs(BALANCED, STEP)
    balanced, step = [(None, 1.0, seed) for seed in range(3)], [(5, 2.0, seed) for seed in range(3)]
    found = rows(*balanced, *step)
    assert len(partial.whole(found, planned)) == 12 and partial.counted(found, planned) == (2, 2)
    found = partial.whole(rows(*balanced[:2], *step), planned)
    assert found["K_A"].tolist() == [5] * 6 and partial.counted(found, planned) == (1, 2)
    assert partial.counted(rows(*balanced), runs(BALANCED)) == (1, 1)
    assert partial.whole(rows(*balanced, models=["deq"]), planned).empty, "the other network has no seed"
    found = partial.whole(rows(*balanced[:2]), planned)
    assert found.empty and partial.counted(found, planned) == (0, 2)
