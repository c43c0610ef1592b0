"""One notebook executed: its process, its files, its end."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pandas as pd
import pytest
from reproduction import figure, write_notebook

from nclib.engine import experiments
from nclib.publish.artefacts import save_table
from nclib.reproduce import execute, reproduce
from nclib.system import paths


def test_files_belong_to_the_notebook_with_the_longest_fitting_name(bench):
    figure("neural_collapse/fig1")
    figure("neural_collapse/fig1_more")
    write_notebook("neural_collapse/fig11")
    before = execute.sidecars("smoke")
    for name in ("fig1", "fig1_tsne", "fig1_more", "fig11"):
        save_table(pd.DataFrame({"x": [1]}), f"neural_collapse/{name}", "profile smoke", [], "smoke")

    def tables_of(name):
        return {Path(file).stem for file in execute.files_left(name, "smoke", before, "") if file.startswith("tables")}

    assert tables_of("neural_collapse/fig1") == {"fig1", "fig1_tsne"}
    assert tables_of("neural_collapse/fig1_more") == {"fig1_more"}
    now = execute.sidecars("smoke")
    assert [*execute.files_left("neural_collapse/fig1", "smoke", now, "")] == ["notebooks/neural_collapse/fig1.ipynb"]


def test_processes_inherit_absolute_folders_one_thread_and_this_nclib(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCLIB_RESULTS", "elsewhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    figure("neural_collapse/fig1", "import os, sys\nfirst = os.path.realpath(os.environ['PYTHONPATH'].split(':')[0])")
    bench.reproduce()
    assert bench.environment["NCLIB_RESULTS"] == str(tmp_path / "elsewhere")
    assert bench.environment["OMP_NUM_THREADS"] == "1" and "nclib-" in bench.environment["PYTHONPATH"].split(":")[0]
    assert os.environ["NCLIB_RESULTS"] == "elsewhere" and "OMP_NUM_THREADS" not in os.environ


def test_children_are_ended_and_others_left_alone():
    context = multiprocessing.get_context("spawn")
    mine, other = (context.Process(target=time.sleep, args=(120,), daemon=True) for _ in range(2))
    other.start()
    before = set(multiprocessing.active_children())
    mine.start()
    try:
        execute.end_children(before)
        assert not mine.is_alive() and other.is_alive()
    finally:
        other.kill()
        other.join()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at the table of processes")
def test_what_a_worker_started_ends_with_it():
    with pytest.raises(KeyboardInterrupt), execute.notebook_pool(1) as pool:
        sleeper = pool.submit(os.spawnlp, os.P_NOWAIT, "sleep", "sleep", "120").result()
        assert Path(f"/proc/{sleeper}").is_dir()
        raise KeyboardInterrupt
    limit = time.monotonic() + 20
    while _runs(sleeper):
        assert time.monotonic() < limit
        time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_notebooks_run_side_by_side_in_kernels_of_their_own(project, monkeypatch):
    monkeypatch.setattr(experiments, "known", dict)
    look = "from pathlib import Path\nimport os\nprint(epochs, end='!')\nprint(profile, Path.cwd().name)"
    threads = "assert os.environ['OMP_NUM_THREADS'] == '1'\nimport nclib.system.paths"
    good = write_notebook("walkthrough/01", look, threads)
    write_notebook("walkthrough/02", look, "raise ArithmeticError('on purpose')")
    write_notebook("walkthrough/03", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    before = good.read_bytes()
    summary = reproduce.reproduce(profile="smoke", overrides=["epochs=7"], workers=2, echo=lambda line: None)
    assert [row.status for row in summary.rows] == ["executed", "failed", "failed"]
    assert summary.rows[1].message == "ArithmeticError: on purpose (cell 4)"  # the injected cell is the second
    assert summary.rows[2].message.startswith("DeadKernelError")
    for row in summary.rows[:2]:
        kept = json.loads((paths.results("smoke") / "with" / "epochs=7" / row.files[0]).read_text(encoding="utf-8"))
        printed = [output["text"] for cell in kept["cells"] for output in cell.get("outputs", []) if "text" in output]
        assert ["".join(text) for text in printed] == ["7!smoke walkthrough\n"]
        assert str(project) not in json.dumps(kept["metadata"])
    assert good.read_bytes() == before
    assert multiprocessing.active_children() == []
