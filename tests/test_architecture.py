"""Imports point down: the floors of the library, read from its sources."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "nclib"

FLOORS = (
    {"paths", "processes", "provenance", "words"},
    {"solver", "metrics", "imbalance", "losses", "plotting", "artefacts", "evidence", "audit", "proofs", "cluster"},
    {"deq", "measuring", "other_parameters", "scorecard", "views"},
    {"config"},
    {"data", "models", "activations", "ranks"},
    {"layer_peeled", "kernels", "shallow", "separation", "training"},
    {"probes", "regression", "saliency", "teaching"},
    {"store", "kernel_tables", "panels"},
    {"experiments", "playground", "verification"},
    {"costs"},
    {"runs"},
    {"regenerate", "report", "cli"},
    {"live", "contents"},
    {"train_panel"},
    {"laboratory"},
    {"__init__", "__main__"},  # the public face: may import everything, is imported by nothing below
)
FLOOR = {module: height for height, modules in enumerate(FLOORS) for module in modules}
WINGS = {"papers"}  # packages beside the floors: they import nothing of nclib but themselves
ABOVE_WINGS = {"proofs", "layer_peeled", "audit", "cli", "report", "scorecard", "__init__"}  # may use a wing
SAME_FLOOR = {("cli", "regenerate"), ("cli", "report"), ("panels", "store"), ("__main__", "__init__")}


def imported_modules(source: str) -> list[str]:
    """Names of the nclib modules a source imports, lazily or not; "*" for a wildcard."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            inside = [alias.name.split(".") for alias in node.names]
            found += [parts[1] if len(parts) > 1 else "__init__" for parts in inside if parts[0] == "nclib"]
        elif isinstance(node, ast.ImportFrom):
            parts = (["nclib"] if node.level else []) + (node.module or "").split(".")
            parts = [part for part in parts if part]
            names = [alias.name for alias in node.names]
            if "*" in names:
                found.append("*")
            elif parts == ["nclib"]:
                found += names
            elif parts[0] == "nclib":
                found.append(parts[1])
    return found


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of one module, in sentences."""
    if module not in FLOOR:
        return [f"{module} stands on no floor: add it to FLOORS"]
    wrong = []
    for other in imported_modules(source):
        if other == "*":
            wrong.append(f"{module} imports everything of something: name what it needs")
        elif other in WINGS:
            if module not in ABOVE_WINGS:
                wrong.append(f"{module} imports the wing {other}: only {', '.join(sorted(ABOVE_WINGS))} may")
        elif other not in FLOOR:
            wrong.append(
                f"{module} imports {other!r}, which is no module of nclib: import the name from its module"
            )
        elif FLOOR[other] > FLOOR[module]:
            wrong.append(f"{module} (floor {FLOOR[module]}) imports {other} (floor {FLOOR[other]}) above it")
        elif FLOOR[other] == FLOOR[module] and (module, other) not in SAME_FLOOR:
            wrong.append(f"{module} imports {other} of its own floor {FLOOR[module]}")
    return wrong


def wing_violations(wing: str, source: str) -> list[str]:
    """What is wrong with the imports of a module of a wing, in sentences."""
    outside = [other for other in imported_modules(source) if other != wing]
    return [f"a module of the wing {wing} imports {other!r} of nclib" for other in outside]


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_imports_point_down(path):
    assert violations(path.stem, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.glob("*/**/*.py")), ids=lambda path: path.relative_to(PACKAGE).with_suffix("").as_posix()
)
def test_a_wing_imports_nothing_else_of_nclib(path):
    wing = path.relative_to(PACKAGE).parts[0]
    assert wing in WINGS, "besides its wings the package is flat"
    assert wing_violations(wing, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source", ["from nclib import solver", "import nclib", "def f():\n    from nclib.paths import root"]
)
def test_a_wing_that_imports_more_is_found(source):
    assert wing_violations("papers", source)
    assert wing_violations("papers", "from nclib.papers import exact\nimport nclib.papers.certify") == []


def test_the_certificates_need_only_the_standard_library():
    """sympy is imported inside the functions that use it."""
    third = set()
    for path in (PACKAGE / "papers").rglob("*.py"):
        for node in ast.iter_child_nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                third |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                third.add((node.module or "").split(".")[0])
    assert third <= {"nclib", *sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("metrics", "from nclib.training import train"),
        ("solver", "def f():\n    from nclib import cli"),
        ("paths", "import nclib.store"),
        ("paths", "from . import store"),
        ("solver", "from .deq import DEQ"),
        ("metrics", "import numpy\nimport nclib.solver as s"),
        ("store", "from nclib.experiments import get_profile"),
        ("regenerate", "from nclib import report"),
        ("training", "from nclib.models import *"),
        ("training", "from numpy import *"),
        ("training", "from nclib import DEQ"),
        ("training", "import nclib"),
        ("solver", "from nclib.papers.certify import certify"),
        ("helpers", ""),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("training", "from nclib import metrics, models\nfrom nclib.deq import DEQ\nimport nclib.paths"),
        ("runs", "from nclib.store import RunStore"),
        ("cli", "def main():\n    from . import regenerate, report"),
        ("cli", "def main():\n    from nclib.papers import certify"),
        ("__init__", "from nclib.deq import DEQ as DEQ\nfrom .cli import main"),
        ("solver", "import nclibrary\nfrom torch import nn"),
    ],
)
def test_a_right_import_passes(module, source):
    assert violations(module, source) == []


def _run_blocked(blocked: set[str], statement: str) -> None:
    """Run a statement in a fresh interpreter in which some packages cannot be imported."""
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
{statement}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_lower_floors_need_neither_torchvision_nor_jupyter():
    present = sorted(m for m in FLOORS[0] | FLOORS[1] if (PACKAGE / f"{m}.py").exists())
    blocked = {
        "torchvision",
        "IPython",
        "ipykernel",
        "ipywidgets",
        "jupyterlab",
        "papermill",
        "nbformat",
        "nbclient",
    }
    _run_blocked(blocked, "\n".join(f"import nclib.{module}" for module in present))


def test_the_ground_floor_is_cheap_to_import():
    _run_blocked({"torch", "matplotlib", "pandas", "numpy"}, "import nclib.paths, nclib.provenance")


def test_a_worker_loads_no_drawing_and_no_statistics():
    """A second of each process that trains: it needs neither."""
    _run_blocked({"matplotlib"}, "import nclib.runs\nassert 'scipy.stats' not in sys.modules")
