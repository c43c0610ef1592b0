"""``nclib measure``: a network of your own, or saved features."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nclib.cli.output import print_frame

if TYPE_CHECKING:
    import pandas as pd


def measure(
    source: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION|FILE.npz")],
    layer: Annotated[list[str] | None, typer.Option(help="A layer's name; left out: the network's children.")] = None,
    classes: Annotated[int | None, typer.Option("--num-classes", help="K; left out: the classifier's rows.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Average (B, T, D) over T.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table there too.", dir_okay=False)] = None,
) -> None:
    """Neural collapse in the layers of your own network, or of saved features.

    FUNCTION takes nothing and returns (model, loader). MODULE is imported, from this folder too, so its code runs.
    FILE.npz holds h, labels and, if you like, logits and w.
    """
    from nclib.config import ConfigError

    try:
        if source.endswith(".npz"):
            table = _of_file(source, classes)
        else:
            table = _of_network(source, layer, classes, "tokens" if tokens else None)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(str(error)) from None
    if csv is not None:
        table.to_csv(csv, index=False)
    if "layer" in table:
        order = table["layer"].unique()
        table = table.pivot_table(index="metric", columns="layer", values="value", sort=False, dropna=False)[order]
        table = table.reset_index().rename_axis(columns=None)
    print_frame(table)


def _of_network(source: str, layers: list[str] | None, classes: int | None, pool: str | None) -> "pd.DataFrame":
    import nclib as nc

    module, colon, function = source.partition(":")
    if not (module and colon and function):
        raise ValueError(f"{source!r} is neither MODULE:FUNCTION, such as my_net:load, nor an .npz")
    sys.path.append(os.getcwd())  # last: no file of this folder is taken for a module of Python
    returned = getattr(importlib.import_module(module), function)()
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ValueError(f"{source} must return (model, loader), got {type(returned)}")
    model, loader = returned
    return nc.measure(model, loader, layers, classes, pool)


def _of_file(path: str, classes: int | None) -> "pd.DataFrame":
    import numpy as np
    import pandas as pd

    import nclib as nc

    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except Exception as error:  # whatever numpy, zipfile and zlib raise of a file that is none or damaged
        raise ValueError(f"{path} cannot be read; numpy.savez({path!r}, h=…, labels=…) writes one: {error}") from None
    if not {"h", "labels"} <= arrays.keys() <= {"h", "labels", "logits", "w"}:
        raise ValueError(f"{path} must hold h and labels, and may hold logits and w; it holds {sorted(arrays)}")
    report = nc.nc_report(**arrays, num_classes=classes)
    return pd.DataFrame(report.items(), columns=["metric", "value"])
