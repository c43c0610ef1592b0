"""What the measurements share: ratios taken in one run, and files."""

import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch

from nclib import paths, provenance

REPEATS = 7
PEERS = ("torchdeq", "jaxopt", "optimistix")


class Figure(NamedTuple):
    """One measured ratio.

    Parameters
    ----------
    part, what, case : of the table, what is compared, and at which size
    ratio, low, high : median, smallest and largest of the rounds
    target : what it should be at most; None without a target
    note : what else is to be said
    """

    part: str
    what: str
    case: str
    ratio: float
    low: float
    high: float
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio <= self.target


def seconds(work: Callable[[], object]) -> float:
    """How long a work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rounds(works: Sequence[Callable[[], object]], repeats: int = REPEATS) -> list[list[float]]:
    """Seconds of each work in each round.

    A round runs all of them in turn, so that a slow minute of the machine falls on all. One round
    before the first warms caches up and is thrown away.
    """
    for work in works:
        work()
    taken = [[] for _ in works]
    for _ in range(repeats):
        for work, times in zip(works, taken, strict=True):
            times.append(seconds(work))
    return taken


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest ratio of the rounds."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(each), min(each), max(each)


def finish(
    name: str, figures: Sequence[Figure], quick: bool, facts: dict[str, Any], started: float
) -> pd.DataFrame:
    """Print the figures; unless quick, write them to results/reference/bench/.

    Parameters
    ----------
    name : of the files
    figures : the ratios
    quick : write nothing
    facts : what else goes into the record
    started : `time.perf_counter()` at the beginning
    """
    rows = []
    for figure in figures:
        rows.append(figure._asdict() | {"met": figure.met})
        line = f"  {figure.what}, {figure.case}: "
        line += f"{figure.ratio:.3g} [{figure.low:.3g}, {figure.high:.3g}]"
        if figure.target is not None:
            line += f"  ≤ {figure.target:g} {'met' if figure.met else 'MISSED'}"
        print(line)
    frame = pd.DataFrame(rows)
    if quick:
        return frame
    # before anything is written, which would make the tree a changed one
    record = provenance.capture()
    record["load_average"] = [round(load, 2) for load in os.getloadavg()]
    record["repeats"] = REPEATS
    record["seconds"] = round(time.perf_counter() - started, 1)
    record["peers"] = {peer: version_of(peer) for peer in ("scipy", *PEERS)}
    record |= facts
    folder = paths.reference() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    table = frame.assign(**circumstances(record))
    table.to_csv(folder / f"{name}.csv", index=False, float_format="%.4g")
    text = json.dumps(record, indent=1) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return frame


def circumstances(record: dict[str, Any]) -> dict[str, Any]:
    """What stands beside each row of a table: threads, machine, and versions."""
    versions = {"torch": record["versions"]["torch"], "numpy": record["versions"]["numpy"]}
    versions |= record["peers"]
    texts = [f"{package} {version}" for package, version in versions.items() if version]
    return {
        "threads": record["threads"],
        "machine": f"{record['cpu']}, {record['cores']} cores",
        "versions": ", ".join(texts),
    }


def version_of(package: str) -> str | None:
    """The installed version; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def set_threads() -> None:
    """As many threads as OMP_NUM_THREADS says; where it is silent, one, as in `make`."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
