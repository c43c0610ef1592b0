"""What the modules of the library may import."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nclib"


def test_the_contracts_on_imports_are_kept():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


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
from nclib import imbalance, metrics, solver

solution = nc.fixed_point(lambda z: 0.5 * z + 1, nc.Anderson(), torch.zeros(2, 3))
assert solution.converged.all() and nc.Status.CONVERGED == solver.Status.CONVERGED
layer = nc.DEQ(lambda z, x: torch.tanh(0.5 * z) + x, nc.Broyden(tol=1e-5), nc.Implicit())
x = torch.randn(4, 3, requires_grad=True)
z, solution = layer(x)
z.sum().backward()
assert x.grad.isfinite().all() and layer.last_backward.converged.all()
f = lambda z: layer.cell(z, x)
assert (nc.spectral_radius(f, z.detach()) < 1).all() and (nc.jacobian_frobenius_sq(f, z.detach()) > 0).all()
labels = torch.arange(40) % 4
h = nc.simplex_etf(4, 8)[labels]
assert nc.nc_report(h, labels)["nc1_trace_ratio"] < 1e-12
assert metrics.nc0(nc.simplex_etf(4, 8)) < 1e-12
assert imbalance.step_imbalance(10, 100, 3, 10)[-1] == 10
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
assert "accuracy" in set(nc.measure(net, [(h.float(), labels)])["metric"])
found = nc.features(net, [(h.float(), labels)])
assert found.h.shape == (40, 8)
for name in ("RunConfig", "ensure_runs", "interval"):
    try:
        getattr(nc, name)
    except ModuleNotFoundError as error:
        assert 'pip install ".[companion]"' in str(error) and str(error).startswith(f"nclib.{name} needs "), error
    else:
        raise AssertionError(name)
"""


def test_the_core_works_with_torch_and_pandas_alone():
    """Everything that pip would not install with these two cannot be imported."""
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_command_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from nclib.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    said = 'needs typer, which is not installed; in the clone, type: pip install ".[companion,docs]"\n'
    assert done.stderr.endswith(said)
