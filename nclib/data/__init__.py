"""Data sets as plain uint8 tensors, the images of one run, and batches made on the device.

The way down: a name → `load_dataset` (all images of a split) → `make_split` (the images one run trains on, by
the run's options and seed) → `Batches` (normalised, augmented, shuffled). It has no worker processes: an
image set lives on the device as uint8, and every batch is one gather.

Everything that touches the disk lies below `nclib.system.paths.data()`; nothing is kept in a home folder. Downloads
are verified by checksum; no data set is ever taken in place of another.

`base` holds what all share; `digits`, `originals` and `folders` the three kinds of data sets; `sets` the way from a
name to one of them; `split` the images of one run and their batches.
"""

from nclib.data.base import DATASETS, SPLITS, Augment, DataError, Dataset
from nclib.data.digits import scene_places
from nclib.data.folders import MAX_SIDE, resolve_dataset
from nclib.data.sets import check, describe, fetch, load_dataset
from nclib.data.split import Batches, Split, make_split

__all__ = [
    "DATASETS",
    "MAX_SIDE",
    "SPLITS",
    "Augment",
    "Batches",
    "DataError",
    "Dataset",
    "Split",
    "check",
    "describe",
    "fetch",
    "load_dataset",
    "make_split",
    "resolve_dataset",
    "scene_places",
]
