"""What it takes to read stored runs again.

python benchmarks/bench_reading.py [--quick]

The table of many stored runs is timed beside the way it was made before: every file of every run read and checked, once
to see whether the run is sound and once more to load it.
"""

import os
import sys
import tempfile
import time

import pandas as pd
from common import Figure, finish, ratio, rounds, threads

from nclib.config import run_id
from nclib.engine import experiments, runs
from nclib.engine.store import default_store, stack, tidy
from nclib.system import processes

TARGET = 1 / 3
STORED = 240


def reading(number: int) -> tuple[Figure, dict[str, float]]:
    """The table of so many stored runs, all with the bytes of one, by `ensure_runs` and by reading all files twice."""
    config = experiments.experiment("table1", "smoke" if number < STORED else "quick")[0]
    aside = tempfile.TemporaryDirectory(prefix="nclib-")
    with aside as folder, processes.environment_restored(["NCLIB_RESULTS"]):
        os.environ["NCLIB_RESULTS"] = folder
        runs.ensure_runs([config], device="cpu")
        store, configs = default_store(), [config.replace(seed=config.seed + k) for k in range(number)]
        (run,) = store.ids()
        made = store.open(run)
        for other in configs[1:]:
            store.save(other, made, made.provenance)
        size = sum(file.stat().st_size for file in (store.root / run).iterdir()) / 1e6

        def needed() -> pd.DataFrame:
            return runs.ensure_runs(configs, train="never")

        def all_twice() -> pd.DataFrame:
            ids = [run_id(each) for each in configs]
            assert all([store.is_sound(run) for run in ids])
            return stack([tidy(store.open(run)).assign(profile=config.profile) for run in ids])

        pd.testing.assert_frame_equal(needed(), all_twice(), check_exact=True)
        ours, theirs = rounds([needed, all_twice])
    case = f"{number} runs of {size:.1f} MB"
    figure = Figure("engine", "table of stored runs / all files read twice", case, *ratio(ours, theirs), TARGET)
    return figure, {"needed": round(min(ours), 3), "all twice": round(min(theirs), 3)}


def main(quick: bool = False) -> pd.DataFrame:
    """Quick: three tiny runs, nothing written."""
    started = time.perf_counter()
    threads()
    figure, seconds = reading(3 if quick else STORED)
    return finish("reading", [figure], quick, {"seconds_of_reading": seconds, "device": "cpu"}, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
