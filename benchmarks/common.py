"""What the measurements share: ratios taken in one run, peers that may be missing, and files."""

import importlib
import importlib.metadata
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch

from nclib import paths, provenance

REPEATS = 7
PEERS = ("torchdeq", "jaxopt", "optimistix")
HOW_TO_INSTALL = "pip install -e '.[peers]'"


class Figure(NamedTuple):
    """One measured ratio: its median, smallest and largest value, and what it should be at most (None: no target)."""

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


def peer(name: str) -> Any | None:
    """A peer's module; where it is not installed, None and a line that says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        print(f"  left out: {name} is not installed; type: {HOW_TO_INSTALL}")
        return None


def want_peers() -> None:
    """Stop where a peer is missing: without it the tracked table would be replaced by one that lacks it."""
    missing = [name for name in PEERS if peer(name) is None]
    if missing:
        lacking = ", ".join(missing)
        raise SystemExit(f"the tracked table would lack {lacking}: install them, or give --quick, which writes nothing")


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rounds(works: Sequence[Callable[[], object]], repeats: int = REPEATS) -> list[list[float]]:
    """Seconds of each work in each round. A round runs all of them in turn, so that a slow minute of the machine
    falls on all; one round before the first warms caches up and is thrown away."""
    for work in works:
        work()
    taken = [[seconds(work) for work in works] for _ in range(repeats)]
    return [list(column) for column in zip(*taken, strict=True)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median, smallest and largest ratio of the rounds."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(each), min(each), max(each)


def finish(name: str, figures: Sequence[Figure], quick: bool, facts: dict[str, Any], started: float) -> pd.DataFrame:
    """Print the figures; unless quick, write them to results/reference/bench/."""
    frame = pd.DataFrame([figure._asdict() | {"met": figure.met} for figure in figures])
    for figure in figures:
        goal = "" if figure.target is None else f"  ≤ {figure.target:g} {'met' if figure.met else 'MISSED'}"
        print(f"  {figure.what}, {figure.case}: {figure.ratio:.3g} [{figure.low:.3g}, {figure.high:.3g}]{goal}")
    if quick:
        return frame
    folder = paths.reference() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    record = provenance.capture() | {  # before anything is written, which would make the tree a changed one
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "repeats": REPEATS,
        "seconds": round(time.perf_counter() - started, 1),
        "peers": {peer_name: _version(peer_name) for peer_name in ("scipy", *PEERS)},
        **facts,
    }
    frame.assign(**circumstances(record)).to_csv(folder / f"{name}.csv", index=False, float_format="%.4g")
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return frame


def circumstances(record: dict[str, Any]) -> dict[str, Any]:
    """What stands beside each row of a table: threads, machine, and the versions of what was compared."""
    versions = {"torch": record["versions"]["torch"], "numpy": record["versions"]["numpy"], **record["peers"]}
    return {
        "threads": record["threads"],
        "machine": f"{record['cpu']}, {record['cores']} cores",
        "versions": ", ".join(f"{package} {version}" for package, version in versions.items() if version),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def threads() -> None:
    """As many threads as OMP_NUM_THREADS says; where it is silent, one, as in `make`."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
