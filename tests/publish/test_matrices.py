"""What is drawn as matrices and embeddings is computed right."""

import numpy as np

from nclib.metrics import simplex_etf
from nclib.publish.plotting import matrices


def test_cosine_gram_of_a_simplex():
    vectors = simplex_etf(4, 6).numpy() * np.array([[1], [2], [1], [3]])
    np.testing.assert_allclose(matrices.cosine_gram(vectors, centred=False), np.eye(4) * 4 / 3 - 1 / 3, atol=1e-12)
    shifted = simplex_etf(4, 6).numpy() + 5.0
    np.testing.assert_allclose(matrices.cosine_gram(shifted, centred=True), np.eye(4) * 4 / 3 - 1 / 3, atol=1e-9)
    assert matrices.cosine_gram(shifted, centred=False).min() > 0.9
