"""Sun & Shi (NeurIPS 2024): theory, tables, looks into networks, and certificates.

Readings of its problems (7) and (9), used throughout. *As printed*: the mean of ‖h‖² over classes is at most E_H, and
the inputs H0 are free in each problem; the ten statements are judged so. *Proofs'*: the chains (21) and (32) bound the
inputs H0 by E_H; their conditions of equality name ‖h0‖² and ‖h‖². *Inputs given*: H0 is the same for both models, as
section 3.2 assumes before Theorem 3.1; B.1 does not minimise over H0 either. It is printed too, so its certificates
also say "as printed"; their place names it. In all of them mean ‖w_k‖² ≤ E_W and ‖W_EX‖_F, ‖W_DEQ‖_F ≤ E_H. The
explicit layer is h = W_EX h0; the linear DEQ is h = (I − W_DEQ)⁻¹ h0 (sum from i = 0, section 3.2) or W_DEQ (I −
W_DEQ)⁻¹ h0 (sum from i = 1, appendix B.1).

Z = W H are the logits, C_n = I − 11ᵀ/n, ‖·‖_* is the nuclear norm, and ‖WH‖_* ≤ ‖W‖_F ‖H‖_F ≤ B = K √(E_W E_H).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
