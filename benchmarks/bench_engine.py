"""What the engine costs: a grid of quick runs by a plain loop, by `ensure_runs` in one process, and on 1 and 2 workers.

python benchmarks/bench_engine.py [--quick]

The plain loop is a fresh Python process that calls `training.train` for one run after the other: no store, no
checkpoint, no progress. All are timed from the start of a process, loading of torch included, to its end, and a plain
loop is run between any two others.
What the run store costs (a checkpoint an epoch, checksums) and what processes add to it are told apart.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import wait
from pathlib import Path

import pandas as pd
from common import Figure, finish, threads

from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.engine import experiments, jobs

TARGET_OVERHEAD = 1.05
TASKS = 500
WAYS = {"1 worker": "1", "one process": "0", "2 workers": "2"}
"""How many workers each has; 0 is this process."""

PLAIN = """
import json, sys
from nclib import training
from nclib.config import RunConfig
from nclib.engine import jobs
for line in open(sys.argv[1]):
    with jobs.one_thread():
        training.train(RunConfig(**json.loads(line)), device="cpu")
"""
ENGINE = """
import json, sys
from nclib.config import RunConfig
from nclib.engine import runs
if __name__ == "__main__":
    configs = [RunConfig(**json.loads(line)) for line in open(sys.argv[1])]
    runs.ensure_runs(configs, int(sys.argv[2]) or None, device="cpu")
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
        environment = os.environ | jobs.worker_environment() | {"NCLIB_RESULTS": str(Path(folder) / "results")}
        start = time.perf_counter()
        subprocess.run([sys.executable, str(file), *words], env=environment, check=True)
        return time.perf_counter() - start


def engine(configs: list[RunConfig], ways: dict[str, str]) -> tuple[list[Figure], dict[str, list[float]]]:
    """Each way of the engine over the mean of the plain loops before and after it, so that a machine which slowly grows
    faster or slower favours neither; the extremes are those to each of the two."""
    taken: dict[str, list[float]] = {"plain loop": []}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as listing:
        listing.writelines(config.model_dump_json() + "\n" for config in configs)
        listing.flush()

        def measure(name: str, script: str, *words: str) -> None:
            taken.setdefault(name, []).append(timed(script, listing.name, *words))
            print(f"  {name}: {taken[name][-1]:.1f} s", flush=True)

        measure("plain loop", PLAIN)
        for name, workers in ways.items():
            measure(name, ENGINE, workers)
            measure("plain loop", PLAIN)
    plain, figures = taken["plain loop"], []
    case = f"{len(configs)} runs, {min(plain):.0f} s"
    for before, after, (name, workers) in zip(plain, plain[1:], ways.items(), strict=False):
        seconds, many = taken[name][0] * max(1, int(workers)), int(workers) > 1
        ends = sorted(seconds / each for each in (before, after))
        figures.append(
            Figure(
                "engine",
                f"{name}{', time × 2' if many else ''} / plain loop",
                case,
                2 * seconds / (before + after),
                *ends,
                None if many else TARGET_OVERHEAD,
                "1 / efficiency" if many else "",
            )
        )
    return figures, taken


def nothing(text: str) -> str:
    return text


def task_seconds(tasks: int) -> tuple[float, float, float]:
    """Milliseconds for each of many calls that do nothing, on two workers: median and extremes of three rounds."""
    with jobs.pool(2) as executor:
        wait([executor.submit(nothing, "warm") for _ in range(2)])
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
    figures, seconds = engine(configs, {"2 workers": "2"} if quick else WAYS)
    figures.append(
        Figure(
            "engine", "ms for an empty task", "2 workers", *task_seconds(20 if quick else TASKS), None, "milliseconds"
        )
    )
    facts = {"seconds_of_each": {name: [round(each, 1) for each in taken] for name, taken in seconds.items()}}
    facts |= {"runs": len(configs), "device": "cpu", "repeats": 1}
    return finish("engine", figures, quick, facts, started)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
