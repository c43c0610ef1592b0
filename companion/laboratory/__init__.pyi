"""This wing's public names, imported on first use."""

from companion.laboratory.compute import (
    class_triangle as class_triangle,
    image_traces as image_traces,
    plane_map as plane_map,
    solver_methods as solver_methods,
    solver_walk as solver_walk,
)
from companion.laboratory.panels import (
    OverlayPanel as OverlayPanel,
    PlaygroundPanel as PlaygroundPanel,
    SimplexPanel as SimplexPanel,
    TracePanel as TracePanel,
)
from companion.laboratory.train_panel import TrainPanel as TrainPanel
