"""One notebook executed in a process of its own: what it shows, what it leaves, how it ends."""

import json
import os
from pathlib import Path

import pytest
from reproduction import DRAW, figure, link_picture, write_notebook

from nclib import paths, profiles
from nclib.publish import notebooks
from nclib.reproduce import execute, reproduce


def test_processes_inherit_absolute_folders_one_thread_and_this_nclib(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCLIB_RESULTS", "elsewhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    figure("neural_collapse/fig1")
    bench.reproduce()
    assert bench.environment["NCLIB_RESULTS"] == str(tmp_path / "elsewhere")
    assert bench.environment["OMP_NUM_THREADS"] == "1"
    assert Path(bench.environment["PYTHONPATH"].split(os.pathsep)[0], "nclib").is_symlink()
    assert os.environ["NCLIB_RESULTS"] == "elsewhere" and "OMP_NUM_THREADS" not in os.environ


SHOW = """
from IPython.display import display
import matplotlib.pyplot as plt
print("said")
place = display("before", display_id=True)
plt.plot([1, 2])
epochs"""


def test_outputs_are_kept_in_order_and_a_later_cell_may_replace_one(project, monkeypatch):
    name = "neural_collapse/fig9"
    write_notebook(name, SHOW, "place.update('after')", DRAW.format(name=name))
    monkeypatch.setattr(profiles, "makers", dict)
    assert reproduce.reproduce([name], "smoke", ["epochs=7"], echo=lambda line: None).ok
    with_seven = paths.results("smoke") / "with/epochs=7"
    cells = json.loads((with_seven / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    first = cells[2]["outputs"]  # after the parameters and what was injected
    assert first[0]["text"] == "said\n" and first[1]["data"]["text/plain"] == "'after'"
    assert first[2]["data"]["text/plain"] == "7" and "image/png" in first[3]["data"]
    assert (with_seven / f"tables/{name}.csv").is_file()
    stamp = json.loads((with_seven / f"notebooks/{name}.json").read_text(encoding="utf-8"))
    assert {Path(file).suffix for file in stamp["files"]} == {".csv", ".md", ".json", ".ipynb"}


def test_pictures_that_its_text_links_to_lie_beside_the_executed_copy(project, monkeypatch):
    name = "neural_collapse/fig9"
    write_notebook(name, DRAW.format(name=name))
    picture = link_picture(name, "fig9")
    picture.parent.mkdir()
    monkeypatch.setattr(profiles, "makers", dict)
    for content in (b"first", b"second"):
        picture.write_bytes(content)
        statuses = [reproduce.reproduce([name], "smoke", echo=lambda line: None).rows[0].status for _ in range(2)]
        assert statuses == ["executed", "unchanged"]
        assert notebooks.executed(name, "smoke").with_name("images").joinpath("fig9.png").read_bytes() == content


@pytest.mark.slow
def test_notebooks_run_side_by_side_in_processes_of_their_own(project, monkeypatch):
    monkeypatch.setattr(profiles, "makers", dict)
    look = "from pathlib import Path\nimport os\nprint(profile, Path.cwd().name)"
    good = write_notebook("walkthrough/01", look, "assert os.environ['OMP_NUM_THREADS'] == '1'")
    write_notebook("walkthrough/02", look, "raise ArithmeticError('on purpose')")
    write_notebook("walkthrough/03", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    before = good.read_bytes()
    summary = reproduce.reproduce(profile="smoke", echo=lambda line: None)
    assert [row.status for row in summary.rows] == ["executed", "failed", "failed"]
    assert summary.rows[1].message == "ArithmeticError: on purpose (cell 4)"  # the injected cell is the second
    assert summary.rows[2].message == "its process died (exit code -9)"
    assert not notebooks.executed("walkthrough/02", "smoke").exists()
    for name in ("01.ipynb", "02.failed.ipynb"):
        text = (paths.results("smoke") / "notebooks/walkthrough" / name).read_text(encoding="utf-8")
        assert "smoke walkthrough" in text and str(project) not in json.dumps(json.loads(text)["metadata"])
    assert good.read_bytes() == before and not execute._running
