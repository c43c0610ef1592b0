"""The public names of ``nclib.data`` and where each lives."""

from . import folders as folders, originals as originals
from .base import DATASETS as DATASETS, SPLITS as SPLITS, Augment as Augment, DataError as DataError, Dataset as Dataset
from .digits import scene_places as scene_places
from .folders import MAX_SIDE as MAX_SIDE, resolve_dataset as resolve_dataset
from .sets import fetch as fetch, load_dataset as load_dataset
from .split import Batches as Batches, Split as Split, make_split as make_split
