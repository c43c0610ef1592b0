"""The neural-collapse metrics: the report against an epoch, accumulation against a dense one-hot, memory, truth.

python benchmarks/bench_metrics.py [--quick]
"""

import hashlib
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import scipy.linalg
import torch
from common import Figure, finish, ratio, rounds, threads
from torch import Tensor

from nclib.config import ModelConfig
from nclib.metrics import ClassMoments, nc_report
from nclib.models import build_model

PAPER_IMAGES, PAPER_WIDTH, BATCH = 50_000, 64, 16


def features(samples: int, dim: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % classes
    w = torch.randn(classes, dim, generator=draw)
    h = w[labels] + torch.randn(samples, dim, generator=draw)
    return h, labels, h @ w.T, w


def report_against_epoch(repeats: int, samples: int, width: int, dim: int = 512) -> list[Figure]:
    """The whole report at K = 10, against one explicit training epoch as long as the number of samples: the time of a
    batch of the paper's ResNet-18 on 32×32 images times the number of batches."""
    model = build_model(ModelConfig(kind="explicit", width=width), 10, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, targets = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10

    def step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images).logits, targets).backward()
        optimiser.step()

    data = features(samples, dim, 10)
    report, batch = rounds([lambda: nc_report(*data), step], repeats)
    epoch = [t * samples / BATCH for t in batch]
    note = f"report {1e3 * sorted(report)[len(report) // 2]:.0f} ms; epoch from batches of {BATCH}"
    return [
        Figure("NC report", "NC report / explicit epoch", f"{samples} × {dim}, K=10", *ratio(report, epoch), 0.05, note)
    ]


class DenseOneHot:
    """The method of the public accumulators (rhubarbwu/neural-collapse), in our own words: sums, within-class variances
    and covariance are three objects; each compares all labels with all classes, two multiply with the (K, B) matrix
    that results, two verify by a hash that the class means are those they were given before (a third to a half of
    their time, so they are measured without it too). In float32."""

    def __init__(self, classes: int, dim: int, hashes: bool) -> None:
        self.hashes = hashes
        self.classes, self.means = torch.arange(classes, dtype=torch.int32), torch.zeros(classes, dim)
        self.counts, self.sums = torch.zeros(3, classes, dtype=torch.int32), torch.zeros(classes, dim)
        self.variances, self.scatter = torch.zeros(classes), torch.zeros(dim, dim)

    def update(self, h: Tensor, labels: Tensor) -> None:
        self.sums += self._one_hot(labels, 0).T.float() @ h
        self.update_about_means(h, labels)

    def update_about_means(self, h: Tensor, labels: Tensor) -> None:
        self._verify()
        self.variances += (self._one_hot(labels, 1).T.float() @ (h - self.means[labels]).square()).sum(1)
        self._verify()
        self._one_hot(labels, 2)
        centred = h - self.means[labels]
        self.scatter += centred.T @ centred

    def _one_hot(self, labels: Tensor, which: int) -> Tensor:
        one_hot = labels[:, None] == self.classes
        self.counts[which] += one_hot.sum(0, dtype=torch.int32)
        return one_hot

    def _verify(self) -> None:
        if self.hashes:
            hashlib.sha256(self.means.numpy().tobytes()).hexdigest()


def accumulation(repeats: int, classes: int, dim: int, batch: int = 128, in_a_row: int = 40) -> list[Figure]:
    """One batch into class sums, class variances and the covariance, against the dense one-hot: as one of forty in a
    row, and alone, when the other method has just emptied the caches."""
    draw = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(batch, dim, generator=draw), torch.randint(classes, (batch,), generator=draw))
        for _ in range(in_a_row)
    ]
    figures = []
    for name, part in (("a batch, 40 in a row", batches), ("a batch alone", batches[:1])):
        for rival, hashes in (("dense one-hot", True), ("dense one-hot without its hashes", False)):
            methods = ClassMoments(classes, dim), DenseOneHot(classes, dim, hashes)
            ours, theirs = rounds([lambda m=m, p=part: [m.update(*b) for b in p] for m in methods], repeats)
            times = [1e3 * statistics.median(t) / len(part) for t in (ours, theirs)]
            note = f"{times[0]:.2f} ms in float64 against {times[1]:.1f} ms in float32"
            case = f"B={batch} K={classes} D={dim}"
            what = f"accumulate {name} / by {rival}"
            figures.append(Figure("NC report", what, case, *ratio(ours, theirs), 0.05, note))
    return figures


def _peak(samples: int, dim: int, classes: int) -> dict[str, float]:
    from nclib.system.provenance import Cost

    with Cost() as cost:
        data = features(samples, dim, classes)
        before = cost.as_dict()["peak_rss_mib"]
        nc_report(*data)
    return {"inputs": before, "peak": cost.as_dict()["peak_rss_mib"]}


def peak_memory(samples: int, dim: int, classes: int) -> list[Figure]:
    """Peak resident memory of a fresh process, its inputs and torch included, in GiB."""
    command = [sys.executable, __file__, "--peak", str(samples), str(dim), str(classes)]
    mib = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    gib = mib["peak"] / 1024
    note = f"{mib['inputs']:.0f} MiB of it before the report"
    return [
        Figure(
            "NC report",
            "peak memory of the process in GiB",
            f"{samples} × {dim}, K={classes}",
            gib,
            gib,
            gib,
            2.0,
            note,
        )
    ]


def truth(samples: int, dim: int, classes: int) -> list[Figure]:
    """Σ_W and tr(Σ_W Σ_B†)/K of float32 features, against NumPy and SciPy in float64: relative differences."""
    h, labels, logits, w = features(samples, dim, classes)
    x, y = h.double().numpy(), labels.numpy()
    means = np.stack([x[y == k].mean(0) for k in range(classes)])
    centred = [x[y == k] - means[k] for k in range(classes)]
    within = sum(c.T @ c / len(c) for c in centred) / classes
    between = (means - means.mean(0)).T @ (means - means.mean(0)) / classes
    moments = ClassMoments(classes, dim).update(h, labels)
    ours = moments.within_cov.numpy()
    expected = np.trace(within @ scipy.linalg.pinvh(between)) / classes
    found = {
        "Σ_W": float(np.linalg.norm(ours - within) / np.linalg.norm(within)),
        "nc1_pinv": abs(nc_report(h, labels, logits, w)["nc1_pinv"] / expected - 1),
    }
    return [
        Figure("truth", f"relative error of {name}", f"{samples} × {dim}, K={classes}", e, e, e, 1e-9)
        for name, e in found.items()
    ]


def main(quick: bool = False) -> pd.DataFrame:
    """Everything above; quick: tiny sizes and two rounds, nothing written."""
    started = time.perf_counter()
    threads()
    repeats, samples, width = (2, 500, 4) if quick else (7, PAPER_IMAGES, PAPER_WIDTH)
    figures = report_against_epoch(repeats, samples, width, 32 if quick else 512)
    figures += accumulation(repeats, *((50, 16) if quick else (5000, 512)))
    figures += peak_memory(*((500, 32, 10) if quick else (PAPER_IMAGES, 2048, 1000)))
    figures += truth(*((500, 32, 10) if quick else (5000, 512, 10)))
    return finish("metrics", figures, quick, {}, started)


if __name__ == "__main__":
    if "--peak" in sys.argv:
        threads()
        print(json.dumps(_peak(*map(int, sys.argv[2:]))))
    else:
        main("--quick" in sys.argv[1:])
