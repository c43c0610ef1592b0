"""Frames as `RunStore.frame` gives them."""

import pandas as pd


def rows(
    metric="accuracy_balanced",
    split="test",
    model="explicit",
    seed=0,
    values=(0.5,),
    dataset="digits",
    k_a=None,
    ratio=1.0,
    epochs=None,
):
    """Rows of one run; one value an epoch."""
    frame = pd.DataFrame(
        {
            "run_id": f"{dataset}-{k_a}-{ratio}-{model}-s{seed}",
            "profile": "quick",
            "dataset": dataset,
            "model": model,
            "K_A": k_a,
            "R": ratio,
            "seed": seed,
            "split": split,
            "epoch": epochs or range(1, len(values) + 1),
            "metric": metric,
            "value": values,
        }
    )
    return frame.astype({"K_A": "Float64", "R": "Float64", "value": float})


def stack(*frames):
    return pd.concat(frames, ignore_index=True)
