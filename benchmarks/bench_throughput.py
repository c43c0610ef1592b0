"""Training images per second on a GPU: both arms at the paper's width, against the chip and a plain script.

python benchmarks/bench_throughput.py [--quick]

Two yardsticks: the arithmetic limit, which is what a large matrix product reaches on this device, in the precision
named, over the operations that a training step counts (of a DEQ in bfloat16 the solver keeps its state in float32); and
a plain script with torchvision's ResNet-18 for small images and a DataLoader, without TF32 where ours has none. Times
are those of whole epochs after the first, in which kernels are chosen; the images are noise. What is
measured is written after each precision and batch. Without a CUDA device only --quick works, which tries everything on
the CPU at a tiny size.
"""

import itertools
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torchvision
from common import Figure, finish
from PIL import Image
from torch import nn
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nclib import data, training
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.deq import BackwardNotConverged
from nclib.models import build_model
from nclib.system import processes, provenance

EPOCHS = 4
PROFILED = 10  # training steps in the profile, whose record grows by thousands of events each
TOP = 12  # operations named in it


def noise(folder: Path, images: int) -> str:
    """A data set of 32×32 colour noise in ten classes, so many training images and ten for the test; its name."""
    draw = np.random.default_rng(0)
    for part, count in (("train", images), ("test", 10)):
        for i in range(count):
            place = folder / "noise" / part / str(i % 10)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place / f"{i}.png")
    return data.resolve_dataset(f"folder:{folder / 'noise'}")


def run(
    dataset: str, kind: str, width: int, batch: int, precision: str, images: int, epochs: int = EPOCHS
) -> RunConfig:
    return RunConfig(
        data=DataConfig(dataset=dataset, n_max=images // 10, test_per_class=1),
        model=ModelConfig(kind=kind, width=width),
        train=TrainConfig(
            epochs=epochs, batch_size=batch, lr=1e-3, precision=precision, log_every=epochs, deterministic=False,
        ),
    )  # fmt: skip


def epochs_of(config: RunConfig, images: int, device: torch.device) -> tuple[list[float], float]:
    """Images per second of each epoch after the first, which ends with numbers on the host, so nothing is pending; and
    the evaluations of the cell and products with its Jacobian that both solves took for an image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackwardNotConverged)  # of noise nothing is learnt
        done = training.train(config, device=device)
    steps = done.history.query("split == 'steps'").groupby("metric")["value"].mean()
    rates = [images / each for each in done.tables["cost"]["train_seconds"][1:]]
    return rates, float(steps.get("solver_steps", 0.0) + steps.get("backward_steps", 0.0))


def plain_script(folder: Path, batch: int, half: bool, device: torch.device) -> list[float]:
    """Images per second of torchvision's ResNet-18 with the usual stem for small images, trained as tutorials do."""
    steps = torchvision.transforms
    transform = steps.Compose([steps.RandomCrop(32, 4), steps.RandomHorizontalFlip(), steps.ToTensor()])
    images = torchvision.datasets.ImageFolder(folder / "noise" / "train", transform)
    loader = torch.utils.data.DataLoader(
        images, batch, shuffle=True, num_workers=min(8, os.cpu_count() or 1), pin_memory=device.type == "cuda",
        persistent_workers=True,
    )  # fmt: skip
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    model.to(device).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    rates = []
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=half):
        for _ in range(EPOCHS):
            start, loss = time.perf_counter(), torch.zeros(())
            for x, y in loader:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = F.cross_entropy(model(x), y)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
            loss.item()
            rates.append(len(images) / (time.perf_counter() - start))
    return rates[1:]


def operations(kind: str, width: int, solves: float, device: torch.device) -> float:
    """Floating-point operations of a training step for an image: multiplications and additions of convolutions and
    matrix products. An equilibrium costs what its cell applied once does, and an evaluation of the cell for each one
    that the solves took; a product with the Jacobian counts as many operations as an evaluation."""
    once = "explicit_matched" if kind == "deq" else kind
    model = build_model(ModelConfig(kind=once, width=width), 10, 3).to(device)
    images, labels = torch.randn(4, 3, 32, 32, device=device), torch.arange(4, device=device)
    with FlopCounterMode(display=False) as step:
        F.cross_entropy(model(images).logits, labels).backward()
    cell = build_model(ModelConfig(kind="deq", width=width), 10, 3).to(device).block.cell
    x = torch.randn(4, 8 * width, 4, 4, device=device)
    with FlopCounterMode(display=False) as evaluation, torch.no_grad():
        cell(x, x)
    return (step.get_total_flops() + solves * evaluation.get_total_flops()) / 4


