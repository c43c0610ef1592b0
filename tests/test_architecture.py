"""What the modules of the library may import."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nclib.papers import certify

PACKAGE = Path(__file__).resolve().parents[1] / "nclib"


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Hold the modules in a folder to the contracts of its pyproject.toml."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_the_contracts_on_imports_are_kept():
    done = _lint(PACKAGE.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("solver", "from nclib.deq import DEQ"),
        ("metrics/report", "def later():\n    from nclib import training"),
        ("engine/store", "from nclib.publish import scorecard"),
        ("papers/kernel_equivalence/exact", "from nclib.papers.neural_collapse import solver_sweep"),
        ("publish/plotting", "from nclib import metrics"),
        ("course/answers", "from nclib import metrics"),
        ("config", "import torch"),
    ],
)
def test_a_wrong_import_breaks_a_contract(tmp_path, module, statement):
    shutil.copytree(PACKAGE, tmp_path / "nclib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    with (tmp_path / "nclib" / f"{module}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{statement}\n")
    done = _lint(tmp_path)
    assert done.returncode == 1 and "1 broken" in done.stdout, done.stdout + done.stderr


def test_the_certificates_need_only_the_standard_library():
    """sympy is imported inside the functions that use it."""
    modules = ("__init__", "exact", "certify", *(module.replace(".", "/") for module in certify._MODULES))
    third = set()
    for path in (PACKAGE / "papers" / f"{module}.py" for module in modules):
        for node in ast.iter_child_nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                third |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                third.add((node.module or "").split(".")[0])
    assert third <= {"nclib", *sys.stdlib_module_names}


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


def test_the_core_needs_neither_torchvision_nor_jupyter():
    core = ("solver", "deq", "metrics", "imbalance", "losses", "config", "models", "evaluation", "training", "data")
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
    _run_blocked(blocked, "\n".join(f"import nclib.{module}" for module in core))


def test_the_wing_system_is_cheap_to_import():
    modules = "nclib.system.paths, nclib.system.provenance, nclib.system.words"
    _run_blocked({"torch", "matplotlib", "pandas", "numpy"}, f"import {modules}")


def test_a_worker_loads_no_drawing_and_no_statistics():
    """A second of each process that trains: it needs neither."""
    _run_blocked({"matplotlib"}, "import nclib.engine.runs\nassert 'scipy.stats' not in sys.modules")
