"""``nclib measure``: a custom network, or saved features."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nclib.cli.output import print_frame
from nclib.system import own_code


def measure(
    source: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION|FILE.npz")],
    layer: Annotated[list[str] | None, typer.Option(help="A layer's name, or all; left out: every block.")] = None,
    classes: Annotated[int | None, typer.Option("--num-classes", help="K; left out: found from the network.")] = None,
    pool: Annotated[str, typer.Option(help="mean, flatten or cls: how a feature map becomes a vector.")] = "mean",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table there too.", dir_okay=False)] = None,
) -> None:
    """Neural collapse in the layers of your own network, or of saved features.

    FUNCTION takes nothing and returns (model, loader) or (model, loader, test loader). MODULE is imported, from this
    folder too, so its code runs. FILE.npz holds h, labels and, if you like, logits and w.
    """
    import pandas as pd

    from nclib.config import ConfigError
    from nclib.metrics import measuring

    try:
        if not source.endswith(".npz"):
            table = _of_network(source, "all" if layer == ["all"] else layer, classes, pool)
        elif layer or pool != "mean":
            raise ValueError("--layer and --pool are of a network; saved features have neither")
        else:
            table = pd.DataFrame(measuring.measure_file(source, classes).items(), columns=["metric", "value"])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if csv is not None:
        table.to_csv(csv, index=False)
    if "layer" in table:
        order = table["layer"].unique()
        table = table.pivot_table(index="metric", columns="layer", values="value", sort=False, dropna=False)[order]
        table = table.reset_index().rename_axis(columns=None)
    print_frame(table)


def _of_network(source: str, *options: Any) -> Any:
    """The table of what the function named returns."""
    from nclib.metrics import measuring

    own_code.search_here()
    if not own_code.is_import_path(source):
        raise ValueError(f"{source!r} is neither MODULE:FUNCTION, such as my_net:load, nor an .npz")
    found = own_code.load(source)()
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ValueError(f"{source} must return (model, loader) or (model, loader, test), got {type(found)}")
    return measuring.measure(*found[:2], *options, test=found[2] if len(found) == 3 else None)
