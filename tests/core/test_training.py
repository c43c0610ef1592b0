"""Training: what is measured, which samples enter, and that an interrupted run ends with the same bits."""

import dataclasses
import functools
import io
import math
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from marks import slow
from torch import nn
from torch.nn import functional as F

from nclib import evaluation, training
from nclib.config import LAST_EPOCHS, ConfigError, ModelConfig, RunConfig, SolverConfig, TrainConfig
from nclib.data import Batches, make_split
from nclib.deq import DEQ, BackwardNotConverged
from nclib.models import Output, build_model, count_parameters
from nclib.solvers import Solution, Status

STEP = {"imbalance": "step", "num_majority": 4, "ratio": 3.0}


def _config(kind="explicit", seed=0, n_max=6, data=None, model=None, **train):
    images, train = {"n_max": n_max, "test_per_class": 3}, {"epochs": 2, "batch_size": 16, "lr": 0.05} | train
    config = RunConfig(data=images, model={"kind": kind, "width": 2}, train=train, seed=seed)
    return config.replace(data=data or {}, model=model or {})


def _value(run, metric, split="train", epoch=None):
    rows = run.history[(run.history["metric"] == metric) & (run.history["split"] == split)]
    return rows[rows["epoch"] == (epoch or rows["epoch"].max())]["value"].item()


def _same_bits(one, other):
    pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
    pd.testing.assert_frame_equal(one.tables["classes"], other.tables["classes"], check_exact=True)
    assert one.arrays.keys() == other.arrays.keys() and one.weights.keys() == other.weights.keys()
    for name in one.arrays:
        np.testing.assert_array_equal(one.arrays[name], other.arrays[name], err_msg=name)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.fixture(autouse=True)
def _quiet():
    # networks of a few channels on a handful of images have solves that fail; the tests that are about it look
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackwardNotConverged)
        yield


OBSERVED = _config("deq", data=STEP, epochs=3, nc_on_test=True)


