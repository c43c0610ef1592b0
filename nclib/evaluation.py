"""What is measured of a trained `Classifier` on a split: accuracies, loss, collapse, solver."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nclib import metrics
from nclib.losses import adjusted_logits
from nclib.metrics.measure import evaluating
from nclib.metrics.moments import class_mask
from nclib.metrics.report import centred_report, report_of
from nclib.models import Classifier


class Outputs(NamedTuple):
    """A whole split through the network.

    features (N, d), logits (N, K) and labels (N,); the classifier's rows (K, d); of each image the
    relative residual of its equilibrium, the cell evaluations it took and whether it converged
    (None for networks without one).
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    weight: Tensor
    residual: Tensor | None = None
    steps: Tensor | None = None
    converged: Tensor | None = None


@torch.no_grad()
def collect(model: Classifier, loader: Iterable[tuple[Tensor, Tensor]]) -> Outputs:
    """Run a split through the network in evaluation mode.

    No image is ever skipped here: an equilibrium that did not converge enters with its best
    iterate.
    """
    columns = defaultdict(list)
    device = model.classifier.weight.device
    with evaluating(model):
        for images, labels in loader:
            output = model(images.to(device))
            columns["features"].append(output.features)
            columns["logits"].append(output.logits)
            columns["labels"].append(labels.to(device))
            if output.solution is not None:
                columns["residual"].append(output.solution.residual)
                columns["steps"].append(output.solution.steps)
                columns["converged"].append(output.solution.converged)
    tensors = {name: torch.cat(parts) for name, parts in columns.items()}
    return Outputs(**tensors, weight=model.classifier.weight.detach().clone())


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(K,), mean of `values` (N,) over the samples of each class; NaN for a class without any."""
    zeros = torch.zeros(num_classes, dtype=torch.float64, device=values.device)
    sums = zeros.index_add(0, labels, values.double())
    counts = zeros.index_add(0, labels, torch.ones_like(values, dtype=torch.float64))
    return sums / counts


def summarise(
    outputs: Outputs, counts: Tensor, minority: Tensor, with_nc: bool
) -> dict[str, float]:
    """Every scalar reported for one split: see `evaluate`."""
    labels = outputs.labels
    num_classes = len(counts)
    counts = torch.as_tensor(counts).cpu().double()
    minority = torch.as_tensor(minority).cpu()
    groups = {}
    if minority.any():
        groups = {"majority": ~minority, "minority": minority}

    correct = outputs.logits.argmax(1) == labels
    accuracy = class_means(correct, labels, num_classes).cpu()
    report = {
        "loss": F.cross_entropy(outputs.logits.double(), labels).item(),
        "accuracy_balanced": accuracy.mean().item(),
        "accuracy_train_prior": (accuracy @ counts / counts.sum()).item(),
        "feature_norm": outputs.features.double().norm(dim=1).mean().item(),
    }
    if groups:
        correct = adjusted_logits(outputs.logits, counts).argmax(1) == labels
        adjusted = class_means(correct, labels, num_classes).cpu()
        report["accuracy_balanced.adjusted"] = adjusted.mean().item()
        for group, members in groups.items():
            report[f"accuracy_{group}"] = accuracy[members].mean().item()
            report[f"accuracy_{group}.adjusted"] = adjusted[members].mean().item()

    if outputs.residual is not None:
        residual = outputs.residual.double()
        report["solver_converged"] = outputs.converged.double().mean().item()
        report["solver_steps"] = outputs.steps.double().mean().item()
        report["solver_residual_median"] = residual.median().item()
        report["solver_residual_max"] = residual.max().item()
        converged = class_means(outputs.converged, labels, num_classes).cpu()
        for group, members in groups.items():
            report[f"solver_converged_{group}"] = converged[members].mean().item()

    if with_nc:
        moments = metrics.class_moments(outputs.features, labels, num_classes)
        report |= report_of(
            moments,
            outputs.features,
            labels,
            outputs.logits,
            outputs.weight,
            minority if groups else None,
        )
        around_sample_mean = centred_report(moments.with_weighting("sample"), outputs.weight)
        for name, value in around_sample_mean.items():
            report[f"{name}.sample"] = value
    return report


def evaluate(
    model: Classifier,
    loader: Iterable,
    counts: Tensor,
    minority: Tensor | None = None,
    with_nc: bool = True,
) -> dict[str, float]:
    """Accuracies, loss, neural-collapse report and solver statistics of a network on one split.

    Parameters
    ----------
    model : the network; evaluated in evaluation mode, left in the mode it was in
    loader : yields images (B, C, H, W) and labels (B,)
    counts : (K,) training images per class; weights of the train-prior accuracy
    minority : (K,) bool or class ids; left out: the classes with fewer training images than the
        largest
    with_nc : compute the neural-collapse report, and its metrics of centred class means with the
        sample mean as centre too, under names ending in ".sample"

    Returns
    -------
    dict
        ``loss`` is the mean cross-entropy over samples; ``accuracy_balanced`` the mean of the class
        accuracies, which is the paper's "overall"; ``accuracy_majority`` and ``accuracy_minority``
        the same over those classes; ``accuracy_train_prior`` the class accuracies weighted by
        training images; ``feature_norm`` the mean of ‖h‖₂ over samples. Names ending in ".adjusted"
        are those of the predictions after logit adjustment (`nclib.losses.adjusted_logits`), for
        imbalanced classes. All accuracies lie in [0, 1].

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> config = nc.ModelConfig(kind="explicit", width=2)
    >>> model = nc.build_model(config, num_classes=10, in_channels=1)
    >>> batches = [(torch.rand(20, 1, 8, 8), torch.arange(20) % 10)]
    >>> report = nc.evaluate(model, batches, counts=torch.full((10,), 2))
    >>> 0 <= report["accuracy_balanced"] <= 1
    True
    """
    counts = torch.as_tensor(counts)
    smaller = counts < counts.max()
    minority = smaller if minority is None else class_mask(minority, len(counts))
    return summarise(collect(model, loader), counts, minority, with_nc)


def per_class_rows(outputs: Outputs, num_classes: int) -> Iterator[tuple[int, str, float]]:
    """(class, metric, value) of the accuracy and, for an equilibrium, the share of images that did
    not converge."""
    columns = {"accuracy": outputs.logits.argmax(1) == outputs.labels}
    if outputs.converged is not None:
        columns["not_converged"] = ~outputs.converged
        columns["solver_steps"] = outputs.steps
    for metric, values in columns.items():
        means = class_means(values, outputs.labels, num_classes)
        for k, mean in enumerate(means.tolist()):
            yield k, metric, mean
