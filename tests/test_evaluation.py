"""Evaluation of a network on a split: accuracies by hand, solver statistics, metrics."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nclib as nc
from nclib import evaluation
from nclib.metrics.report import METRICS
from nclib.models import Output

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
PREDICTED = torch.tensor([0, 0, 0, 1, 1, 2, 0, 2])  # class accuracies 3/4, 1/2, 1/2
LOGITS = 2.0 * F.one_hot(PREDICTED, 3) + torch.linspace(0, 0.1, 24).view(8, 3)
RESIDUALS = torch.tensor([1e-4, 1e-4, 1e-4, 0.5, 0.5, 1e-4, 1e-4, 1e-4])


class Network(nn.Module):
    """Its images are its logits; its features the logits and the square of the first."""

    def __init__(self, solves=False):
        super().__init__()
        self.classifier = nn.Linear(4, 3, bias=False)
        self.solves = solves
        self.modes = []

    def forward(self, images):
        self.modes.append((self.training, torch.is_grad_enabled()))
        logits = images[:, :3, 0, 0]
        solution = None
        if self.solves:
            residual = images[:, 3, 0, 0]
            steps = torch.arange(1, 1 + len(images))
            converged = residual < 1e-3
            status = converged.long()
            evidence = (residual, converged, status, steps, len(images), residual[None])
            solution = nc.Solution(images, *evidence)
        return Output(logits, torch.cat([logits, logits[:, :1] ** 2], dim=1), solution)


def _evaluate(counts, model=None, with_nc=False, **options):
    images = torch.cat([LOGITS, RESIDUALS[:, None]], dim=1).view(8, 4, 1, 1)
    batches = [(images[:5], LABELS[:5]), (images[5:], LABELS[5:])]
    model = model or Network()
    return nc.evaluate(model, batches, torch.tensor(counts), with_nc=with_nc, **options)


def test_accuracies_by_hand():
    report = _evaluate([30, 30, 3])
    # not 5/8 of the samples
    assert report["accuracy_balanced"] == pytest.approx((3 / 4 + 1 / 2 + 1 / 2) / 3)
    assert report["accuracy_majority"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert report["accuracy_minority"] == pytest.approx(1 / 2)
    assert report["accuracy_train_prior"] == pytest.approx((30 * 3 / 4 + 30 / 2 + 3 / 2) / 63)
    assert _evaluate([30, 30, 3], minority=[2]) == report, "classes by their ids"


def test_the_loss_is_the_mean_cross_entropy_of_the_samples():
    values = LOGITS.double()
    by_hand = (values.exp().sum(1).log() - values[torch.arange(8), LABELS]).mean()
    assert _evaluate([1, 1, 1])["loss"] == pytest.approx(by_hand.item(), rel=1e-6)


def test_adjusted_accuracies_are_those_of_the_adjusted_logits():
    counts = torch.tensor([300.0, 300.0, 3.0])
    predicted = (LOGITS.double() - (counts / counts.sum()).log()).argmax(1)
    by_class = [(predicted[k == LABELS] == k).double().mean().item() for k in range(3)]
    report = _evaluate([300, 300, 3])
    assert report["accuracy_balanced.adjusted"] == pytest.approx(sum(by_class) / 3)
    assert report["accuracy_minority.adjusted"] == pytest.approx(by_class[2])


def test_no_image_is_skipped_and_the_solver_is_reported():
    report = _evaluate([9, 9, 1], model=Network(solves=True))
    assert report["accuracy_balanced"] == _evaluate([9, 9, 1])["accuracy_balanced"]
    assert report["solver_converged"] == 6 / 8
    assert report["solver_steps"] == (15 + 6) / 8
    assert report["solver_residual_max"] == 0.5
    assert report["solver_residual_median"] == pytest.approx(1e-4)
    # class 0: 3 of 4, class 1: 1 of 2, class 2: 2 of 2
    assert report["solver_converged_majority"] == (3 / 4 + 1 / 2) / 2
    assert report["solver_converged_minority"] == 1


def test_metrics_of_collapse_are_those_of_the_features():
    model = Network()
    report = _evaluate([4, 2, 2], model=model, with_nc=True)
    features = torch.cat([LOGITS, LOGITS[:, :1] ** 2], dim=1)
    moments = nc.class_moments(features, LABELS, 3)
    assert report["nc1_pinv"] == pytest.approx(float(nc.nc1_pinv(moments)), rel=1e-9)
    assert report["nc3_self_duality"] == pytest.approx(
        float(nc.nc3_self_duality(model.classifier.weight.detach(), moments)), rel=1e-9
    )


def test_metrics_around_the_sample_mean_are_those_of_a_whole_report():
    model = Network()
    report = _evaluate([4, 2, 2], model=model, with_nc=True)
    features = torch.cat([LOGITS, LOGITS[:, :1] ** 2], dim=1)
    whole = nc.nc_report(features, LABELS, w=model.classifier.weight, weighting="sample")
    of_sample_mean = [name for name in report if name.endswith(".sample")]
    assert of_sample_mean == [f"{metric.name}.sample" for metric in METRICS if metric.centred]
    for name in of_sample_mean:
        assert report[name] == whole[name.removesuffix(".sample")]
    assert report["nc2_etf_distance.sample"] != report["nc2_etf_distance"]


def test_an_evaluation_has_the_metrics_that_stored_runs_have():
    recorded = json.loads((Path(__file__).parent / "golden" / "bits.json").read_text())
    stored = recorded["bits"]["deq, implicit"]["metrics"]
    report = _evaluate([4, 2, 2], model=Network(solves=True), with_nc=True)
    assert {f"train/{name}" for name in report} == {
        name for name in stored if name.startswith("train/")
    }


def test_evaluation_neither_trains_nor_changes_the_mode():
    for mode in (True, False):
        model = Network().train(mode)
        _evaluate([1, 1, 1], model=model)
        assert model.modes == [(False, False)] * 2
        assert model.training == mode


def test_rows_by_class():
    images = torch.cat([LOGITS, RESIDUALS[:, None]], dim=1).view(8, 4, 1, 1)
    outputs = evaluation.collect(Network(solves=True), [(images, LABELS)])
    rows = {(k, metric): value for k, metric, value in evaluation.per_class_rows(outputs, 3)}
    assert rows[0, "accuracy"] == 3 / 4
    assert rows[1, "not_converged"] == 1 / 2
    assert rows[2, "solver_steps"] == 7.5
