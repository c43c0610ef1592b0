"""What a run will cost, before it starts."""

from __future__ import annotations

import math

from nclib.config import RunConfig, StoredConfig
from nclib.experiments import class_counts, outline
from nclib.probes import ProbeConfig
from nclib.shallow import ShallowConfig

# Seconds on one core of the machine the quick profile was developed on: a fixed part for each layer call and batch,
# and one for the arithmetic. Only the order of magnitude matters; `plan` and `nclib doctor` quote them as estimates.
_SECONDS_PER_BATCH = 0.022
_SECONDS_PER_GMAC = 0.021
_DEQ_OVER_EXPLICIT = 2.1
_SECONDS_PER_SOLVE = 0.025


def estimate_seconds(config: StoredConfig) -> float:
    """Rough seconds of a run on one core, before it starts. From the multiplications of the network and the number of
    batches; an equilibrium costs about two explicit networks."""
    if isinstance(config, ProbeConfig):
        return _probe_seconds(config)
    if isinstance(config, ShallowConfig):
        return config.work() * int(class_counts(config.data).sum()) / 1400
    if not isinstance(config, RunConfig):
        return config.work()
    images = int(class_counts(config.data).sum())
    convolutions = _gigamacs(config.model.width, math.prod(outline(config.data.dataset).size))
    batches = config.train.epochs * -(-images // config.train.batch_size)
    evaluations = len([e for e in range(1, config.train.epochs + 1) if e % config.train.log_every == 0])
    passes = 3 * config.train.epochs * images + evaluations * images
    factor = _DEQ_OVER_EXPLICIT if config.model.kind == "deq" else 1.0
    return factor * (batches * _SECONDS_PER_BATCH + passes * convolutions * _SECONDS_PER_GMAC)


def _probe_seconds(config: ProbeConfig) -> float:
    """Of a probe: a fixed part for each solve and its neural-collapse report, and the evaluations of the cell, of which
    most images need a third of those allowed."""
    images = int(class_counts(config.data).sum()) + outline(config.data.dataset).classes * (
        config.data.test_per_class or 50
    )
    cell = 0.14 * _gigamacs(config.model.width, math.prod(outline(config.data.dataset).size))
    evaluations = images * config.evaluations() / 3
    return _SECONDS_PER_SOLVE * len(list(config.settings())) + evaluations * cell * _SECONDS_PER_GMAC


def _gigamacs(width: int, pixels: int) -> float:
    """Billions of multiplications of one forward pass: 0.555 for ResNet-18 of width 64 on 32×32 pixels."""
    return 0.555 * (width / 64) ** 2 * pixels / 1024
