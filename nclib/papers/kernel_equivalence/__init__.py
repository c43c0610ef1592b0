"""Ling et al. (ICML 2024): kernels and networks, by the paper's released code.

No formula of the paper itself was at hand.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "equivalents": [
            "equivalent",
            "estimate_moments",
            "gaussian_mixture",
            "image_samples",
            "resolve_tau0",
            "spectral_norm",
        ],
        "distances": [
            "equivalence_errors",
            "finite_width_errors",
            "finite_width_kernels",
            "matching_errors",
            "published_kernels",
        ],
        "kernels": [
            "ACTIVATIONS",
            "Activation",
            "HardTanh",
            "LeakyReLU",
            "coefficients",
            "empirical_tau0",
            "explicit_coefficients",
            "explicit_kernels",
            "implicit_ck",
            "implicit_kernels",
            "well_posedness",
        ],
        "matching": ["match_htanh", "match_layers", "match_leaky_relu"],
        "networks": ["describe_shallow"],
    },
)
