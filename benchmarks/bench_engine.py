"""What the engine costs: a grid of quick runs by a plain loop, by `ensure_runs` in one process, and on 1 and 2 workers.

python benchmarks/bench_engine.py [--quick]

The plain loop is a fresh Python process that calls `training.train` for one run after the other: no store, no
checkpoint, no progress. All four are timed from the start of a process, loading of torch included, to the last run.
What the run store costs (a checkpoint an epoch, checksums) and what Dask adds to it are told apart.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from common import Figure, finish, ratio, threads

from nclib import cluster, experiments
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig

TARGET_OVERHEAD = 1.05
TASKS = 500

PLAIN = """
import sys
from nclib import runs, training
for line in open(sys.argv[1]):
    with runs._threads():
        training.train(runs.read_config(line), device="cpu")
"""
ENGINE = """
import sys
from nclib import cluster, runs
if __name__ == "__main__":
    configs = [runs.read_config(line) for line in open(sys.argv[1])]
    if int(sys.argv[2]):
        with cluster.local(int(sys.argv[2])) as executor:
            runs.ensure_runs(configs, executor, device="cpu")
    else:
        runs.ensure_runs(configs, device="cpu")
"""


def grid(quick: bool) -> list[RunConfig]:
    """Table 1 of the profile `quick`: both networks on digits and pairs of digits, three seeds; some minutes."""
    if quick:
        train = TrainConfig(epochs=1, batch_size=20, lr=0.05, log_every=1)
        images = DataConfig(n_max=6, test_per_class=3)
        return [RunConfig(data=images, model=ModelConfig(width=2), train=train, seed=seed) for seed in (0, 1)]
    return experiments.experiment("table1", "quick")


def timed(script: str, *words: str) -> float:
    """Seconds of a script in a Python of its own, with the environment of a worker and an empty run store."""
    with tempfile.TemporaryDirectory(prefix="nclib-") as folder:
        file = Path(folder) / "script.py"
        file.write_text(script, encoding="utf-8")
        environment = os.environ | cluster.worker_environment() | {"NCLIB_RESULTS": str(Path(folder) / "results")}
        start = time.perf_counter()
        subprocess.run([sys.executable, str(file), *words], env=environment, check=True)
        return time.perf_counter() - start


def engine(configs: list[RunConfig], repeats: int) -> tuple[list[Figure], dict[str, list[float]]]:
    """Ratios to the plain loop of the same round, and the seconds they are made of."""
    works = {"plain": (PLAIN,), "serial": (ENGINE, "0"), "1 worker": (ENGINE, "1"), "2 workers": (ENGINE, "2")}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as listing:
        listing.writelines(config.model_dump_json() + "\n" for config in configs)
        listing.flush()
        for _ in range(repeats):
            for name, (script, *words) in works.items():
                seconds[name].append(timed(script, listing.name, *words))
                print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
    plain, case = seconds["plain"], f"{len(configs)} runs, {min(seconds['plain']):.0f} s"
    doubled = [2 * each for each in seconds["2 workers"]]
    return [
        Figure("engine", "one process / plain loop", case, *ratio(seconds["serial"], plain), TARGET_OVERHEAD),
        Figure("engine", "1 worker / plain loop", case, *ratio(seconds["1 worker"], plain), TARGET_OVERHEAD),
        Figure("engine", "1 worker / one process", case, *ratio(seconds["1 worker"], seconds["serial"])),
        Figure("engine", "2 workers, time × 2 / plain loop", case, *ratio(doubled, plain), None, "1 / efficiency"),
    ], seconds


def nothing(text: str) -> str:
    return text


def task_seconds(tasks: int) -> tuple[float, float, float]:
    """Milliseconds for each of many calls that do nothing, on two workers: median and extremes of three rounds."""
    with cluster.local(2) as executor:
        executor.everywhere(nothing, "warm")
        each = []
        for _ in range(3):
            start = time.perf_counter()
            for future in [executor.submit(nothing, json.dumps(number)) for number in range(tasks)]:
                future.result()
            each.append(1e3 * (time.perf_counter() - start) / tasks)
    return sorted(each)[1], min(each), max(each)


def main(quick: bool = False) -> pd.DataFrame:
    """The grid above, once, and empty tasks; quick: two tiny runs, nothing written."""
    started = time.perf_counter()
    threads()
    configs = grid(quick)
    figures, seconds = engine(configs, 1)
    figures.append(
        Figure(
            "engine", "ms for an empty task", "2 workers", *task_seconds(20 if quick else TASKS), None, "milliseconds"
        )
    )
    facts = {"seconds_of_each": {name: [round(each, 1) for each in taken] for name, taken in seconds.items()}}
    facts |= {"runs": len(configs), "device": "cpu", "repeats": len(seconds["plain"])}
    return finish("engine", figures, quick, facts, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
