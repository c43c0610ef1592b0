"""What the modules of the library may import."""

import ast
import subprocess
import sys
from pathlib import Path

from nclib.papers import certify

PACKAGE = Path(__file__).resolve().parents[1] / "nclib"


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
    core = ("solver", "deq", "metrics", "imbalance", "losses", "config", "models", "training", "data")
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
