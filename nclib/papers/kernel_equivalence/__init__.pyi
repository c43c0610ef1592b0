"""The public names of this paper and where each lives, imported on first use."""

from .equivalents import (
    equivalent as equivalent,
    estimate_moments as estimate_moments,
    gaussian_mixture as gaussian_mixture,
    image_samples as image_samples,
    resolve_tau0 as resolve_tau0,
    spectral_norm as spectral_norm,
)
from .errors import (
    equivalence_errors as equivalence_errors,
    finite_width_errors as finite_width_errors,
    finite_width_kernels as finite_width_kernels,
    matching_errors as matching_errors,
    published_kernels as published_kernels,
)
from .kernels import (
    ACTIVATIONS as ACTIVATIONS,
    Activation as Activation,
    HardTanh as HardTanh,
    LeakyReLU as LeakyReLU,
    coefficients as coefficients,
    empirical_tau0 as empirical_tau0,
    explicit_coefficients as explicit_coefficients,
    explicit_kernels as explicit_kernels,
    implicit_ck as implicit_ck,
    implicit_kernels as implicit_kernels,
    well_posedness as well_posedness,
)
from .matching import (
    match_htanh as match_htanh,
    match_layers as match_layers,
    match_leaky_relu as match_leaky_relu,
)
from .networks import describe_shallow as describe_shallow
