"""What type checkers find of the library, from outside the clone."""

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_an_editable_install_is_a_path_and_no_import_hook(tmp_path, monkeypatch):
    """Type checkers read the former alone."""
    build = pytest.importorskip("setuptools.build_meta", reason="setuptools is not installed")
    shutil.copytree(ROOT / "nclib", tmp_path / "nclib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    code = f"from {build.__name__} import build_editable; build_editable('wheel')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("wheel/nclib_deq-*.whl")
    with zipfile.ZipFile(wheel) as whole:
        (path,) = [name for name in whole.namelist() if ".dist-info/" not in name]
        assert path.endswith(".pth") and Path(whole.read(path).decode().strip()) == tmp_path


@pytest.mark.slow
def test_pyright_finds_no_error_in_a_users_file(tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed: pip install pyright")
    shutil.copy(ROOT / "tests/typed/user.py", tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
