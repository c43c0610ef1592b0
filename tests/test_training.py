"""Training: updates in closed form, which samples enter, and that an interrupted run ends with the same bits."""

import io
import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from marks import slow
from torch.nn import functional as F

from nclib import evaluation, training
from nclib.config import LAST_EPOCHS, ConfigError, RunConfig, SolverConfig, TrainConfig
from nclib.data import Batches, make_split
from nclib.deq import DEQ, BackwardNotConverged
from nclib.models import Output, build_model, count_parameters

STEP = {"imbalance": "step", "num_majority": 4, "ratio": 3.0}


def _config(kind="explicit", seed=0, n_max=6, data=None, model=None, **train):
    images = {"n_max": n_max, "test_per_class": 3} | (data or {})
    network = {"kind": kind, "width": 2} | (model or {})
    protocol = {"epochs": 2, "batch_size": 16, "lr": 0.05} | train
    return RunConfig(data=images, model=network, train=protocol, seed=seed)


def _value(run, metric, split="train", epoch=None):
    rows = run.history[(run.history["metric"] == metric) & (run.history["split"] == split)]
    return rows[rows["epoch"] == (epoch or rows["epoch"].max())]["value"].item()


def _same_bits(one, other):
    pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
    pd.testing.assert_frame_equal(one.tables["classes"], other.tables["classes"], check_exact=True)
    assert one.arrays.keys() == other.arrays.keys()
    assert one.weights.keys() == other.weights.keys()
    for name in one.arrays:
        np.testing.assert_array_equal(one.arrays[name], other.arrays[name], err_msg=name)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.fixture(autouse=True)
def _quiet():
    # Networks of a few channels on a handful of images have solves that fail; the tests that are about it look.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackwardNotConverged)
        yield


# -- Closed forms ------------------------------------------------------------------------------------------------------


def test_learning_rates():
    constant = TrainConfig(lr=0.3, schedule="constant")
    cosine = TrainConfig(lr=0.3, schedule="cosine")
    assert {training.learning_rate(constant, step, 100) for step in range(100)} == {0.3}
    rates = [training.learning_rate(cosine, step, 100) for step in range(101)]
    assert rates[0] == 0.3
    assert rates[25] == pytest.approx(0.3 * (1 + math.sqrt(0.5)) / 2)
    assert rates[50] == pytest.approx(0.15)
    assert rates[100] == pytest.approx(0)
    assert rates == sorted(rates, reverse=True)


def test_the_first_updates_are_those_of_stochastic_gradient_descent():
    """Two steps with momentum, weight decay, clipping and the cosine schedule, written out."""
    config = _config(
        n_max=2, epochs=1, batch_size=10, lr=0.5, clip=0.7, weight_decay=0.01, precision="float64"
    )
    run = training.train(config)
    split = make_split(config.data, 0)
    like = {"mean": split.mean, "std": split.std, "dtype": torch.float64}
    batches = Batches(split.train_images, split.train_labels, batch_size=10, **like)
    model = build_model(config.model, 10, 1, 0).double().train()
    buffers = [torch.zeros_like(p) for p in model.parameters()]
    for step, (images, labels, _) in enumerate(batches.shuffled(0, 1)):
        model.zero_grad()
        F.cross_entropy(model(images).logits, labels).backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        rate = 0.5 * (1 + math.cos(math.pi * step / 2)) / 2
        with torch.no_grad():
            for p, buffer in zip(model.parameters(), buffers, strict=True):
                buffer.mul_(0.9).add_(p.grad * min(1, 0.7 / norm) + 0.01 * p)
                p -= rate * buffer
    for name, value in model.state_dict().items():
        torch.testing.assert_close(run.weights[name], value, rtol=1e-6, atol=1e-8)


def test_usable_samples():
    residual = torch.tensor([1e-4, 0.05, 0.1, 0.11, math.inf, math.nan, 0.0, 0.0])
    logits = torch.zeros(8, 2)
    logits[6, 0] = math.nan
    logits[7, 1] = math.inf
    solution = type("Evidence", (), {"residual": residual})
    features = torch.zeros(8, 1)
    assert training.usable(Output(logits, features, solution)).tolist() == [True] * 3 + [False] * 5
    assert training.usable(Output(logits, features, None)).tolist() == [True] * 6 + [False] * 2


