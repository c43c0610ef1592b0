"""What the golden tests hold still: ids of runs, numbers behind figures and tables, bits of tiny trainings.

Write the files anew after a change that was meant, from the root of the project::

    python tests/golden/record.py ids
    python tests/golden/record.py numbers                          # all of them, several minutes
    python tests/golden/record.py numbers table1 lite-250/fig3    # these alone, and what sums them up
    python tests/golden/record.py bits                             # about a minute: it trains
    python tests/golden/record.py bits --from TAG                  # with the code of TAG: the reference on a processor
                                                                   # that is not the recorded one; not to be committed

The command says what changed. It reads no image files, and trains nothing but the bits and runs of smoke size.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import bits
import filelock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IDS, NUMBERS = HERE / "run_ids.txt", HERE / "numbers.json"

CIFAR10 = {"dataset": "folder:cifar10-jpeg@ef1101d4a992"}
MNIST = {"dataset": "folder:mnist-png@ed8d3531c5f5"}
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "smoke": ("smoke", {}),
    "quick": ("quick", {}),
    "lite": ("lite", {}),
    "full": ("full", {}),
    "full-accuracy": ("full", CIFAR10 | {"recipe": "accuracy"}),
    "full-jpeg": ("full", CIFAR10),
    "paper": ("paper", {}),
    "lite-250": (
        "lite",
        CIFAR10 | {"images_per_class": 250, "test_images_per_class": 100, "seeds": 3},
    ),
    "lite-mnist": ("lite", MNIST | {"images_per_class": 500, "test_images_per_class": 200}),
    "quick-literal": ("quick", {"recipe": "paper", "epochs": 3, "width": 8, "batch_size": 32}),
    "lite-features": ("lite", {"inputs": "resnet18", "seeds": 1}),
}
"""Profiles, and parameters on top of them that are known without any file."""

TRAINED = (
    *(
        "table1",
        "table2",
        "table3",
        "table4",
        "fig2",
        "fig3",
        "fig4",
        "fig5",
        "recipes",
        "controls",
    ),
    *(
        "equilibrium_or_cell",
        "nc_definitions",
        "remedies",
        "long_tail",
        "seeds_and_subsets",
        "solver_and_collapse",
    ),
    *("optimisers", "which_gradient"),
)
SUMMARY = "quick/neural_collapse/scorecard"
SUMMED_UP = tuple(
    f"quick/neural_collapse/{name}" for name in (*TRAINED, "audit", "fig1", "collapse")
)
DRAWN = (
    *SUMMED_UP,
    SUMMARY,
    "quick/walkthrough/08_reading_a_table",
    *(f"full-jpeg/neural_collapse/{name}" for name in ("collapse", "fig3", "table1", "table3")),
    "lite-250/neural_collapse/fig3",
    "lite-mnist/kernel_equivalence/fig3",
)
"""Drawings from tracked numbers: all but the last digits of means and intervals is the same on every processor."""

COMPUTED = (
    *(
        f"smoke/walkthrough/{name}"
        for name in ("01_fixed_points", "02_anderson_and_broyden", "03_implicit_gradient")
    ),
    *(
        f"smoke/walkthrough/{name}"
        for name in ("04_deq_layer", "05_neural_collapse", "06_train_on_digits")
    ),
    "smoke/walkthrough/07_imbalance",
    *(f"smoke/kernel_equivalence/{name}" for name in ("fig1", "fig2", "ntk", "spectra")),
    "smoke/kernel_equivalence/your_own_activation",
    *(f"smoke/neural_collapse/{name}" for name in ("theory_imbalance", "theory_layer_peeled")),
    "smoke/separation_bias/theorem1_regions",
)
"""Drawings whose notebooks compute with PyTorch: the last bits are those of one kind of processor.
At smoke size, as the tests of notebooks run them."""

LEFT_OUT = {"tables/neural_collapse/fig2_tsne.csv": ("x", "y")}
"""Columns that differ from one processor to the next although their source is tracked: coordinates of t-SNE."""


def ids() -> str:
    """The content of ``run_ids.txt``: a line for each experiment at each size, then every id there is."""
    from nclib.config import run_id
    from nclib.profiles import experiment, makers
    from nclib.store import ReferenceStore

    lines, every = [], set(ReferenceStore(ROOT / "results" / "reference").ids())
    for size, (profile, values) in SIZES.items():
        for name in sorted(makers()):
            found = [run_id(config) for config in experiment(name, profile, **values)]
            every |= set(found)
            lines.append(
                f"{size} {name}: {len(found)} runs {_digest(' '.join(found).encode())[:16]}"
            )
    return "\n".join([*sorted(lines), *sorted(every)]) + "\n"


def draw(drawing: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the notebook of a drawing in this process, with its results in a folder. Nothing is
    trained but runs of smoke size.

    Returns what it left there, by path below ``<profile>/``; the pictures themselves are left out, as their rendering
    takes most of the time.
    """
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    from nclib import figures

    size, name = drawing.split("/", 1)
    profile, values = SIZES[size]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.csv")}
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    places = {"NCLIB_RESULTS": str(folder), "NCLIB_DATA": str(folder / "data")}
    namespace: dict[str, Any] = {"display": lambda *shown, **options: None}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, places))
        stack.enter_context(mock.patch.object(Figure, "savefig", lambda *given, **options: None))
        stack.enter_context(mock.patch.object(figures, "_render", lambda fig, kind: b""))
        stack.enter_context(contextlib.chdir(ROOT / "notebooks"))
        stack.enter_context(contextlib.redirect_stdout(None))
        stack.enter_context(pyplot.rc_context())  # the notebook's style is its own
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), name, "exec"), namespace)
                if "parameters" in cell["metadata"].get("tags", ()):
                    train = "missing" if profile == "smoke" else "finished"
                    given = {"profile": profile, "train": train} | values
                    namespace |= {key: value for key, value in given.items() if key in namespace}
        pyplot.close("all")
    written = [
        path
        for path in sorted((folder / profile).rglob("*.csv"))
        if before.get(path) != path.stat().st_mtime_ns
    ]
    return read(written, folder / profile)


