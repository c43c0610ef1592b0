"""Frames as `nclib.ensure_runs` gives them."""

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
    run = {
        "run_id": f"{dataset}-{k_a}-{ratio}-{model}-s{seed}",
        "profile": "quick",
        "dataset": dataset,
    }
    run |= {"model": model, "K_A": k_a, "R": ratio, "seed": seed, "split": split}
    frame = pd.DataFrame(
        run | {"epoch": epochs or range(1, len(values) + 1), "metric": metric, "value": values}
    )
    return frame.astype({"K_A": "Float64", "R": "Float64", "value": float})


def stack(*frames):
    return pd.concat(frames, ignore_index=True)


def trained(frame, accuracy=1.0):
    """The frame with both training accuracies of each run at its last epoch, so that its phase is known."""
    last = frame.sort_values("epoch").groupby(["run_id", "model"]).tail(1)
    metrics = ("accuracy_train_prior", "accuracy_balanced")
    return stack(
        frame, *(last.assign(split="train", metric=metric, value=accuracy) for metric in metrics)
    )