@pytest.mark.parametrize("bad", [5.0, math.nan, math.inf])
def test_a_sample_that_is_left_out_has_no_influence_on_loss_and_gradient(bad):
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1])
    keep = torch.tensor([True, False, True, True])

    def losses(values, of):
        return F.cross_entropy(values, of, reduction="none")

    alone = logits[keep].requires_grad_()
    expected = losses(alone, labels[keep]).mean()
    expected.backward()
    logits[1] = bad
    logits.requires_grad_()
    loss = training.mean_loss(losses, logits, labels, keep)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits.grad[keep], alone.grad)
    assert not logits.grad[1].any()


def test_without_a_usable_sample_the_loss_is_zero():
    nothing = torch.zeros(2, dtype=torch.bool)
    loss = training.mean_loss(
        lambda logits, labels: logits.sum(1), torch.ones(2, 3), torch.zeros(2), nothing
    )
    assert loss == 0


def test_start_distance_is_measured_from_where_the_solve_began():
    z = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert training.start_distance(DEQ(torch.nn.Identity(), z0="x"), x, z).tolist() == [1.0, 0.5]
    assert training.start_distance(DEQ(torch.nn.Identity(), z0="zeros"), x, z).tolist() == [
        1.0,
        1.0,
    ]


def test_what_an_epoch_records_is_averaged_over_images_and_by_class():
    record = training.EpochRecord(3, torch.device("cpu"))
    record.loss += 3.0
    for labels, skipped in (([0, 0, 2], [True, False, False]), ([0], [True])):
        record.labels.append(torch.tensor(labels))
        record.add("skipped", torch.tensor(skipped))
    means, rows = record.report()
    assert means == {"loss": 1.5, "dropped": 0.0, "skipped": 0.5}
    assert rows == [(0, "skipped", pytest.approx(2 / 3)), (2, "skipped", 0.0)]


# -- The same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_a_seed_decides_every_bit(kind):
    one = training.train(_config(kind))
    torch.manual_seed(12345)
    _same_bits(one, training.train(_config(kind)))
    other = training.train(_config(kind, seed=1))
    assert not np.array_equal(one.arrays["train_indices"], other.arrays["train_indices"])
    assert not torch.equal(one.weights["encoder.0.weight"], other.weights["encoder.0.weight"])


