"""Tiny trainings whose weights and histories are held still to the last bit.

Two epochs at smoke size for each network, gradient, classifier, loss, optimiser and precision, and one run of each kind
of the sister papers. A change that keeps these bits changes no stored run. Another processor rounds otherwise, so the
recorded bits name theirs.
"""

import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
BITS = ROOT / "tests" / "golden" / "bits.json"
TOLERANCE = 1e-9
"""Relative change of a metric that counts as none: metrics may be added up in another order, trainings may not."""

UNITS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}
"""Units of a processor that change how numbers are rounded, by their flags in /proc/cpuinfo. Processors of one name can
differ in them."""


def configs() -> dict[str, Any]:
    """The trainings, by what each is there for."""
    from nclib.config import (
        DataConfig,
        GradientConfig,
        ModelConfig,
        RunConfig,
        SolverConfig,
        TrainConfig,
    )
    from nclib.papers.kernel_equivalence.networks import (
        ShallowConfig,
        ShallowModelConfig,
        ShallowTrainConfig,
    )
    from nclib.papers.neural_collapse.solver_sweep import SolverSweepConfig
    from nclib.papers.separation_bias.regression import RegressionConfig
    from nclib.papers.separation_bias.regressors import RegressorConfig
    from nclib.papers.separation_bias.saliency import CamConfig
    from nclib.papers.separation_bias.tasks import TaskConfig

    sizes = {"n_max": 20, "test_per_class": 10}
    step = DataConfig(dataset="digits", imbalance="step", num_majority=3, ratio=10.0, **sizes)
    sgd = TrainConfig(epochs=2, batch_size=32, lr=0.05)

    def run(
        kind: str = "explicit", data: DataConfig = step, training: TrainConfig = sgd, **options: Any
    ) -> RunConfig:
        return RunConfig(
            data=data, model=ModelConfig(kind=kind, width=2, **options), train=training
        )

    found = {
        "deq, implicit": run("deq"),
        "deq, implicit, 2 steps": run("deq", gradient=GradientConfig(steps=2)),
        "deq, neumann": run("deq", gradient=GradientConfig(method="neumann", steps=3)),
        "deq, phantom": run("deq", gradient=GradientConfig(method="phantom", steps=3, damping=0.2)),
        "deq, anderson": run("deq", solver=SolverConfig(method="anderson")),
        "deq, fixed point": run("deq", solver=SolverConfig(method="fixed_point"), start="zeros"),
        "deq, multiscale cell": run("deq", cell="mdeq"),
        "matched": run("explicit_matched"),
        "weight-tied": run("weight_tied"),
        "untied blocks": run("explicit_flops", num_blocks=3),
        "feature norm": run("deq", feature_norm="batchnorm"),
        "adam": run(training=sgd.replace(optimiser="adam", lr=1e-3)),
        "adamw": run(training=sgd.replace(optimiser="adamw", lr=1e-3)),
        "constant rate, no clipping": run(training=sgd.replace(schedule="constant", clip=None)),
        "bfloat16": run("deq", training=sgd.replace(precision="bfloat16")),
        "float64": run("deq", training=sgd.replace(precision="float64")),
        "exponential imbalance": run(
            data=DataConfig(dataset="digits", imbalance="exponential", ratio=10.0, **sizes)
        ),
        "random majority, images of seed 3": run(
            data=step.replace(majority="random", subset_seed=3)
        ),
    }
    for head in ("linear", "etf", "cosine"):
        for loss in ("cross_entropy", "balanced_softmax", "class_balanced"):
            found[f"{head} classifier, {loss}"] = run(head=head, training=sgd.replace(loss=loss))
    found["cosine classifier, ldam_drw"] = run(head="cosine", training=sgd.replace(loss="ldam_drw"))
    found["solver sweep"] = SolverSweepConfig(
        base=found["deq, implicit"], last_step=3, last_digit=1, limit=20
    )

    readout = ShallowTrainConfig(readout_epochs=2, epochs=2, batch_size=32)
    shallow = ShallowModelConfig(
        kind="tanh_deq", width=8, sigma_a2=0.2, solver=SolverConfig(method="fixed_point")
    )
    found["shallow DEQ"] = ShallowConfig(
        data=DataConfig(dataset="digits", **sizes), model=shallow, train=readout
    )

    network = RegressorConfig(kind="deq", width=6, tol=1e-3, spread=1.0)
    boolean = TaskConfig(
        name="boolean", target="linear", variables=4, coefficients=(1.0, 0.5, 0.25, -0.5)
    )
    found["regression DEQ"] = RegressionConfig(task=boolean, model=network, steps=20, lr=3e-3)

    scenes = DataConfig(dataset="digit_scenes", n_max=4, test_per_class=2)
    found["network of Grad-CAM"] = run("deq", data=scenes)
    found["Grad-CAM"] = CamConfig(base=found["network of Grad-CAM"])
    return found