@pytest.fixture(scope="module")
def equilibrium():
    """One imbalanced DEQ run that several tests look at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackwardNotConverged)
        return training.train(OBSERVED)


class Fake(nn.Module):
    """Its images are its logits; it notes in which mode it was asked."""

    def __init__(self, solution=None):
        super().__init__()
        self.classifier = nn.Linear(4, 3, bias=False)
        self.solution, self.modes = solution, []

    def forward(self, images):
        self.modes.append((self.training, torch.is_grad_enabled()))
        logits = images[:, :, 0, 0]
        return Output(logits, torch.cat([logits, logits[:, :1] ** 2], dim=1), self.solution)


LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
PREDICTED = torch.tensor([0, 0, 0, 1, 1, 2, 0, 2])  # class accuracies 3/4, 1/2, 1/2
IMAGES = (2.0 * F.one_hot(PREDICTED, 3) + torch.linspace(0, 0.1, 24).view(8, 3)).view(8, 3, 1, 1)


def _evaluate(counts, with_nc=False, model=None, **options):
    batches = [(IMAGES[:5], LABELS[:5]), (IMAGES[5:], LABELS[5:])]
    return evaluation.evaluate(model or Fake(), batches, torch.tensor(counts), with_nc=with_nc, **options)


def test_a_device_that_is_not_here_is_named():
    assert training.usable_device("cpu") == torch.device("cpu")
    assert training.usable_device() == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(ConfigError, match=f"'{name}' cannot be used.*Use cpu"):
            training.usable_device(name)


def test_accuracies_by_hand():
    report = _evaluate([30, 30, 3])
    assert report["accuracy_balanced"] == pytest.approx((3 / 4 + 1 / 2 + 1 / 2) / 3)  # not 5/8 of the samples
    assert report["accuracy_majority"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert report["accuracy_minority"] == pytest.approx(1 / 2)
    assert report["accuracy_train_prior"] == pytest.approx((30 * 3 / 4 + 30 / 2 + 3 / 2) / 63)
    assert _evaluate([30, 30, 3], minority=[2]) == report, "classes by their ids"


def test_evaluation_neither_trains_nor_changes_the_mode():
    for mode in (True, False):
        model = Fake().train(mode)
        _evaluate([1, 1, 1], model=model)
        assert model.modes == [(False, False)] * 2 and model.training == mode


def test_evaluation_skips_no_image_and_reports_the_solver():
    class Solved(Fake):
        def forward(self, images):
            rows = len(images)
            residual = torch.tensor([1e-4, 1e-4, 1e-4, 0.5, 0.5][:rows])
            converged = residual < 1e-3
            steps = torch.arange(1, rows + 1)
            status = torch.where(converged, Status.CONVERGED.value, Status.MAX_STEPS.value)
            self.solution = Solution(images, residual, converged, status, steps, rows, residual[None])
            return super().forward(images)

    report = _evaluate([9, 9, 1], model=Solved())
    assert report["accuracy_balanced"] == _evaluate([9, 9, 1])["accuracy_balanced"]
    assert report["solver_converged"] == 6 / 8 and report["solver_steps"] == (15 + 6) / 8
    assert report["solver_residual_max"] == 0.5 and report["solver_residual_median"] == pytest.approx(1e-4)
    # class 0: 3 of 4, class 1: 1 of 2, class 2: 2 of 2
    assert report["solver_converged_majority"] == (3 / 4 + 1 / 2) / 2 and report["solver_converged_minority"] == 1


def test_learning_rate_schedules():
    constant, cosine = TrainConfig(lr=0.3, schedule="constant"), TrainConfig(lr=0.3, schedule="cosine")
    assert {training.learning_rate(constant, step, 100) for step in range(100)} == {0.3}
    rates = [training.learning_rate(cosine, step, 100) for step in range(101)]
    assert rates[0] == 0.3 and rates[50] == pytest.approx(0.15) and rates[100] == pytest.approx(0)
    assert rates == sorted(rates, reverse=True)
    assert rates[25] == pytest.approx(0.3 * (1 + math.sqrt(0.5)) / 2)


def test_the_first_updates_are_those_of_stochastic_gradient_descent():
    """Two steps with momentum, weight decay, clipping and the cosine schedule, written out."""
    config = _config(n_max=2, epochs=1, batch_size=10, lr=0.5, clip=0.7, weight_decay=0.01, precision="float64")
    run = training.train(config)
    split = make_split(config.data, 0)
    batches = Batches(
        split.train_images, split.train_labels, batch_size=10, mean=split.mean, std=split.std, dtype=torch.float64
    )
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


def _output(residual, converged, logits=None):
    rows = len(residual)
    residual, converged = torch.tensor(residual), torch.tensor(converged)
    zeros = torch.zeros(rows, dtype=torch.long)
    solution = Solution(torch.zeros(rows, 1), residual, converged, zeros, zeros, 1, residual[None])
    return Output(torch.zeros(rows, 2) if logits is None else logits, torch.zeros(rows, 1), solution)


def test_usable_samples():
    out = _output([1e-4, 0.05, 0.1, 0.11, math.inf, math.nan], [True, False, False, False, False, False])
    assert training.usable(out).tolist() == [True, True, True, False, False, False]


def test_a_non_finite_sample_is_masked_in_every_arm():
    logits = torch.tensor([[0.0, 1.0], [math.nan, 0.0], [0.0, math.inf], [2.0, 3.0]])
    with_solver = _output([0.0] * 4, [True] * 4, logits)
    for out in (with_solver, with_solver._replace(solution=None)):
        assert training.usable(out).tolist() == [True, False, False, True]


def _gradient(model, images, labels):
    model.zero_grad()
    step = training._loss(model, images, labels, functools.partial(F.cross_entropy, reduction="none"))
    step.loss.backward()
    return step.loss.item(), [p.grad.clone() for p in model.parameters()], step.keep


@pytest.mark.parametrize("residual", [0.5, math.inf])
def test_a_masked_sample_has_no_influence_on_the_gradient(residual, monkeypatch):
    solver = SolverConfig(method="fixed_point", tol=1e-11, max_steps=300)
    model = build_model(ModelConfig(kind="deq", width=2, solver=solver), 10, 1).double().eval()
    with torch.no_grad():
        model.block.cell.norm2.weight.mul_(0.1)  # a contraction
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(5, 1, 16, 16, generator=generator, dtype=torch.float64), torch.tensor([0, 3, 3, 1, 2])
    others = torch.tensor([0, 2, 3, 4])
    alone = _gradient(model, images[others], labels[others])
    everything = _gradient(model, images, labels)
    assert everything[2].all()
    honest = model.transform

    def failing(x):
        z, solution = honest(x)
        bad = torch.arange(len(x)) == 1
        residuals = torch.where(bad, residual, solution.residual)
        return z, dataclasses.replace(solution, residual=residuals, converged=solution.converged & ~bad)

    monkeypatch.setattr(model, "transform", failing)
    masked = _gradient(model, images, labels)
    assert masked[2].tolist() == [True, False, True, True, True]
    assert masked[0] == pytest.approx(alone[0], rel=1e-9)
    for ours, wanted in zip(masked[1], alone[1], strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-7, atol=1e-10)
    assert abs(everything[0] - alone[0]) > 1e-4  # the sample would have counted


def test_start_distance_is_measured_from_where_the_solve_began():
    z, x = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    model = types.SimpleNamespace(block=DEQ(torch.nn.Identity(), z0="x"))
    assert training._start_distance(model, x, z).tolist() == [1.0, 0.5]
    model.block.z0 = "zeros"
    assert training._start_distance(model, x, z).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_a_seed_decides_every_bit(kind):
    one = training.train(_config(kind))
    torch.manual_seed(12345)
    _same_bits(one, training.train(_config(kind)))
    other = training.train(_config(kind, seed=1))
    assert not np.array_equal(one.arrays["train_indices"], other.arrays["train_indices"])
    assert not torch.equal(one.weights["encoder.0.weight"], other.weights["encoder.0.weight"])


class Memory:
    """A checkpoint that goes through bytes, as a file would."""

    def __init__(self):
        self.content, self.saves = None, 0

    def save(self, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.content, self.saves = buffer.getvalue(), self.saves + 1

    def load(self):
        return None if self.content is None else torch.load(io.BytesIO(self.content), weights_only=True)


def _interrupted(config, after):
    def stop(done, total):
        if done == after:
            raise KeyboardInterrupt

    memory = Memory()
    with pytest.raises(KeyboardInterrupt):
        training.train(config, checkpoint=memory, progress=stop)
    return memory


@pytest.mark.parametrize(
    "config",
    [
        _config("explicit", epochs=4, log_every=3),
        _config("deq", epochs=3, data=STEP),
        *slow(_config("weight_tied", epochs=3, model={"feature_norm": "batchnorm"})),
    ],
    ids=["explicit", "deq", "weight-tied"],
)
@pytest.mark.parametrize("after", [1, *slow(2)])
def test_an_interrupted_run_ends_with_the_bits_of_an_undisturbed_one(config, after):
    undisturbed = training.train(config)
    memory = _interrupted(config, after)
    torch.manual_seed(777)  # whatever happened in between
    resumed = training.train(config, checkpoint=memory)
    assert resumed.facts["continued_from"] == [after] and undisturbed.facts["continued_from"] == []
    _same_bits(undisturbed, resumed)
    assert resumed.tables["cost"]["epoch"].tolist() == list(range(1, config.train.epochs + 1))


def test_a_checkpoint_is_saved_after_every_epoch_but_the_last():
    memory, told = Memory(), []
    training.train(_config(epochs=3), checkpoint=memory, progress=lambda *done: told.append(done))
    assert memory.saves == 2 and told == [(1, 3), (2, 3), (3, 3)]


def test_test_accuracy_of_the_last_ten_epochs_is_always_there():
    run = training.train(_config(n_max=2, epochs=13, log_every=100))
    rows = run.history[run.history["metric"] == "accuracy_balanced"]
    assert rows[rows["split"] == "test"]["epoch"].tolist() == [1, *range(14 - LAST_EPOCHS, 14)]
    assert rows[rows["split"] == "train"]["epoch"].tolist() == [1, 13]
    steps = run.history[(run.history["split"] == "steps") & (run.history["metric"] == "loss")]
    assert steps["epoch"].tolist() == list(range(1, 14))


def test_a_run_keeps_what_its_tables_and_figures_are_made_from(equilibrium):
    arrays, config = equilibrium.arrays, OBSERVED
    split = make_split(config.data, config.seed)
    assert arrays["counts"].tolist() == split.counts.tolist() == [6] * 4 + [2] * 6
    assert arrays["minority"].tolist() == [False] * 4 + [True] * 6
    assert np.array_equal(arrays["train_indices"], split.train_indices)
    assert arrays["train_features"].shape == (36, 16) and arrays["test_features"].shape == (30, 16)
    assert np.array_equal(np.bincount(arrays["train_labels"]), arrays["counts"])
    assert arrays["train_residual"].shape == (36,) and arrays["class_means"].shape == (10, 16)
    first = arrays["train_features"][arrays["train_labels"] == 0].mean(0)
    np.testing.assert_allclose(arrays["class_means"][0], first, rtol=1e-5)
    np.testing.assert_array_equal(arrays["classifier"], equilibrium.weights["classifier.weight"])
    model = build_model(config.model, 10, 1)
    assert equilibrium.facts["parameters"] == count_parameters(model)
    assert equilibrium.facts["updates"] == 3 * math.ceil(36 / 16)
    model.load_state_dict(equilibrium.weights)
    loader = Batches(split.test_images, split.test_labels, batch_size=512, mean=split.mean, std=split.std)
    np.testing.assert_array_equal(evaluation.collect(model, loader.in_order()).features, arrays["test_features"])


def test_features_in_memory_that_a_network_uses_again_are_kept():
    net, memory = torch.nn.Identity(), torch.empty(1, 1)
    net.classifier = torch.nn.Linear(1, 1)
    net.forward = lambda x: Output(x, memory.copy_(x), None)
    loader = [(torch.tensor([[value]]), torch.tensor([0])) for value in (1.0, 2.0)]
    assert evaluation.collect(net, loader).features.tolist() == [[1.0], [2.0]]


def test_training_learns():
    run = training.train(_config("deq", n_max=20, epochs=8, lr=0.1, model={"groups": 4}))
    first, last = _value(run, "loss", "train", 1), _value(run, "loss", "train", 8)
    assert last < 0.6 * first and _value(run, "accuracy_balanced", "train") > 0.5


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_a_divergent_run_says_what_to_change(kind):
    with pytest.raises(training.TrainingDiverged, match=r"lr \(now 1e\+20"):
        training.train(_config(kind, lr=1e20, clip=None, weight_decay=0.1, epochs=4))


def test_failed_solves_are_warned_of_once_an_epoch_and_logged():
    hard = {"solver": SolverConfig(max_steps=2, tol=1e-6)}
    with pytest.warns(RuntimeWarning, match=r"epoch 2: 100% of the images have no equilibrium") as caught:
        run = training.train(_config("deq", epochs=2, model=hard))
    assert [each.category for each in caught] == [BackwardNotConverged, BackwardNotConverged, RuntimeWarning]
    assert "of the backward passes missed their tolerance" in str(caught[0].message)
    assert _value(run, "backward_not_converged", "steps") > 0.05


def test_few_products_that_are_meant_are_counted_and_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackwardNotConverged)
        run = training.train(_config("deq", epochs=1, model={"gradient": {"steps": 2}}))
    assert _value(run, "backward_steps", "steps") <= 2 and _value(run, "backward_not_converged", "steps") > 0.05


def test_threads_take_turns():
    config = _config("explicit", epochs=1)
    alone = training.train(config).weights
    torch.set_default_dtype(torch.float64)
    try:
        with ThreadPoolExecutor(2) as threads:
            both = [run.weights for run in threads.map(training.train, [config, config])]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(alone[name], weights[name]) for weights in both for name in alone)


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_bfloat16(kind):
    run = training.train(_config(kind, precision="bfloat16"))
    assert all(value.dtype != torch.bfloat16 for value in run.weights.values())
    assert np.isfinite(run.arrays["train_features"]).all()
    assert _value(run, "loss") < 4
    single = training.train(_config(kind))
    assert not torch.equal(run.weights["encoder.0.weight"], single.weights["encoder.0.weight"])
    if kind == "deq":
        assert _value(run, "solver_converged") > 0.25  # in half precision 1e-3 would be out of every row's reach


@pytest.mark.parametrize("kind", ["explicit", "deq"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_was_logged_is_what_the_stored_weights_do(kind, precision):
    config = _config(kind, precision=precision)
    run, cpu = training.train(config, device="cpu"), torch.device("cpu")
    with training.arithmetic(config.train, cpu):
        model, split, loaders = training.reopen(config, run.weights, cpu)
        again = evaluation.evaluate(model, loaders["test"].in_order(), split.counts, with_nc=False)
    assert again["loss"] == pytest.approx(_value(run, "loss", "test"), rel=1e-6)


def test_numbers_of_the_session_do_not_enter_a_run():
    plain = training.train(_config("explicit", epochs=1), device="cpu")
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    try:
        run = training.train(_config("explicit", epochs=1), device="cpu")
        assert torch.get_default_dtype() == torch.float64 and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    assert all(torch.equal(run.weights[name], weight) for name, weight in plain.weights.items())


def test_a_precision_set_by_the_newer_names_of_torch_is_asked_back():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(ConfigError, match="give each fp32_precision its default"):
            training.train(_config("explicit", epochs=1), device="cpu")
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


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
            assert torch.is_autocast_enabled("cpu") and torch.backends.cudnn.allow_tf32
            with training.arithmetic(TrainConfig(), torch.device("cpu")):
                assert not torch.backends.cudnn.allow_tf32, "it is not float32"
            torch.rand(3)
            raise KeyboardInterrupt
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.are_deterministic_algorithms_enabled() == enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
        assert torch.backends.cudnn.benchmark == benchmark and not torch.is_autocast_enabled("cpu")
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_step_without_a_finite_gradient_is_dropped_and_counted(monkeypatch):
    """One sample that leaves NaN in a gradient costs its step, not the network."""
    honest, calls = training._loss, []

    def poisoned(*arguments):
        step = honest(*arguments)
        calls.append(1)
        if len(calls) == 2:
            step.out.features.register_hook(lambda grad: grad * float("nan"))
        return step

    monkeypatch.setattr(training, "_loss", poisoned)
    run = training.train(_config(n_max=10, batch_size=20, lr=0.01))
    dropped = run.history.query("split == 'steps' and metric == 'dropped'")["value"].tolist()
    assert dropped == [1 / 5, 0]
    assert all(weight.isfinite().all() for weight in run.weights.values())


def test_a_fixed_etf_classifier_is_not_trained():
    config = _config(model={"head": "etf"}, epochs=2)
    run, start = training.train(config), build_model(config.model, 10, 1, config.seed)
    torch.testing.assert_close(run.weights["classifier.weight"], start.classifier.weight.detach())
    last = run.history.query("split == 'train' and metric == 'nc2_etf_distance_classifier'")["value"].iloc[-1]
    assert last < 1e-6
