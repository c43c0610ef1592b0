"""Files in the folder where a command is typed are not taken for modules of the standard library."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(name for name in sys.stdlib_module_names if not name.startswith("_") and find_spec(name) is not None)
"""Those of this system: a clone lies on the path, last, and what is found nowhere else is found there."""
COMMAND = "from nclib.cli import main\nif __name__ == '__main__':\n    main()\n"
CELL = """
import torch
from my_helper import SMALL

class Cell(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, 1)

    def forward(self, z, x):
        return torch.tanh(x + SMALL * self.conv(z))

def load():
    data = torch.utils.data.TensorDataset(torch.randn(60, 8), torch.arange(60) % 3)
    workers = dict(num_workers=1, multiprocessing_context="spawn")
    return torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 3)), torch.utils.data.DataLoader(data, 20, **workers)
"""


@pytest.fixture
def folder(tmp_path):
    """A clone's folder, in which every name of the standard library is taken by a file that notes when it is run."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for package in ("nclib",):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("notebooks", "docs", "results/reference", "data", "pyproject.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    note = f"import os; os.close(os.open({str(tmp_path / 'executed')!r} + __name__, os.O_CREAT))\n"
    for name in NAMES:
        (folder / f"{name}.py").write_text(note)
    (folder / "my_cells.py").write_text(CELL)
    (folder / "my_helper.py").write_text("SMALL = 0.1\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nclib").write_text(COMMAND)
    return folder


def run(folder, *words, start=()):
    """Run a command there as one installed from the clone does: nclib lies on a path of its own, behind all others."""
    site = folder.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"  # the clone that is installed here goes, so that this copy is what is tried
        f"sys.path[:] = [path for path in sys.path if not os.path.isdir(f'{{path}}/nclib')] + [{str(folder)!r}]\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("NCLIB_ROOT", "PYTHONSAFEPATH")}
    environment |= {"PYTHONPATH": str(site)}
    command = [sys.executable, *(start or [folder.parent / "bin/nclib"]), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=570)
    return done, sorted(path.name.removeprefix("executed") for path in folder.parent.glob("executed*"))


TRAIN = ("train", "--profile", "smoke", "--model", "deq")


@pytest.mark.parametrize(
    "words",
    [
        TRAIN,
        (*TRAIN, "--cell", "my_cells:Cell"),
        ("measure", "my_cells:load"),
        ("reproduce", "--list"),
        ("certify", "thm_b3"),
        pytest.param(
            ("reproduce", "your_own_cell", "-p", "cell=my_cells:Cell", "--profile", "smoke", "--workers", "2"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("verify",), marks=pytest.mark.slow),
    ],
    ids=lambda words: "-".join(words[:2]).replace(":", "-"),
)
def test_no_file_of_the_folder_is_taken_for_a_module_of_python(folder, words):
    done, executed = run(folder, *words)
    assert done.returncode == 0 and not executed, (executed, done.stdout[-2000:], done.stderr[-2000:])


def test_started_as_a_module_the_command_looks_elsewhere_first_too(folder):
    """Python has by then taken what it needs to start from the folder."""
    code = "import sys, nclib.cli; sys.path.insert(0, ''); sys.argv = ['nclib', 'train', '--profile', 'smoke']; "
    done, executed = run(folder, start=["-P", "-c", f"{code}nclib.cli.main()"])
    assert done.returncode == 0 and "multiprocessing" not in executed, (executed, done.stderr[-2000:])