def train(names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Train here, in a store of its own, and return by name: digests of the weights, of the history of the training and
    of other arrays, and the values of the metrics."""
    import torch

    from nclib.runs import ensure_runs
    from nclib.store import load_run

    every = configs()
    chosen = {name: every[name] for name in names or every}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="bits-") as folder, _results_in(folder):
            ensure_runs(list(chosen.values()), device="cpu")
            return {name: _of_run(load_run(config)) for name, config in chosen.items()}
    finally:
        torch.set_num_threads(threads)


def _results_in(folder: str) -> Any:
    return mock.patch.dict(os.environ, {"NCLIB_RESULTS": folder, "NCLIB_DATA": f"{folder}/data"})


def _of_run(stored: Any) -> dict[str, Any]:
    """Of the metrics the last values, which are compared in numbers; all else to the last bit."""
    history = stored.history
    of_steps = history["split"] == "steps"
    exact = [
        history[of_steps],
        *(table for name, table in stored.tables.items() if name == "classes"),
    ]
    last = (
        history[~of_steps]
        .drop_duplicates(["split", "metric"], keep="last")
        .sort_values(["split", "metric"])
    )
    metrics = {
        f"{split}/{metric}": value
        for split, metric, value in last[["split", "metric", "value"]].to_numpy()
    }
    found = {
        "history": _digest("".join(table.to_csv(index=False) for table in exact).encode()),
        "metrics": metrics,
    }
    if "weights.pt" in stored.names and stored.weights:
        found["weights"] = _digest_arrays(
            {name: value.numpy() for name, value in stored.weights.items()}
        )
    if stored.config["kind"] != "classifier":  # those of a classifier follow from its weights
        found["arrays"] = _digest_arrays(stored.arrays)
    return found


def _digest_arrays(arrays: dict[str, Any]) -> str:
    parts = [
        f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes()
        for name, value in sorted(arrays.items())
    ]
    return _digest(b"\n".join(parts))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def differences(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two results of `train`, in sentences."""
    said = [f"{name} is not there" for name in recorded if name not in now]
    said += [f"{name} is not recorded" for name in now if name not in recorded]
    for name in recorded.keys() & now.keys():
        before, after = recorded[name], now[name]
        parts = [
            part for part in ("weights", "history", "arrays") if before.get(part) != after.get(part)
        ]
        said += [f"{name}: other {part}" for part in parts]
        metrics = before["metrics"].keys() | after["metrics"].keys()
        moved = [
            metric
            for metric in metrics
            if _moved(before["metrics"].get(metric), after["metrics"].get(metric))
        ]
        if moved:
            first = min(moved)
            values = (
                f"{before['metrics'].get(first)} was recorded, is {after['metrics'].get(first)}"
            )
            said.append(f"{name}: {len(moved)} other metrics, such as {first}: {values}")
    return sorted(said)


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return True
    both_missing = math.isnan(before) and math.isnan(after)
    return not both_missing and not math.isclose(
        before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


def machine() -> dict[str, str]:
    """What decides how numbers are rounded: the processor, its units, and the libraries that compute."""
    import torch

    lines: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            lines.setdefault(name.strip(), value.strip())
    flags = lines.get("flags", "").split()
    return {
        "processor": f"{platform.machine()} {lines.get('model name') or platform.processor()}",
        "units": ", ".join(unit for flag, unit in UNITS.items() if flag in flags),
        "used by torch": torch.backends.cpu.get_cpu_capability(),
        "torch": version("torch"),
        "numpy": version("numpy"),
    }


def elsewhere(recorded: dict[str, str]) -> str:
    """How this machine differs from that of the recorded bits, "" where it does not."""
    here = machine()
    changed = [part for part in here if here[part] != recorded.get(part)]
    return "; ".join(f"{part} was {recorded.get(part)}, is {here[part]}" for part in changed)


def read() -> dict[str, Any]:
    return json.loads(BITS.read_text(encoding="utf-8"))


def write(found: dict[str, Any]) -> None:
    content = {"machine": machine(), "bits": found}
    BITS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def record_from(revision: str) -> None:
    """Make the reference on this machine with the code of another revision, by its own recorder in a clone of its own.

    Bits of two processors cannot be compared; those of two revisions on one processor can.
    """
    with tempfile.TemporaryDirectory(prefix="bits-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(
            ["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(clone)], check=True
        )
        subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", revision], check=True)
        (clone / "tests" / "golden" / "bits.json").unlink()
        environment = os.environ | {"PYTHONPATH": str(clone), "NCLIB_ROOT": str(clone)}
        command = [sys.executable, str(clone / "tests" / "golden" / "record.py"), "bits"]
        subprocess.run(command, check=True, cwd=clone, env=environment)
        shutil.copy(clone / "tests" / "golden" / "bits.json", BITS)
