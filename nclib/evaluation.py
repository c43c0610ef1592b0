"""How a trained `Classifier` is judged on a split: accuracies, loss, neural-collapse report, solver statistics."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nclib import metrics
from nclib.losses import adjusted_logits
from nclib.metrics.checks import class_mask
from nclib.metrics.measure import evaluating
from nclib.metrics.report import report_of
from nclib.models import Classifier

CENTRED = tuple(name for name, metric in metrics.METRICS.items() if metric.centred)
"""Metrics that depend on where the class means are centred; logged for the sample mean too, under names ending in
".sample"."""


class Outputs(NamedTuple):
    """A whole split through the network: features (N, d), logits (N, K), labels (N,), per image the residual, number of
    cell evaluations and convergence of its equilibrium (None for arms without one), and the classifier's rows (K, d) as
    they were then: a network may have other weights in evaluation."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    residual: Tensor | None
    steps: Tensor | None
    converged: Tensor | None
    weight: Tensor


@torch.no_grad()
def collect(model: Classifier, loader: Iterable[tuple[Tensor, Tensor]]) -> Outputs:
    """Run a split through the network in evaluation mode. No image is ever skipped here: an equilibrium that did not
    converge enters with its best iterate."""
    parts = []
    with evaluating(model):
        for images, labels in loader:
            out = model(images)
            solution = out.solution
            evidence = (None,) * 3 if solution is None else (solution.residual, solution.steps, solution.converged)
            parts.append((out.features.clone(), out.logits, labels, *evidence))  # a network may write there again
        return join(parts, model.classifier.weight)


def join(parts: Iterable[tuple[Tensor | None, ...]], weight: Tensor) -> Outputs:
    """The outputs of a split from those of its batches, which are all but the classifier's rows."""
    columns = (None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True))
    return Outputs(*columns, weight.detach().clone())


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Mean of `values` (N,) over the samples of each class (K,); float64; NaN for a class without samples."""
    ones = torch.zeros(num_classes, dtype=torch.float64, device=values.device)
    sums = ones.index_add(0, labels, values.double())
    return sums / ones.index_add(0, labels, torch.ones_like(values, dtype=torch.float64))


def summarise(outputs: Outputs, counts: Tensor, minority: Tensor, with_nc: bool) -> dict[str, float]:
    """Every scalar reported for one split: see `evaluate`."""
    labels, num_classes = outputs.labels, len(counts)
    per_class = class_means(outputs.logits.argmax(1) == labels, labels, num_classes).cpu()
    counts, minority = torch.as_tensor(counts).cpu().double(), torch.as_tensor(minority).cpu()

    report = {
        "loss": F.cross_entropy(outputs.logits.double(), labels).item(),
        "accuracy_balanced": per_class.mean().item(),
        "accuracy_train_prior": (per_class @ counts / counts.sum()).item(),
        "feature_norm": outputs.features.double().norm(dim=1).mean().item(),
    }
    groups = {"majority": ~minority, "minority": minority} if minority.any() else {}
    if groups:
        adjusted = class_means(adjusted_logits(outputs.logits, counts).argmax(1) == labels, labels, num_classes).cpu()
        report["accuracy_balanced.adjusted"] = adjusted.mean().item()
        for group, members in groups.items():
            report[f"accuracy_{group}"] = per_class[members].mean().item()
            report[f"accuracy_{group}.adjusted"] = adjusted[members].mean().item()
    if outputs.residual is not None:
        residual, rates = outputs.residual.double(), class_means(outputs.converged, labels, num_classes).cpu()
        report |= {f"solver_{name}": getattr(outputs, name).double().mean().item() for name in ("converged", "steps")}
        report |= {"solver_residual_median": residual.median().item(), "solver_residual_max": residual.max().item()}
        report |= {f"solver_converged_{group}": rates[members].mean().item() for group, members in groups.items()}
    if with_nc:
        moments = metrics.class_moments(outputs.features, labels, num_classes)
        seen = (outputs.features, labels, outputs.logits, outputs.weight)
        report |= report_of(moments, *seen, minority if groups else None)
        other = report_of(moments.with_weighting("sample"), *seen)
        report |= {f"{name}.sample": other[name] for name in CENTRED}
    return report


def evaluate(
    model: Classifier, loader: Iterable, counts: Tensor, minority: Tensor | None = None, with_nc: bool = True
) -> dict[str, float]:
    """Accuracies, loss, neural-collapse report and solver statistics of a network on one split.

    Parameters
    ----------
    model : the network; evaluated in evaluation mode, left in the mode it was in
    loader : yields images (B, C, H, W) and labels (B,)
    counts : (K,) training images per class; weights of the train-prior accuracy
    minority : (K,) bool or class ids; left out: the classes with fewer training images than the largest
    with_nc : compute the neural-collapse report, and what in it depends on the centring (`CENTRED`) with the sample
        mean too, under names ending in ".sample"

    Returns
    -------
    dict
        ``loss`` is the mean cross-entropy over samples; ``accuracy_balanced`` the mean of the class accuracies, which
        is the paper's "overall"; ``accuracy_majority`` and ``accuracy_minority`` the same over those classes;
        ``accuracy_train_prior`` the class accuracies weighted by training images; ``feature_norm`` the mean of ‖h‖₂
        over samples. Names ending in ".adjusted" are those of the predictions after logit adjustment
        (`nclib.losses.adjusted_logits`), for imbalanced classes.
        All accuracies lie in [0, 1].

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> model = nc.build_model(nc.ModelConfig(kind="explicit", width=2), num_classes=10, in_channels=1)
    >>> batches = [(torch.rand(20, 1, 8, 8), torch.arange(20) % 10)]
    >>> report = nc.evaluate(model, batches, counts=torch.full((10,), 2))
    >>> 0 <= report["accuracy_balanced"] <= 1
    True
    """
    counts = torch.as_tensor(counts)
    minority = counts < counts.max() if minority is None else class_mask(minority, len(counts))
    return summarise(collect(model, loader), counts, minority, with_nc)


def per_class_rows(outputs: Outputs, num_classes: int) -> Iterator[tuple[int, str, float]]:
    """(class, metric, value) of the accuracy and, for an equilibrium, the share of images that did not converge."""
    columns = {"accuracy": outputs.logits.argmax(1) == outputs.labels}
    if outputs.converged is not None:
        columns |= {"not_converged": ~outputs.converged, "solver_steps": outputs.steps}
    for metric, values in columns.items():
        for k, value in enumerate(class_means(values, outputs.labels, num_classes).tolist()):
            yield k, metric, value
