"""This wing's public names, imported on first use."""

from .compute import (
    class_triangle as class_triangle,
    image_traces as image_traces,
    plane_map as plane_map,
    solver_methods as solver_methods,
    solver_walk as solver_walk,
)
from .panels import (
    OverlayPanel as OverlayPanel,
    PlaygroundPanel as PlaygroundPanel,
    SimplexPanel as SimplexPanel,
    TracePanel as TracePanel,
)
from .train_panel import TrainPanel as TrainPanel
