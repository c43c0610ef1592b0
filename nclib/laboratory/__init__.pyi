"""This wing's public names, imported on first use."""

from .compute import image_traces as image_traces, walks as walks
from .panels import one_image as one_image, plane as plane, train as train
