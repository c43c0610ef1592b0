"""The functions to learn: what they are named after, and what training never sees."""

import numpy as np
import pytest
import torch

from nclib.papers.separation_bias.regions import tent_map
from nclib.papers.separation_bias.steep import steep_target
from nclib.papers.separation_bias.tasks import BOOLEAN, F1, F2, Task, TaskConfig, synthetic_tone

LINEAR = TaskConfig(name="boolean", target="linear", variables=4, coefficients=(1.0, 0.5, 0.0, 2.0))


def test_sawtooth_and_steep_are_the_functions_of_the_theory():
    x, y = Task(TaskConfig(name="sawtooth", level=3), 0).test
    np.testing.assert_allclose(y, tent_map((x[:, 0].double().numpy() + 1) / 2, 3), atol=1e-5)
    x, y = Task(TaskConfig(name="steep", level=8), 0).test
    np.testing.assert_array_equal(y, steep_target(x[:, 0].numpy(), 8))
    share_where_it_changes = (x < 2.0**-8).double().mean()
    assert 0.1 < share_where_it_changes < 0.5


def test_boolean_functions():
    x, y = Task(LINEAR, 0).train
    np.testing.assert_array_equal(y, x[:, 0] + 0.5 * x[:, 1] + 2 * x[:, 3])
    signs = torch.tensor([[1.0, 1, -1], [-1, 1, 1]])
    values = {name: function(signs).tolist() for name, (function, _) in BOOLEAN.items()}
    assert values == {"product": [1, -1], "majority": [1, 1], "abbe": [0.75, -3.75]}


def unseen_part(target, x):
    if target == "linear":
        return x[:, 0] < 0
    if target == "abbe":
        return x[:, 0] * x[:, 1] * x[:, 2] < 0
    return (x[:, 0] < 0) & (x[:, 1] < 0)


@pytest.mark.parametrize("target", ["linear", *BOOLEAN])
def test_the_unseen_is_never_trained_on(target):
    config = LINEAR
    if target != "linear":
        config = TaskConfig(name="boolean", target=target, variables=5)
    task = Task(config, 0)
    seen, _ = task.train
    hidden, _ = task.test
    assert len(seen) == 4000
    assert len(hidden) == 2000
    assert not unseen_part(target, seen).any()
    assert unseen_part(target, hidden).all()
    assert set(seen.unique().tolist()) == {-1.0, 1.0}


def test_batches_follow_the_seed_and_test_points_do_not():
    config = TaskConfig(name="sawtooth", level=2)
    first = Task(config, 0)
    again = Task(config, 0)
    other = Task(config, 1)
    assert torch.equal(first.batch(8)[0], again.batch(8)[0])
    assert not torch.equal(first.batch(8)[0], other.batch(8)[0])
    assert torch.equal(first.test[0], other.test[0])
    sound = Task(TaskConfig(name="audio", target="tone"), 0)
    x, y = sound.batch(5)
    rows = [int(torch.argmin((sound.train[0][:, 0] - time).abs())) for time in x[:, 0]]
    assert torch.equal(y, sound.train[1][rows])


def test_the_synthetic_tone_has_its_harmonics():
    tone = synthetic_tone(8000)
    power = np.abs(np.fft.rfft(tone)) ** 2
    near = 0.0
    for harmonic in (1, 2, 3, 5, 8, 11):
        near += power[220 * harmonic - 40 : 220 * harmonic + 41].sum()
    assert near > 0.99 * power.sum()
    assert np.abs(tone).max() == 1


def test_names_of_tasks():
    assert TaskConfig(name="sawtooth", level=5).label() == "sawtooth-2^5"
    assert TaskConfig(name="steep", level=10).label() == "steep-d10"
    for coefficients, name in ((F1, "f1"), (F2, "f2")):
        config = LINEAR.replace(variables=20, coefficients=coefficients)
        assert config.label() == name
    assert LINEAR.label() == "linear"
