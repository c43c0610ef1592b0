"""Neural-collapse metrics: one definition, one name, one reference.

``moments`` is what every metric is a function of; ``definitions`` has NC1 … NC4, the paper's own uncentred equations,
``alone`` minority collapse and the effective rank; ``table`` has the metrics of a report once, with label, ideal value
and range; ``report`` computes them all.

``measure`` measures the layers of any network.

Symbols: N samples, K classes, d feature dimension; h (N, d) features, w (K, d) classifier rows, μ_k class
means, μ their mean under the chosen weighting. Everything is computed in float64, chunk by chunk, on the
device of the input, whatever the precision of the input is; no gradient is recorded. NumPy arrays are
accepted wherever tensors are. Features may be as large as 1e150 and as small as 1e-150, where their squares still
are float64 numbers; classifier rows, and vectors given to ``nc2_*``, may have any size.
"""

from nclib.system import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
