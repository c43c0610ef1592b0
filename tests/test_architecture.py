"""What the modules of the library may import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nclib"


PAPERS = ("kernel_equivalence", "neural_collapse", "separation_bias")


def _imported(file):
    """The modules that a file names in its import statements."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 or file.suffix == ".pyi", f"{file}: imports name the package"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_the_core_imports_no_paper_and_no_exercise():
    """The command ``nclib certify`` names the papers; all else knows nothing of them."""
    for file in PACKAGE.rglob("*.py"):
        part = file.relative_to(PACKAGE).parts[0]
        if part not in ("papers", "course", "cli.py"):
            names = _imported(file)
            assert not [
                name for name in names if name.startswith(("nclib.papers", "nclib.course"))
            ], file


@pytest.mark.parametrize("paper", PAPERS)
def test_no_paper_imports_another(paper):
    others = tuple(f"nclib.papers.{other}" for other in PAPERS if other != paper)
    for file in (PACKAGE / "papers" / paper).rglob("*.py"):
        assert not [name for name in _imported(file) if name.startswith(others)], file


ALONE = """
import importlib.metadata, re, sys

def needed(package, found):
    if package not in found:
        found.add(package)
        for line in importlib.metadata.requires(package) or ():
            if "extra ==" not in line:
                try:
                    needed(re.match(r"[\\w.-]+", line)[0].lower().replace("_", "-"), found)
                except importlib.metadata.PackageNotFoundError:
                    pass  # of another machine
    return found

installed = needed("torch", needed("pandas", needed("numpy", needed("lazy-loader", set()))))
allowed = {top for top, owners in importlib.metadata.packages_distributions().items()
           if {owner.lower().replace("_", "-") for owner in owners} & installed}
assert not {"pydantic", "scipy", "matplotlib", "typer"} & allowed

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {"nclib", *allowed, *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())

import torch
import nclib as nc
from nclib import imbalance, metrics, solvers

solution = nc.fixed_point(lambda z: 0.5 * z + 1, nc.Anderson(), torch.zeros(2, 3))
assert solution.converged.all()
layer = nc.DEQ(lambda z, x: torch.tanh(0.5 * z) + x, nc.Broyden(tol=1e-5), nc.Implicit())
x = torch.randn(4, 3, requires_grad=True)
z, solution = layer(x)
z.sum().backward()
assert x.grad.isfinite().all() and layer.last_backward.converged.all()
assert "torch._dynamo" not in sys.modules  # the compiler waits until it is asked for
f = lambda z: layer.cell(z, x)
assert (nc.spectral_radius(f, z.detach()) < 1).all() and (nc.deq.jacobian_frobenius_sq(f, z.detach()) > 0).all()
labels = torch.arange(40) % 4
h = nc.simplex_etf(4, 8)[labels]
assert nc.nc_report(h, labels)["nc1_trace_ratio"] < 1e-12
assert metrics.nc0(nc.simplex_etf(4, 8)) < 1e-12
assert imbalance.step_imbalance(10, 100, 3, 10)[-1] == 10
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
assert "accuracy" in set(nc.measure(net, [(h.float(), labels)])["metric"])
"""


@pytest.mark.slow
def test_the_core_works_with_torch_and_pandas_alone():
    """Everything that pip would not install with these two cannot be imported."""
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_command_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from nclib.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stdout == ""
    assert 'pip install ".[notebooks,docs]"' in done.stderr
