"""The training images behind features, small enough to stand in a table."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import torch
from PIL import Image

from nclib import data
from nclib.config import RunConfig


def pictures(config: RunConfig, labels: Sequence[int]) -> list[str]:
    """The training images of a run behind rows of its features.

    Parameters
    ----------
    config : of the run
    labels : class of each row; the rows of a class are its first images, as `nclib.imbalance.sample_rows` takes them

    Returns
    -------
    A PNG in base64 for each row; empty texts where the images are not on this machine.

    Examples
    --------
    >>> import nclib as nc
    >>> from companion import neural_collapse as sun_shi
    >>> texts = sun_shi.pictures(nc.engine.experiments.experiment("fig2", "smoke")[0], [0, 0, 1])
    >>> len(texts), texts[0][:8]
    (3, 'iVBORw0K')
    """
    if not data.describe(config.data.dataset)["present"]:
        return [""] * len(labels)
    split = data.make_split(config.data, config.seed)
    rows = {k: iter(torch.nonzero(split.train_labels == k).flatten().tolist()) for k in {*map(int, labels)}}
    return [_png(split.train_images[next(rows[int(k)])]) for k in labels]


def _png(image: torch.Tensor) -> str:
    channels = image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(channels[..., 0] if channels.shape[2] == 1 else channels).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
