"""Training objectives for imbalanced classes, next to plain cross-entropy.

All of them see the number of training images of each class and nothing else of the data. They are
written for the classifier without bias that every network here has; z (B, K) are logits, y (B,)
labels, n_k the images of class k.
"""

from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from nclib.config import LossName

EFFECTIVE_NUMBER_BETA = 0.9999
"""β of the effective number of images (Cui et al. 2019, the value used for CIFAR)."""
LDAM_LARGEST_MARGIN = 0.5
"""Margin of the smallest class between cosines (Cao et al. 2019)."""
COSINE_SCALE = 30.0
"""Logits of a cosine classifier are this many cosines (Cao et al. 2019)."""
DEFERRED_FROM = 0.8
"""Share of the epochs after which LDAM-DRW weighs the classes (160 of 200 in Cao et al. 2019)."""


def adjusted_logits(logits: Tensor, counts: Tensor) -> Tensor:
    """Logits of a finished network, corrected for the class sizes it was trained on.

        z_k − log(n_k/N)

    The largest is the prediction that minimises the error under equal class sizes, if the softmax
    of z is right under the training distribution.

    Source: Menon et al. (2021), section 4.1, τ = 1.

    Parameters
    ----------
    logits : (B, K).
    counts : (K,) training images of each class, all at least 1.

    Examples
    --------
    >>> adjusted_logits(torch.zeros(1, 3), torch.tensor([100, 20, 1])).argmax(1)
    tensor([2])
    """
    # In float32 or more: half precision ends at 65,504 images.
    counts = counts.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
    prior = counts / counts.sum()
    return logits - prior.log()


def class_balanced_weights(counts: Tensor) -> Tensor:
    """Weights of the classes (K,), with mean 1 over the classes.

        weight_k ∝ 1 / (1 − β^{n_k}),   β = 0.9999

    Source: Cui et al. (2019), eq. 10 and its normalisation to sum K.
    """
    weights = 1 / (1 - EFFECTIVE_NUMBER_BETA ** counts.double())
    return weights * len(weights) / weights.sum()


def ldam_margins(counts: Tensor) -> Tensor:
    """Margins between cosines (K,), the largest 0.5.

        margin_k ∝ n_k^{−1/4}

    Source: Cao et al. (2019), eq. 13.
    """
    margins = counts.double() ** -0.25
    return LDAM_LARGEST_MARGIN * margins / margins.max()


class Loss:
    """Loss of each sample, (B,), for one of the objectives and the class counts of a run.

        cross_entropy      −log softmax(z)_y
        balanced_softmax   −log softmax(z + log n)_y: Ren et al. (2020); Menon et al. (2021), eq. 10
        class_balanced     weight_y · cross-entropy: Cui et al. (2019)
        ldam_drw           cross-entropy of z − 30 margin_y e_y, from 80 % of the epochs on times
                           weight_y: Cao et al. (2019)

    Parameters
    ----------
    name : one of the four.
    counts : (K,) training images of each class, at least 1.
    epochs : of the whole training, for the deferred weights.
    like : a tensor of the type and on the device of the logits to come.
    """

    def __init__(self, name: LossName, counts: Tensor, epochs: int, like: Tensor) -> None:
        if name not in get_args(LossName):
            raise ValueError(f"name={name!r}: allowed are {', '.join(get_args(LossName))}")
        self.name = name
        self.epochs = epochs
        self.log_counts = counts.double().log().to(like)
        self.weights = class_balanced_weights(counts).to(like)
        self.margins = COSINE_SCALE * ldam_margins(counts).to(like)

    def __call__(self, logits: Tensor, labels: Tensor, epoch: int) -> Tensor:
        """Losses (B,) of logits (B, K) and labels (B,) in an epoch counted from 1."""
        if self.name == "balanced_softmax":
            logits = logits + self.log_counts
        elif self.name == "ldam_drw":
            logits = logits - F.one_hot(labels, len(self.margins)) * self.margins
        losses = F.cross_entropy(logits, labels, reduction="none")
        deferred = self.name == "ldam_drw" and epoch > DEFERRED_FROM * self.epochs
        if self.name == "class_balanced" or deferred:
            losses = losses * self.weights[labels]
        return losses
