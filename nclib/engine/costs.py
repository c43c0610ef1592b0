"""What runs cost: rough seconds of each, from what its configuration says."""

from __future__ import annotations

import math

from nclib.config import RunConfig, StoredConfig
from nclib.engine.outline import class_counts, outline

# Seconds on one core of the machine the quick profile was developed on: a fixed part for each layer call and batch,
# and one for the arithmetic.
_SECONDS_PER_BATCH = 0.022
SECONDS_PER_GMAC = 0.021
_TIMES = {"deq": 2.0, "explicit_flops": 1.5, "weight_tied": 1.3}
"""What a kind of network takes longer than the explicit one, by the tracked runs."""


def seconds(config: StoredConfig) -> float:
    """Estimated seconds of a run on one core; on another machine they may be off by a factor of two or three."""
    if not isinstance(config, RunConfig):
        return config.seconds()
    images, train = int(class_counts(config.data).sum()), config.train
    batches = train.epochs * -(-images // train.batch_size)
    passes = 3 * train.epochs * images + train.epochs // train.log_every * images
    one_layer = _SECONDS_PER_BATCH * batches
    arithmetic = SECONDS_PER_GMAC * passes * gigamacs(config.model.width, config.data.dataset)
    return (one_layer + arithmetic) * _TIMES.get(config.model.kind, 1.0)


def gigamacs(width: int, dataset: str) -> float:
    """Billions of multiplications of one forward pass: 0.555 for ResNet-18 of width 64 on 32×32 pixels."""
    return 0.555 * (width / 64) ** 2 * math.prod(outline(dataset).size) / 1024