def read(files: Iterable[Path], folder: Path) -> dict[str, dict[str, Any]]:
    """What is recorded of CSV files, by their paths below the folder of their profile."""
    return {path.relative_to(folder).as_posix(): _read(path, folder) for path in files}


def drawn(drawing: str, folder: Path) -> dict[str, dict[str, Any]]:
    """`draw` into a folder of its own below this one, once: processes may share it. What sums up others has theirs."""
    own = folder / drawing
    own.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(own / "lock"):
        if not (said := own / "drawn.json").exists():
            for other in SUMMED_UP if drawing == SUMMARY else ():
                drawn(other, folder)
                shutil.copytree(folder / other / "quick", own / "quick", dirs_exist_ok=True)
            said.write_text(json.dumps(draw(drawing, own)))
        return json.loads(said.read_text())


def _read(path: Path, folder: Path) -> dict[str, Any]:
    """Digest of a file and of each of its columns, so that a difference can be named."""
    left_out = LEFT_OUT.get(path.relative_to(folder).as_posix(), ())
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    columns = {
        name: _digest("\n".join(values).encode())[:12]
        for name, *values in zip(header, *rows, strict=True)
        if name not in left_out
    }
    whole = {} if left_out else {"sha256": _digest(path.read_bytes())}
    raw = header[0] == "run_id" and "metric" in header  # histories as they are tracked
    floats = (
        []
        if raw
        else [
            name for name, *values in zip(header, *rows, strict=True) if any(map(_is_float, values))
        ]
    )
    return {"rows": len(rows), "columns": columns, **whole, "floats": floats}


def _is_float(cell: str) -> bool:
    with contextlib.suppress(ValueError):
        return not cell.lstrip("-").isdigit() and math.isfinite(float(cell))
    return False


