"""10,000 runs on 64 workers that die now and then, simulated: what order costs, what is lost, what the scheduler adds.

python benchmarks/bench_schedule.py [--quick]

Lengths and epochs are drawn from the finished reference runs. Workers die at random times, come back, and the run goes
on from the checkpoint of its last epoch. A scheduler that serves one task after the other stands before them. No clock
is read but the simulated one, so the same seed gives the same figures anywhere.
"""

import heapq
import json
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from common import Figure, finish

from nclib.publish import plotting
from nclib.system import paths, provenance

RUNS, WORKERS = 10_000, 64
SCHEDULER_SECONDS = 0.004
"""For each task; bench_engine.py measured 3.7 to 3.9 ms."""
RETURN_SECONDS = 9.0
"""From a worker's death until its run goes on, measured with Dask: 7 to 9 s."""
START_SECONDS = 5.0
"""Of a worker, to load torch."""
HOUR = 3600.0
REFERENCE = Path(__file__).resolve().parents[1] / "results" / "reference"


class Run(NamedTuple):
    seconds: float
    epochs: int


class Outcome(NamedTuple):
    """Seconds until the last run ended, worker seconds lost to deaths (work done again and waiting), and deaths."""

    makespan: float
    lost: float
    deaths: int


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Seconds until the last of these runs ends, when each starts, in this order, at the first worker that is free."""
    free = [0.0] * max(1, workers)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def measured() -> list[Run]:
    """The finished reference runs; what is no training has one epoch."""
    records = [
        record
        for listing in sorted(REFERENCE.glob("*/runs.json"))
        for record in json.loads(listing.read_text(encoding="utf-8")).values()
    ]
    return [
        Run(provenance.processor_seconds(r["provenance"]), (r["config"].get("train") or {}).get("epochs") or 1)
        for r in records
    ]


def simulate(
    runs: list[Run], workers: int, mean_life: float, seed: int, checkpoints: bool = True, per_task: float = 0.0
) -> Outcome:
    """Runs in the order given, each to the worker that is free first.

    mean_life : seconds that a worker lives on average, exponentially distributed; infinite for no deaths
    checkpoints : whether a run goes on from its last epoch, or begins again
    per_task : seconds that the scheduler takes for each task, one after the other
    """
    draw = random.Random(seed)

    def life() -> float:
        return draw.expovariate(1 / mean_life) if mean_life < float("inf") else mean_life

    free = [(START_SECONDS, worker) for worker in range(workers)]
    dies = [START_SECONDS + life() for _ in range(workers)]
    served = end = lost = 0.0
    deaths = 0
    for run in runs:
        now, worker = heapq.heappop(free)
        served = max(served + per_task, now)
        now = max(now, served)
        epoch, left = run.seconds / run.epochs, run.seconds
        while now + left > dies[worker]:
            worked = max(0.0, dies[worker] - now)
            kept = worked // epoch * epoch if checkpoints else 0.0
            lost += worked - kept + RETURN_SECONDS
            left -= kept
            now = max(now, dies[worker]) + RETURN_SECONDS
            dies[worker] = now + life()
            deaths += 1
        end = max(end, now + left)
        heapq.heappush(free, (now + left, worker))
    return Outcome(end, lost, deaths)


def ordered(runs: list[Run], order: str, seed: int = 0, error: float = 0.0) -> list[Run]:
    """Random, or longest first by an estimate that is wrong by a log-normal factor (`error`: its spread)."""
    draw = random.Random(seed)
    if order == "random":
        return draw.sample(runs, len(runs))
    return sorted(runs, key=lambda run: -run.seconds * draw.lognormvariate(0.0, error))


def bound(runs: list[Run], workers: int) -> float:
    """No schedule is shorter: all work shared out evenly, or the longest run."""
    return START_SECONDS + max(sum(run.seconds for run in runs) / workers, max(run.seconds for run in runs))


def spread(values: list[float]) -> tuple[float, float, float]:
    return sorted(values)[len(values) // 2], min(values), max(values)


LIVES = {"never": float("inf"), "once in 10 h": 10 * HOUR, "once an hour": HOUR, "every 10 min": HOUR / 6}


def main(quick: bool = False) -> pd.DataFrame:
    """Every rate of deaths and both orders; quick: 200 runs on 8 workers, nothing written."""
    started = time.perf_counter()
    count, workers, repeats = (200, 8, 3) if quick else (RUNS, WORKERS, 7)
    known, rows, figures = measured(), [], []
    draws = [random.Random(seed).choices(known, k=count) for seed in range(repeats)]
    case = f"{count:,} runs on {workers} workers"
    for name, mean_life in LIVES.items():
        for order, error in (("longest first", 0.0), ("longest first, estimates wrong by 50 %", 0.4), ("random", 0.0)):
            for seed, runs in enumerate(draws):
                outcome = simulate(ordered(runs, order, seed, error), workers, mean_life, seed, True, SCHEDULER_SECONDS)
                work = sum(run.seconds for run in runs)
                rows.append(
                    {"workers die": name, "order": order, "seed": seed, "makespan / bound": outcome.makespan
                     / bound(runs, workers), "lost / work": outcome.lost / work, "deaths": outcome.deaths,
                     "hours": outcome.makespan / HOUR}
                )  # fmt: skip
    frame = pd.DataFrame(rows)
    for (name, order), cell in frame.groupby(["workers die", "order"], sort=False):
        where = f"{case}, deaths {name}, {order}"
        figures.append(Figure("schedule", "makespan / lower bound", where, *spread(cell["makespan / bound"].tolist())))
    for name, cell in frame[frame["order"] == "longest first"].groupby("workers die", sort=False):
        figures.append(
            Figure("schedule", "work lost / work", f"{case}, deaths {name}", *spread(cell["lost / work"].tolist()))
        )
    fresh = [
        simulate(ordered(runs, "longest first"), workers, HOUR, seed, False).lost / sum(run.seconds for run in runs)
        for seed, runs in enumerate(draws)
    ]
    where = f"{case}, deaths once an hour, no checkpoints"
    figures.append(Figure("schedule", "work lost / work", where, *spread(fresh)))
    slow = [
        simulate(ordered(runs, "longest first"), workers, float("inf"), 0, True, SCHEDULER_SECONDS).makespan
        / makespan(sorted((run.seconds for run in runs), reverse=True), workers)
        for runs in draws
    ]
    figures.append(Figure("schedule", "scheduler's 4 ms and start of workers / none", case, *spread(slow)))
    if not quick:
        _draw(frame)
    mean = sum(run.seconds for run in known) / len(known)
    facts = {
        "reference_runs": len(known),
        "mean_seconds": round(mean, 1),
        "longest_seconds": max(run.seconds for run in known),
        "hours": round(frame[frame["workers die"] == "never"]["hours"].median(), 2),
        "deaths": frame.groupby("workers die")["deaths"].median().to_dict(),
        "repeats": repeats,
    }
    return finish("schedule", figures, quick, facts, started)


def _draw(frame: pd.DataFrame) -> None:
    plotting.use_style()
    fig, (left, right) = plt.subplots(1, 2, figsize=(plotting.TWO_COLUMN, 2.3))
    places = {name: place for place, name in enumerate(LIVES)}
    markers = dict(zip(frame["order"].unique(), ("o", "^", "s"), strict=True))
    colours = [style.colour for style in list(plotting.MODEL_STYLE.values())[:3]]
    for shift, (order, marker) in enumerate(markers.items()):
        cell = frame[frame["order"] == order]
        x = cell["workers die"].map(places) + 0.18 * (shift - 1)
        look = {"marker": marker, "linestyle": "none", "markersize": 3, "color": colours[shift], "label": order}
        left.plot(x, cell["makespan / bound"], **look)
        right.plot(x, 100 * cell["lost / work"], **look)
    left.axhline(1, color="black", linestyle=":", linewidth=0.8)
    left.set(ylabel="makespan / lower bound", xlabel="a worker dies")
    right.set(ylabel="work lost (% of all work)", xlabel="a worker dies")
    for ax in (left, right):
        ax.set_xticks(range(len(places)), list(places), fontsize=7)
    left.legend()
    fig.savefig(paths.reference() / "bench" / "schedule.png", dpi=300, metadata={"Software": None})
    plt.close(fig)


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
