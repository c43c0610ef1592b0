from . import (
    certify as certify,
    commands as commands,
    course as course,
    exact as exact,
    kernel_equivalence as kernel_equivalence,
    laboratory as laboratory,
    neural_collapse as neural_collapse,
    separation_bias as separation_bias,
    site as site,
)
from .experiments import experiment as experiment
