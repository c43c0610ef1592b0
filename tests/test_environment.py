"""One list of dependencies, told the same way to pip, conda, make and the code itself."""

import functools
import importlib.metadata
import json
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from packaging.requirements import Requirement

import nclib
from nclib import store

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

USED = [name for name in EXTRAS if name != "peers"]  # those are only measured against


def test_conda_gives_python_and_pip_the_pinned_packages():
    told = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = ["-c constraints.txt", f"-e .[{','.join(USED)}]"]
    assert told["dependencies"] == ["python >=3.11,<3.14", "pip", "make", "git", {"pip": pip}]
    pinned = {
        line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    needed = [*PROJECT["dependencies"], *(line for name in USED for line in EXTRAS[name])]
    assert {Requirement(line).name for line in needed} <= pinned and told["channels"] == [
        "conda-forge"
    ]


def test_the_version_is_the_same_wherever_it_stands():
    told = {
        name: json.loads((ROOT / name).read_text())["version"]
        for name in ("codemeta.json", ".zenodo.json")
    }
    told |= {"CITATION.cff": yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]}
    record = (ROOT / "docs/record.md").read_text(encoding="utf-8")
    told |= {"changelog": re.search(r"^### (\d+\.\d+\.\d+)", record, re.MULTILINE)[1]}
    assert set(told.values()) == {nclib.__version__} == {PROJECT["version"]}


@pytest.mark.parametrize(
    ("package", "unsafe"),
    [
        ("torch", "2.5.1"),  # CVE-2025-32434: weights_only=True runs code
        ("torch", "2.9.1"),  # CVE-2026-24747: weights_only=True corrupts memory
        ("filelock", "3.20.0"),  # CVE-2025-68146: follows a link in the place of the lock
        ("filelock", "3.20.2"),  # CVE-2026-22701: the same where flock is not supported
        ("pillow", "12.3.0"),  # GHSA-5x8w-8jj5-q52h: the JPEG decoder writes beyond its buffer
    ],
)
def test_versions_with_known_holes_are_excluded(package, unsafe):
    needed = [Requirement(line) for line in PROJECT["dependencies"]]
    (bound,) = [requirement.specifier for requirement in needed if requirement.name == package]
    assert not bound.contains(unsafe) and bound.contains(
        importlib.metadata.version(package), prereleases=True
    )


def test_files_are_not_read_with_a_torch_that_has_known_holes(monkeypatch):
    """Layer and metrics work with an older torch, which may be installed by hand."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.9.1+cpu"))
    with pytest.raises(ImportError, match=r"torch 2\.10 or newer, and this is 2\.9\.1\+cpu"):
        runpy.run_path(store.__file__)


def test_no_page_and_no_message_installs_the_other_project_of_our_import_name():
    assert PROJECT["name"] != "nclib"
    told = re.compile(r"""pip install[^`\n]*[\s"']nclib(?![\w-]|\.[\w{])""")
    assert told.search('type: pip install "nclib[cluster]"') and not told.search(
        'pip install ".[cluster]"'
    )
    files = [ROOT / "README.md", ROOT / "Makefile"]
    places = ("nclib", "docs", "notebooks", "recipes", "tests")
    files += [file for place in places for file in (ROOT / place).rglob("*.*")]
    texts = {
        file: file.read_text()
        for file in files
        if file.suffix in (".py", ".md", ".ipynb", ".yml", "")
    }
    assert len(texts) > 200 and [file.name for file in texts if told.search(texts[file])] == [
        "test_environment.py"
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_clean_keeps_results_and_data(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    places = (
        "results/quick/figures/a.png",
        "data/digits.npz",
        "results/README.md",
        "results/reference/a.csv",
    )
    kept = [tmp_path / place for place in places]
    gone = [
        tmp_path / place for place in (".venv/bin/x", "nclib/__pycache__/x.pyc", ".pytest_cache/x")
    ]
    for file in kept + gone:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert all(file.exists() for file in kept) and not any(file.exists() for file in gone)
    subprocess.run(["make", "clean-results"], cwd=tmp_path, capture_output=True, check=True)
    assert not kept[0].exists() and all(file.exists() for file in kept[1:])


@pytest.mark.usefixtures("reference")
def test_the_python_of_the_page_on_the_library_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    library = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    number = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")
    compared = 0
    for block, shown in re.findall(
        r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?",
        library.replace(_custom_cells(), ""),
        re.DOTALL,
    ):
        exec(block, {})
        said = capsys.readouterr().out
        if shown:
            assert number.sub("#", said).split() == number.sub("#", shown).split()
            printed = [float(value) for value in number.findall(said)]
            assert printed == pytest.approx(
                [float(value) for value in number.findall(shown)], rel=0.2
            )
            compared += 1
    assert compared == 4


def test_the_python_of_custom_cells_runs(tmp_path, monkeypatch):
    """On few images, in one epoch."""
    cell, *blocks = _python(_custom_cells())
    (tmp_path / "my_cells.py").write_text(textwrap.dedent(cell))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    few = {"data": {"n_max": 6, "test_per_class": 3}, "train": {"epochs": 1, "batch_size": 32}}
    monkeypatch.setattr(
        nclib, "RunConfig", functools.partial(nclib.RunConfig, **few), raising=False
    )
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", mock.MagicMock()
    )  # a large package, not installed
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert sorted(names["frame"]["seed"].unique()) == [0, 1, 2] and not names["network"].training
    name, value, epoch = names["writer"].add_scalar.call_args_list[0].args
    assert re.match(r"digits-balanced-deq-s3-\w+/steps/loss$", name) and value > 0 and epoch == 1


def test_the_job_array_of_the_page_start_trains_one_run_a_job(monkeypatch):
    (study,) = re.findall(
        r"```\n(# study\.py.*?)```", (ROOT / "docs/start.md").read_text(encoding="utf-8"), re.DOTALL
    )
    asked = []
    monkeypatch.setattr(nclib, "ensure_runs", asked.append, raising=False)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    names: dict = {}
    exec(study, names)
    first, last = map(int, re.search(r"--array=(\d+)-(\d+)", study).groups())
    assert asked == [[names["configs"][4]]] and range(first, last + 1) == range(
        len(names["configs"])
    )


def _custom_cells():
    """The section of the library whose blocks follow one another, the first of them a file."""
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    return re.search(r"^### A cell\n.*?(?=^### A whole network)", page, re.DOTALL | re.MULTILINE)[0]


def _python(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)