def peak(precision: str, size: int, device: torch.device) -> float:
    """Operations per second of a large matrix product in this precision."""
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    taken = []
    for _ in range(7):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        (a @ b)[0, 0].item()
        taken.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(taken)


def profile(config: RunConfig, device: torch.device) -> dict[str, object]:
    """Where the time of an epoch goes: what takes the device longest, as shares of the whole time (with an evaluation
    and the set-up), and the share in which it does nothing."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as recorded:
        start = time.perf_counter()
        epochs_of(config, config.data.n_max * 10, device)
        whole = 1e6 * (time.perf_counter() - start)
    spent = shares(recorded.key_averages(), device)
    return {
        "label": f"{config.model.kind}, batch {config.train.batch_size}, {config.train.precision}",
        "steps": config.data.n_max * 10 // config.train.batch_size,
        "idle": round(max(0.0, 1 - sum(time for time, _ in spent) / whole), 3),
        "shares": {key[:90]: round(time / whole, 4) for time, key in spent[:TOP]},
    }


def shares(events: Iterable[Any], device: torch.device) -> list[tuple[float, str]]:
    """Microseconds of each kernel, or on the CPU of each operation, the longest first. The rows of operations carry the
    time of their kernels once more, so on a GPU they are left out."""
    there = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    column = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    own = [e for e in events if e.device_type == there and not e.is_user_annotation]
    return sorted(((getattr(e, column), e.key) for e in own), reverse=True)


def main(quick: bool = False) -> pd.DataFrame:
    """Both arms, batches 128 and 1024, float32 and bfloat16; quick: one tiny size, on the CPU
    where there is no GPU, nothing written."""
    started, device = time.perf_counter(), training.usable_device()
    if device.type != "cuda" and not quick:
        raise SystemExit("bench_throughput.py measures a GPU and finds none; --quick tries it on the CPU")
    width, batches, size = (4, (8,), 256) if quick else (64, (128, 1024), 8192)
    precisions = ("bfloat16",) if quick else ("float32", "bfloat16")
    images = max(batches) * 10 // (4 if quick else 1)
    figures, rates, profiles = [], {}, []

    def written() -> pd.DataFrame:
        found = {name: round(rate, 1) for name, rate in rates.items()}
        facts = {"device": provenance.capture(device)["device"], "images_per_second": found, "profiles": profiles}
        return finish("throughput", figures, quick, facts | {"repeats": EPOCHS - 1}, started)

    with tempfile.TemporaryDirectory(prefix="nclib-") as name, processes.environment_restored(["NCLIB_DATA"]):
        folder = Path(name)
        os.environ["NCLIB_DATA"] = str(folder / "data")
        dataset = noise(folder, images)
        for precision, batch in itertools.product(precisions, batches):
            case, limit = f"batch {batch}, {precision}", peak(precision, size, device)
            plain = plain_script(folder, batch, precision == "bfloat16", device)
            rates[f"plain script, {case}"] = statistics.median(plain)
            for kind in ("explicit", "deq"):
                config = run(dataset, kind, width, batch, precision, images)
                found, solves = epochs_of(config, images, device)
                rates[f"{kind}, {case}"] = median = statistics.median(found)
                bound = limit / operations(kind, width, solves, device)
                note = f"{median:.0f} images/s of {bound:.0f}"
                figures += [
                    Figure("throughput", f"{kind}: time / arithmetic limit", case, bound / median,
                           bound / max(found), bound / min(found), None, note),
                    Figure("throughput", f"{kind}: time / plain script", case, statistics.median(plain) / median,
                           min(plain) / max(found), max(plain) / min(found), 1.0 if kind == "explicit" else None),
                ]  # fmt: skip
            written()
        for kind in ("explicit", "deq"):
            few = min(images, PROFILED * batches[0])
            profiles.append(profile(run(dataset, kind, width, batches[0], "bfloat16", few, epochs=1), device))
        return written()


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
