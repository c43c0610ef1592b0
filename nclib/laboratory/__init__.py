"""The panels of the laboratory notebook: a run to train and watch, solvers step by step, stored runs side by side."""