def changes(before: dict[str, Any], after: dict[str, Any], floats: bool = True) -> list[str]:
    """What differs between the files of two drawings, in sentences: tables, and columns in them.

    floats : whether columns of computed floating-point numbers count. NumPy adds in another order on another kind of
        processor, so their last digits are those of one kind; all words, counts and tracked numbers are not.
    """
    said = [f"{file} is no longer drawn" for file in before if file not in after]
    said += [f"{file} is new" for file in after if file not in before]
    for file, was in before.items():
        now = after.get(file, was)
        passed_over = () if floats else now.get("floats", ())
        old, new = (
            {name: found for name, found in side["columns"].items() if name not in passed_over}
            for side in (was, now)
        )
        if (old, was["rows"]) == (new, now["rows"]) and (
            passed_over or was.get("sha256") == now.get("sha256")
        ):
            continue
        parts = [f"{was['rows']} rows became {now['rows']}"] if was["rows"] != now["rows"] else []
        parts += [
            f"column {name!r} changed" for name in old if name in new and old[name] != new[name]
        ]
        parts += [f"column {name!r} is gone" for name in old if name not in new]
        parts += [f"column {name!r} is new" for name in new if name not in old]
        said.append(
            f"{file}: {', '.join(parts) or 'same cells, other bytes (order of columns, quoting, line ends)'}"
        )
    return said


def machine() -> dict[str, str]:
    """What can change the last digits of a number, or how it is written."""
    import torch

    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                break
        else:
            line = ""
    processor = line.partition(":")[2].strip() or platform.processor()
    return {
        "processor": f"{platform.machine()} {processor} {torch.backends.cpu.get_cpu_capability()}",
        **{name: version(name) for name in ("numpy", "pandas", "scipy", "scikit-learn", "torch")},
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _full_names(typed: Iterable[str]) -> list[str]:
    known, chosen = [*DRAWN, *COMPUTED], []
    for name in typed:
        found = [
            drawing
            for drawing in known
            if drawing == name or (drawing.endswith(f"/{name}") and "/" not in name)
        ]
        size, _, rest = name.partition("/")
        found += [
            drawing
            for drawing in known
            if drawing.startswith(f"{size}/") and drawing.endswith(f"/{rest}")
        ]
        if not found:
            sys.exit(f"no drawing is called {name!r}; there are {', '.join(known)}")
        chosen += found
    return chosen or known


def _record_bits(revision: str | None) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    before = bits.read() if bits.BITS.exists() else {"machine": {}, "bits": {}}
    if revision is None:
        bits.write(bits.train())
    else:
        bits.record_from(revision)
    print(bits.elsewhere(before["machine"]) or "on the same processor as before")
    print(*bits.differences(before["bits"], bits.read()["bits"]) or ["as before"], sep="\n")


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    arguments.add_argument("what", choices=("ids", "numbers", "bits"))
    arguments.add_argument("drawings", nargs="*", help="as table1 or lite-250/fig3; left out: all")
    arguments.add_argument(
        "--from", dest="revision", metavar="TAG", help="bits: record with the code of this revision"
    )
    asked = arguments.parse_args()
    sys.path.insert(0, str(ROOT))
    if asked.what == "bits":
        _record_bits(asked.revision)
        return
    if asked.what == "ids":
        before = IDS.read_text().splitlines() if IDS.exists() else []
        IDS.write_text(ids())
        after = IDS.read_text().splitlines()
        print("\n".join([f"gone: {line}" for line in before if line not in set(after)]))
        print("\n".join([f"new: {line}" for line in after if line not in set(before)]))
        return
    os.environ |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    import torch

    torch.set_num_threads(1)
    record = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    names = _full_names(asked.drawings)
    here, drawings = machine(), record.get("drawings", {})
    base = record["machine"] if set(drawings) - set(names) else here
    elsewhere = record.get("elsewhere", {}) if base is not here else {}
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        for name in dict.fromkeys([*names, *[SUMMARY] * bool(set(names) & set(SUMMED_UP))]):
            files = drawn(name, Path(folder))
            said = changes(drawings.get(name, {}), files)
            print(f"{name}: {'changed' if said else 'as before'}", *said, sep="\n  ", flush=True)
            now = drawings | {name: files}
            drawings = {known: now[known] for known in (*DRAWN, *COMPUTED) if known in now}
            for file in (file for files in drawings.values() for file in files.values()):
                file.pop("floats", None)  # it follows from the cells
            if said:
                elsewhere = {known: made for known, made in elsewhere.items() if known != name}
                elsewhere |= {name: here} if base != here else {}
            content = {"machine": base, "elsewhere": elsewhere, "drawings": drawings}
            NUMBERS.write_text(
                json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
