"""Data sets as plain uint8 tensors, the images of one run, and batches made on the device.

The way down: a name → `load_dataset` (all images of a split) → `make_split` (the images one run trains on, by
the run's options and seed) → `Batches` (normalised, augmented, shuffled). It has no worker processes: an
image set lives on the device as uint8, and every batch is one gather.

Everything that touches the disk lies below `nclib.paths.data()`; nothing is kept in a home folder. Downloads
are verified by checksum; no data set is ever taken in place of another.

`base` holds what all share; `digits`, `originals` and `folders` the three kinds of data sets; `sets` the way from a
name to one of them; `split` the images of one run and their batches.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
