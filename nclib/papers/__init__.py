"""What each of the three papers defines: its experiments, formulas, tables and certificates.

`neural_collapse` (Sun & Shi 2024), `kernel_equivalence` (Ling et al. 2024), `separation_bias`
(Wu et al. 2024). The rest of nclib imports none of it; `nclib.experiment` finds the experiments of
a paper by its name.
"""
