"""The configuration that options describe."""

import pytest

from nclib.config import ConfigError, RunConfig
from nclib.engine.builders import build_config


def test_options_become_a_configuration():
    given = {"data.dataset": "digits", "data.num_majority": 3, "data.ratio": 10.0, "model.kind": "deq", "seed": 2}
    run = build_config(None, "paper", given, ["model.solver.tol=1e-4", "train.epochs=5"])
    assert (run.data.imbalance, run.data.num_majority, run.data.ratio, run.seed) == ("step", 3, 10.0, 2)
    assert (run.train.lr, run.train.schedule, run.train.epochs) == (1e-4, "constant", 5)
    assert run.model.solver.tol == 1e-4
    assert build_config(None, None, {}, []) == RunConfig()


def test_a_recipe_that_fixes_the_augmentation_sets_it():
    assert build_config(None, "collapse", {}, []).data.augment == "none"
    assert build_config(None, "collapse", {}, ["data.augment=dataset"]).data.augment == "dataset"


@pytest.mark.parametrize("text", ["model.width", "=3", "seed.first=1"])
def test_a_setting_that_is_none_is_refused(text):
    with pytest.raises(ConfigError):
        build_config(None, None, {"seed": 1}, [text])
