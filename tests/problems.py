"""For the tests of metrics: features in clusters, and their moments in plain NumPy."""

import numpy as np
import torch
from torch import Tensor, nn

K, D = 6, 11
COUNTS = [40, 25, 12, 7, 5, 2]  # unequal on purpose: the two weightings must differ
MINORITY = [2, 4, 5]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def single(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def rotation(dim: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(dim, dim, seed=seed)).Q


def random_problem(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features (N, d) in clusters off the origin, labels, logits with a bias, classifier (K, d)."""
    labels = torch.repeat_interleave(torch.arange(K), torch.tensor(COUNTS))
    labels = labels[torch.randperm(len(labels), generator=generator(seed))]
    means = normal(K, D, seed=seed + 1)
    h = means[labels] + 0.7 * normal(len(labels), D, seed=seed + 2) + 0.5
    w = means + 0.5 * normal(K, D, seed=seed + 3)
    return h, labels, h @ w.T + normal(K, seed=seed + 4), w


def numpy_moments(h: Tensor, labels: Tensor, weighting: str) -> dict[str, np.ndarray]:
    h = h.double().numpy()
    labels = labels.numpy()
    classes = range(labels.max() + 1)
    counts = np.array([(labels == k).sum() for k in classes])
    means = np.stack([h[labels == k].mean(0) for k in classes])
    alike = np.full(len(counts), 1 / len(counts))
    by_size = counts / len(h)
    mean = (alike if weighting == "class" else by_size) @ means
    weights = by_size if weighting == "sample" else alike
    around = h - means[labels]
    return {
        "counts": counts,
        "class_means": means,
        "global_mean": mean,
        "within_cov": around.T @ around / len(h),
        "between_cov": sum(a * np.outer(c, c) for a, c in zip(weights, means - mean, strict=True)),
        "class_variances": np.array(
            [((h[labels == k] - means[k]) ** 2).sum(1).mean() for k in classes]
        ),
    }


def close(actual, expected, rtol: float = 1e-10) -> None:
    """Equal to rtol of the largest entry: what float64 rounding may leave in a matrix."""
    actual = torch.as_tensor(actual).double()
    expected = torch.as_tensor(np.asarray(expected)).double()
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * float(expected.abs().max()))


class Net(nn.Module):
    """Modules by name, and what is done with them."""

    def __init__(self, does, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.does = does

    def forward(self, *args, **kwargs):
        return self.does(self, *args, **kwargs)
