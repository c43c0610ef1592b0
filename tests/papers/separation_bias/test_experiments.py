"""The runs of the notebooks: they survive JSON, and have the seeds that verdicts need."""

from collections import Counter

import pytest

from nclib import experiment
from nclib.config import run_id
from nclib.papers.separation_bias.experiments import NOTEBOOKS
from nclib.papers.separation_bias.regression import RegressionConfig


def test_a_configuration_survives_json_with_its_identity():
    configs = set()
    for name in NOTEBOOKS:
        configs.update(experiment(f"separation_bias/{name}", "quick", seeds=2))
    for config in configs:
        assert RegressionConfig(**config.model_dump(mode="json")) == config
    assert len({run_id(config) for config in configs}) == len(configs)


@pytest.mark.parametrize(("seeds", "of_f1", "of_others"), [(1, 1, 1), (3, 8, 3), (9, 9, 9)])
def test_f1_and_f2_have_more_seeds_where_there_are_verdicts(seeds, of_f1, of_others):
    configs = experiment("separation_bias/fig2", "quick", seeds=seeds)
    counts = Counter((config.task.label(), config.model.label()) for config in configs)
    for (task, _), count in counts.items():
        assert count == (of_f1 if task in ("f1", "f2") else of_others)


def test_smoke_takes_ten_steps():
    assert {config.steps for config in experiment("separation_bias/table1", "smoke")} == {10}
