"""The configuration that options describe."""

from nclib.config import RunConfig
from nclib.engine.builders import build_config


def test_options_become_a_configuration():
    given = {"data.dataset": "digits", "data.num_majority": 3, "data.ratio": 10.0, "model.kind": "deq", "seed": 2}
    run = build_config(None, given)
    assert (run.data.imbalance, run.data.num_majority, run.data.ratio, run.seed) == ("step", 3, 10.0, 2)
    assert build_config(None, {}) == RunConfig()
