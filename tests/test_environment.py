"""One list of dependencies, told the same way to pip, conda, make and the code itself."""

import functools
import importlib.metadata
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
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

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")

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
        if file.is_file() and file.suffix in (".py", ".md", ".ipynb", ".yml", "")
    }
    assert len(texts) > 200 and [file.name for file in texts if told.search(texts[file])] == [
        "test_environment.py"
    ]


@needs_make
def test_jupyterlab_opens_at_the_index_and_sees_the_pages_it_links_to():
    command = ["make", "--no-print-directory", "-n", "-o", "setup", "lab", "ARGS="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:] == ["lab", "--ServerApp.root_dir=.", "notebooks/index.ipynb"]
    assert "](../docs/" in (ROOT / "notebooks/index.ipynb").read_text(encoding="utf-8")


@needs_make
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


PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) exit {old} ;;
    *ensurepip*) exit {no_venv} ;;
    -V) echo Python 3.9.2 ;;
    "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    *"pip install"*) echo "ERROR: No matching distribution found for jupyterlab" >&2; exit 1 ;;
esac
"""
DF = "#!/bin/sh\necho Filesystem 1024-blocks Used Available\necho /dev/disk 9000000 0 {free}\n"


@pytest.fixture
def newcomer():
    """Type make in a new clone, with an interpreter and a disk of these kinds, as a user who may
    not do everything; returns the last line that is not make's own."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder)
        shutil.copy(ROOT / "Makefile", clone)
        shutil.copy(ROOT / "pyproject.toml", clone)

        def make(*words, old=0, no_venv=0, free=9_000_000, mode=0o777):
            commands = {"python3": PYTHON.format(old=old, no_venv=no_venv)}
            commands["df"] = DF.format(free=free)
            (clone / "bin").mkdir(exist_ok=True)
            for name, text in commands.items():
                (clone / "bin" / name).write_text(text)
                (clone / "bin" / name).chmod(0o755)
            clone.chmod(mode)
            environment = {"PATH": f"{clone / 'bin'}:/usr/bin:/bin"}
            user = {"user": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
            done = subprocess.run(
                ["make", *words], cwd=clone, env=environment, capture_output=True, text=True, **user
            )
            assert done.returncode == 2
            assert not (clone / ".venv/.installed").exists()
            lines = [line for line in done.stderr.splitlines() if "***" not in line]
            return lines[-1].removeprefix("make: ")

        yield make
        clone.chmod(0o777)


@needs_make
@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        ({"old": 1}, "nclib needs Python 3.11 or newer, 'python3' is Python 3.9.2."),
        ({"no_venv": 1}, "'python3' comes without venv; on Debian and Ubuntu: apt install"),
        ({"free": 4_500_000}, "the set-up takes 7 GB, and 4 GB are free on this disk."),
        ({"mode": 0o555}, "this clone is read-only or belongs to another user."),
        ({}, "the packages are not installed, and pip says why above: most often"),
    ],
)
def test_a_set_up_that_fails_says_why_in_one_sentence(newcomer, machine, sentence):
    assert newcomer("lab", **machine).startswith(sentence)


@needs_make
def test_a_set_up_counts_what_is_there_and_what_is_needed(newcomer):
    index = "TORCH_INDEX=https://example.org"
    assert "takes 2 GB" in newcomer("setup", index, free=1_500_000)
    assert "no network" in newcomer("setup", index, free=4_500_000)
    assert "no 'python9' on the PATH" in newcomer("setup", "PYTHON=python9")


@pytest.mark.slow
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


@pytest.mark.slow
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
