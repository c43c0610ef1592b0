"""What every test stands on: one thread, no window, no GPU where there is none, and folders of its own."""

import os

# Before torch, numpy and matplotlib are imported, here and in every process a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "Agg"

from pathlib import Path

import pytest

# torch and matplotlib are imported where tests run: not in the process that hands them out to others.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    torch.set_num_threads(1)
    nameless = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if nameless:
        raise pytest.UsageError(
            f"each process has another name for these tests, give them ids: {nameless}"
        )
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _redirect(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("NCLIB_RESULTS", str(folder / "results"))
    patch.setenv("NCLIB_DATA", str(folder / "data"))


@pytest.fixture(scope="session", autouse=True)
def _session_folders(tmp_path_factory: pytest.TempPathFactory):
    """Fixtures of a wider scope than one test write here, never into the project."""
    with pytest.MonkeyPatch.context() as patch:
        _redirect(patch, tmp_path_factory.mktemp("session"))
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of a test run have in common; what is made there is made under a lock."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`NCLIB_RESULTS` and `NCLIB_DATA` lie in this test's own folder, which is returned."""
    _redirect(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reference results of the project neither enter the test nor are written by it."""
    monkeypatch.setattr("nclib.paths.reference", lambda: tmp_path / "reference")
    return tmp_path / "reference"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs that were really trained in this process."""
    from nclib import config, training

    ids, honest = [], training.train
    monkeypatch.setattr(
        training,
        "train",
        lambda run, **given: ids.append(config.run_id(run)) or honest(run, **given),
    )
    return ids


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with the RUNS of the module."""
    from nclib import ensure_runs

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(folder := tmp_path_factory.mktemp("results")))
        ensure_runs(request.module.RUNS)
    return folder


@pytest.fixture
def frame(request: pytest.FixtureRequest, results: Path, monkeypatch: pytest.MonkeyPatch):
    """The rows of these RUNS."""
    from nclib import ensure_runs

    monkeypatch.setenv("NCLIB_RESULTS", str(results))
    return ensure_runs(request.module.RUNS, train="never")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, which a test fills with notebooks."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("NCLIB_ROOT", str(folder))
    return folder


@pytest.fixture
def bench(project: Path, monkeypatch: pytest.MonkeyPatch):
    """A project in which training and executing take no time: seeds 0 and 1 are of Figure 1, 1 and
    2 of Figure 2."""
    from reproduction import Bench, inline_pool, runs_of_seeds

    from nclib import profiles, reproduce, runs

    bench = Bench()
    bench.wanted = {
        "neural_collapse/fig1": runs_of_seeds([0, 1]),
        "neural_collapse/fig2": runs_of_seeds([1, 2]),
    }
    monkeypatch.setattr(profiles, "makers", lambda: bench.wanted)
    monkeypatch.setattr(runs, "_make", bench.train)
    monkeypatch.setattr(runs, "process_pool", inline_pool)
    monkeypatch.setattr("papermill.execute_notebook", bench.execute)
    monkeypatch.setattr(reproduce, "FIRST", [])
    monkeypatch.setattr(reproduce, "AT_ONCE", 1)
    return bench