def test_two_networks_of_one_seed_see_the_same_images_in_the_same_order(monkeypatch):
    seen = {}
    for kind in ("explicit", "deq"):
        rows = []

        def shuffled(batches, seed, epoch, rows=rows, original=Batches.shuffled):
            for images, labels, indices in original(batches, seed, epoch):
                rows.append((images.clone(), indices))
                yield images, labels, indices

        with monkeypatch.context() as patch:
            patch.setattr(Batches, "shuffled", shuffled)
            training.train(_config(kind, seed=3, data=STEP))
        seen[kind] = rows
    assert len(seen["explicit"]) == len(seen["deq"]) > 2
    for (images, indices), (same_images, same_indices) in zip(*seen.values(), strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(indices, same_indices)


class Memory:
    """A checkpoint that goes through bytes, as a file would."""

    def __init__(self):
        self.content = None
        self.saves = 0

    def save(self, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.content = buffer.getvalue()
        self.saves += 1

    def load(self):
        return (
            None
            if self.content is None
            else torch.load(io.BytesIO(self.content), weights_only=True)
        )


@pytest.mark.parametrize(
    "config",
    [
        _config("explicit", epochs=4, log_every=3),
        _config("deq", epochs=3, data=STEP),
        *slow(_config("weight_tied", epochs=3, model={"feature_norm": "batchnorm"})),
        *slow(_config("explicit", epochs=3, optimiser="adam", lr=1e-3)),
    ],
    ids=["explicit", "deq", "weight-tied", "adam"],
)
@pytest.mark.parametrize("after", [1, *slow(2)])
def test_an_interrupted_run_ends_with_the_bits_of_an_undisturbed_one(config, after):
    def stop(done, total):
        if done == after:
            raise KeyboardInterrupt

    undisturbed = training.train(config)
    memory = Memory()
    with pytest.raises(KeyboardInterrupt):
        training.train(config, checkpoint=memory, progress=stop)
    torch.manual_seed(777)  # whatever happened in between
    resumed = training.train(config, checkpoint=memory)
    assert resumed.facts["continued_from"] == [after]
    assert undisturbed.facts["continued_from"] == []
    _same_bits(undisturbed, resumed)
    assert resumed.tables["cost"]["epoch"].tolist() == list(range(1, config.train.epochs + 1))


def test_a_checkpoint_is_saved_after_every_epoch_but_the_last():
    memory = Memory()
    finished = []
    training.train(
        _config(epochs=3), checkpoint=memory, progress=lambda *done: finished.append(done)
    )
    assert memory.saves == 2
    assert finished == [(1, 3), (2, 3), (3, 3)]


def test_threads_take_turns_and_the_numbers_of_the_session_do_not_enter():
    config = _config("explicit", epochs=1)
    alone = training.train(config).weights
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        with ThreadPoolExecutor(2) as threads:
            both = [run.weights for run in threads.map(training.train, [config, config])]
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    for weights in both:
        assert all(torch.equal(alone[name], weights[name]) for name in alone)


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_global_state_is_put_back(before):
    enabled, warn_only = before
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    try:
        state = torch.get_rng_state()
        train = TrainConfig(deterministic=not enabled, precision="bfloat16")
        with pytest.raises(KeyboardInterrupt), training.arithmetic(train, torch.device("cpu")):
            assert torch.are_deterministic_algorithms_enabled() == train.deterministic
            assert torch.is_autocast_enabled("cpu")
            assert torch.backends.cudnn.allow_tf32
            with training.arithmetic(TrainConfig(), torch.device("cpu")):
                assert not torch.backends.cudnn.allow_tf32, "it is not float32"
            torch.rand(3)
            raise KeyboardInterrupt
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.are_deterministic_algorithms_enabled() == enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
        assert torch.backends.cudnn.benchmark == benchmark
        assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.use_deterministic_algorithms(False)


# -- What a run keeps --------------------------------------------------------------------------------------------------


def test_test_accuracy_of_the_last_ten_epochs_is_always_there():
    run = training.train(_config(n_max=2, epochs=13, log_every=100))
    rows = run.history[run.history["metric"] == "accuracy_balanced"]
    assert rows[rows["split"] == "test"]["epoch"].tolist() == [1, *range(14 - LAST_EPOCHS, 14)]
    assert rows[rows["split"] == "train"]["epoch"].tolist() == [1, 13]
    steps = run.history[(run.history["split"] == "steps") & (run.history["metric"] == "loss")]
    assert steps["epoch"].tolist() == list(range(1, 14))


def test_a_run_keeps_what_its_tables_and_figures_are_made_from():
    config = _config("deq", data=STEP, epochs=3, nc_on_test=True)
    run = training.train(config)
    arrays = run.arrays
    split = make_split(config.data, config.seed)
    assert arrays["counts"].tolist() == split.counts.tolist() == [6] * 4 + [2] * 6
    assert arrays["minority"].tolist() == [False] * 4 + [True] * 6
    assert np.array_equal(arrays["train_indices"], split.train_indices)
    assert arrays["train_features"].shape == (36, 16)
    assert arrays["test_features"].shape == (30, 16)
    assert arrays["train_residual"].shape == (36,)
    assert np.array_equal(np.bincount(arrays["train_labels"]), arrays["counts"])
    first = arrays["train_features"][arrays["train_labels"] == 0].mean(0)
    np.testing.assert_allclose(arrays["class_means"][0], first, rtol=1e-5)
    np.testing.assert_array_equal(arrays["classifier"], run.weights["classifier.weight"])

    model = training.trained(config, run.weights)
    assert run.facts["parameters"] == count_parameters(model)
    assert run.facts["updates"] == 3 * math.ceil(36 / 16)
    loader = Batches(
        split.test_images, split.test_labels, batch_size=512, mean=split.mean, std=split.std
    )
    np.testing.assert_array_equal(
        evaluation.collect(model, loader.in_order()).features, arrays["test_features"]
    )


@pytest.mark.parametrize("kind", ["explicit", "deq"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_was_logged_is_what_the_stored_weights_do(kind, precision):
    config = _config(kind, precision=precision)
    cpu = torch.device("cpu")
    run = training.train(config, device=cpu)
    assert all(value.dtype != torch.bfloat16 for value in run.weights.values())
    with training.arithmetic(config.train, cpu):
        model, split, batches = training.reopen(config, run.weights, cpu)
        again = evaluation.evaluate(model, batches["test"].in_order(), split.counts, with_nc=False)
    assert again["loss"] == pytest.approx(_value(run, "loss", "test"), rel=1e-6)


def test_training_learns():
    run = training.train(_config("deq", n_max=20, epochs=8, lr=0.1, model={"groups": 4}))
    assert _value(run, "loss", "train", 8) < 0.6 * _value(run, "loss", "train", 1)
    assert _value(run, "accuracy_balanced", "train") > 0.5


def test_bfloat16_is_not_float32_and_its_equilibria_are_found():
    run = training.train(_config("deq", precision="bfloat16"))
    single = training.train(_config("deq"))
    assert not torch.equal(run.weights["encoder.0.weight"], single.weights["encoder.0.weight"])
    assert (
        _value(run, "solver_converged") > 0.25
    )  # in half precision 1e-3 would be out of every row's reach


def test_a_fixed_etf_classifier_is_not_trained():
    config = _config(model={"head": "etf"})
    run = training.train(config)
    start = build_model(config.model, 10, 1, config.seed)
    torch.testing.assert_close(run.weights["classifier.weight"], start.classifier.weight.detach())
    assert _value(run, "nc2_etf_distance_classifier") < 1e-6


# -- What goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_a_divergent_run_says_what_to_change(kind):
    with pytest.raises(training.TrainingDiverged, match=r"lr \(now 1e\+20"):
        training.train(_config(kind, lr=1e20, clip=None, weight_decay=0.1, epochs=4))


def test_a_step_without_a_finite_gradient_is_dropped_and_counted(monkeypatch):
    """One sample that leaves NaN in a gradient costs its step, not the network."""
    original = training.mean_loss
    calls = []

    def poisoned(losses, logits, labels, keep):
        calls.append(1)
        if len(calls) == 2:
            logits.register_hook(lambda gradient: gradient * math.nan)
        return original(losses, logits, labels, keep)

    monkeypatch.setattr(training, "mean_loss", poisoned)
    run = training.train(_config(n_max=10, batch_size=20, lr=0.01))
    dropped = run.history.query("split == 'steps' and metric == 'dropped'")["value"].tolist()
    assert dropped == [1 / 5, 0]
    assert all(weight.isfinite().all() for weight in run.weights.values())


def test_failed_solves_are_warned_of_once_an_epoch_and_logged():
    hard = {"solver": SolverConfig(max_steps=2, tol=1e-6)}
    with pytest.warns(
        RuntimeWarning, match=r"epoch 2: 100% of the images have no equilibrium"
    ) as caught:
        run = training.train(_config("deq", epochs=2, model=hard))
    assert [each.category for each in caught] == [
        BackwardNotConverged,
        BackwardNotConverged,
        RuntimeWarning,
    ]
    assert _value(run, "backward_not_converged", "steps") > 0.05


def test_few_products_that_are_meant_are_counted_and_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackwardNotConverged)
        run = training.train(_config("deq", epochs=1, model={"gradient": {"steps": 2}}))
    assert _value(run, "backward_steps", "steps") <= 2
    assert _value(run, "backward_not_converged", "steps") > 0.05


def test_a_device_that_is_not_here_is_named():
    assert training.usable_device("cpu") == torch.device("cpu")
    assert training.usable_device() == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(ConfigError, match=f"'{name}' cannot be used.*Use cpu"):
            training.usable_device(name)
