"""Notebooks: which are meant, what is passed to them, when they are executed, what fails."""

import json
import lzma
import os
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
from reproduction import SAVE, figure, run_of, write_notebook

from nclib import data, paths, reproduce, runs
from nclib.config import ConfigError
from nclib.store import default_store, reference_store

FIG1 = "neural_collapse/fig1"
FIG2 = "neural_collapse/fig2"
TABLE9 = "neural_collapse/table9"


def statuses(summary):
    return [row.status for row in summary.rows]


def wait_for(happened):
    for _ in range(200):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


# --- names ----------------------------------------------------------------------------------------


@pytest.fixture
def many(project):
    for name in ("neural_collapse/fig10", FIG2, "walkthrough/01_start", "kernels/fig2"):
        write_notebook(name)
    for name in ("index", "neural_collapse/.ipynb_checkpoints/fig2-checkpoint", f"{FIG2}-Copy1"):
        write_notebook(name)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ([], ["walkthrough/01_start", FIG2, "neural_collapse/fig10", "kernels/fig2"]),
        (["fig2"], [FIG2]),
        (["kernels/fig2"], ["kernels/fig2"]),
        (["neural_collapse"], [FIG2, "neural_collapse/fig10"]),
        (["fig10", "neural_collapse"], ["neural_collapse/fig10", FIG2]),
        (["notebooks/kernels/fig2.ipynb"], ["kernels/fig2"]),
    ],
)
def test_names_are_understood(many, typed, meant):
    assert reproduce.select(typed) == meant


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("fgi2", "'fig2'"),
        ("kernels/fig3", "'kernels/fig2'"),
        ("01_start", "'walkthrough/01_start'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(many, typed, nearest):
    with pytest.raises(ConfigError, match=f"unknown notebook '{typed}'.*{nearest}"):
        reproduce.select([typed])


def test_what_a_paper_prints_comes_before_what_is_added():
    names = ["other/a", "neural_collapse/audit", "neural_collapse/table1", FIG1]
    assert sorted(names, key=reproduce.reading_order) == [FIG1, names[2], names[1], "other/a"]


# --- parameters -----------------------------------------------------------------------------------


def test_defaults_are_read_with_their_types(project):
    write_notebook("a/b", parameters="n: int = -3  # how many\nlr: float = 1\nok: bool = True\n")
    defaults = reproduce.parameters("a/b")
    assert defaults == {"n": -3, "lr": 1.0, "ok": True} and type(defaults["lr"]) is float


def test_values_reach_the_notebooks_that_declare_them_and_change_something():
    declared = {"one": {"n": 0, "name": "", "ok": False}, "two": {"n": 0.0}, "three": {"n": 3}}
    values = reproduce.given_values(declared, ["n=3", "name=7", "ok=true"])
    assert values == {"one": {"n": 3, "name": "7", "ok": True}, "two": {"n": 3.0}, "three": {}}
    assert type(values["two"]["n"]) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch=3", "Did you mean 'epochs'"),
        ("epochs=three", "epochs of a/one must be int, got 'three'"),
        ("epochs=3.5", "must be int"),
        ("epochs", "not an assignment"),
        ("profile=lite", "use the option --profile"),
    ],
)
def test_a_wrong_value_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        reproduce.given_values({"a/one": {"profile": "quick", "epochs": 0}}, [text])


# --- one call -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": ["epoch=3"]}, "Did you mean 'epochs'"),
        ({"texts": ["dataset=digit"]}, "Did you mean 'digits'"),
        ({"profile": "smok"}, "Did you mean 'smoke'"),
        ({"train": "nver"}, "Did you mean 'never'"),
    ],
)
def test_a_wrong_call_is_refused_before_any_training(bench, options, message):
    figure(FIG1)
    with pytest.raises(ConfigError, match=message):
        bench.reproduce(**options)
    assert not bench.trained and not bench.executed and not paths.results().exists()


def test_runs_are_trained_once_and_shared(bench):
    figure(FIG1)
    figure(FIG2)
    assert bench.reproduce().ok and bench.trained == {run_of(0): 1, run_of(1): 1, run_of(2): 1}


def test_profile_and_values_are_passed_where_they_are_declared(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "resolve_dataset", lambda name, base=None: "digits")
    monkeypatch.chdir(tmp_path)
    figure(FIG1, "assert (profile, epochs, lr, dataset) == ('smoke', 3, 0.5, 'digits')")
    write_notebook("walkthrough/01", "assert 'lr' not in globals()", parameters="n: int = 0\n")
    assert bench.reproduce(texts=["epochs=3", "lr=0.5", "dataset=folder:images"]).ok


def test_kernels_inherit_absolute_folders_and_one_thread(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCLIB_RESULTS", "elsewhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    look = "import os\nassert os.environ['OMP_NUM_THREADS'] == '1'\n"
    figure(FIG1, look + "assert os.path.isabs(os.environ['NCLIB_RESULTS'])")
    assert bench.reproduce().ok and os.environ["NCLIB_RESULTS"] == "elsewhere"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_failed_run_fails_only_the_notebooks_that_need_it(bench):
    figure(FIG1)
    figure(FIG2)
    write_notebook("walkthrough/01")
    bench.broken[run_of(0)] = RuntimeError("loss is not finite; lower lr")
    summary = bench.reproduce()
    assert statuses(summary) == ["failed", "executed", "executed"] and not summary.ok
    assert "1 of its 2 runs" in summary.rows[0].message and "lower lr" in summary.rows[0].message
    bench.broken.clear()
    assert bench.reproduce().ok and bench.trained[run_of(1)] == 1


def test_a_failed_notebook_is_named_and_kept_apart_and_the_others_go_on(bench):
    figure(FIG1)
    figure(FIG2)
    assert bench.reproduce().ok
    complete = reproduce.executed(FIG1, "smoke").read_bytes()
    figure(FIG1, "raise ValueError('too dark')")
    figure(FIG2, "1")
    summary = bench.reproduce()
    failed, good = summary.rows
    assert not summary.ok and (failed.notebook, failed.status) == (FIG1, "failed")
    assert failed.message == "cell 3: ValueError: too dark" and good.status == "executed"
    assert f"{FIG1}: failed: cell 3: ValueError: too dark" in bench.lines
    assert reproduce.executed(FIG1, "smoke").read_bytes() == complete
    assert reproduce.executed(FIG1, "smoke").with_suffix(".failed.ipynb").exists()


def test_results_of_other_parameters_lie_in_a_folder_of_their_own(bench):
    write_notebook(FIG1, SAVE.replace("[1.0]", "[epochs]").format(name=FIG1))
    bench.reproduce()
    assert bench.reproduce(texts=["epochs=3"]).folder == "epochs=3"
    folder = paths.results("smoke")
    for place, epochs in ((folder, 0), (folder / "with/epochs=3", 3)):
        assert int(pd.read_csv(place / f"tables/{FIG1}.csv")["x"].item()) == epochs
    for texts in ([], ["epochs=3"], ["epochs=0"]):  # the last is the notebook's own value
        assert statuses(bench.reproduce(texts=texts)) == ["unchanged"]


# --- what is unchanged ----------------------------------------------------------------------------


def _overwrite(name, text):
    (paths.results("smoke") / name).write_text(text)


def _add_printed_numbers():
    paths.published().mkdir(parents=True)
    (paths.published() / "table.csv").write_text("x\n")


def _change_picture():
    (paths.notebooks() / "neural_collapse/images/a.png").write_bytes(b"second")


@pytest.mark.parametrize(
    "change",
    [
        lambda: figure(FIG1, "1"),
        _add_printed_numbers,
        lambda: _overwrite(f"tables/{FIG1}.csv", "x\n2.0\n"),
        lambda: (paths.results("smoke") / f"tables/{FIG1}.md").unlink(),
        lambda: reproduce.executed(FIG1, "smoke").unlink(),
        lambda: _overwrite(f"notebooks/{FIG1}.json", "[]"),
        lambda: _overwrite(f"notebooks/{FIG1}.json", "no JSON"),
        lambda: shutil.rmtree(default_store().root / run_of(0)),
        _change_picture,
    ],
    ids=["source", "printed", "table", "deleted", "copy", "stamp", "damage", "run", "picture"],
)
def test_what_changed_is_executed_again(bench, change):
    picture = paths.notebooks() / "neural_collapse/images/a.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"first")
    write_notebook(FIG1, SAVE.format(name=FIG1), text="![a picture](images/a.png)")
    bench.reproduce()
    assert statuses(bench.reproduce()) == ["unchanged"]
    change()
    again = [statuses(bench.reproduce()) for _ in range(2)]
    assert again == [["executed"], ["unchanged"]]
    copy = reproduce.executed(FIG1, "smoke").parent / "images/a.png"
    assert copy.read_bytes() == picture.read_bytes()


def test_a_table_beside_the_code_counts_as_code(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce.provenance, "folder", lambda package: tmp_path)
    digests = set()
    for content in ("lower", "higher"):
        (tmp_path / "claims.csv").write_text(content)
        digests.add(reproduce.code_digest())
    assert len(digests) == 2


def test_other_code_and_another_training_execute_everything_again(bench, monkeypatch):
    figure(FIG1)
    bench.reproduce()
    monkeypatch.setattr(reproduce, "code_digest", lambda: "edited")
    assert statuses(bench.reproduce()) == ["executed"]
    assert statuses(bench.reproduce(force=True)) == ["executed"]
    done = default_store().root / run_of(0) / "DONE"
    done.write_bytes(done.read_bytes() + b"\n")  # as another training of the run would
    assert statuses(bench.reproduce(train="never")) == ["executed"]


# --- order ----------------------------------------------------------------------------------------


def test_a_notebook_is_executed_while_the_runs_of_others_are_trained(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "FIRST", [FIG2])  # seeds 1 and 2; Figure 1 has 0 and 1
    figure(FIG1)
    figure(FIG2)
    executed_before = {}

    def train(config, *rest, **options):
        if config.seed == 0:
            wait_for(lambda: FIG2 in bench.executed)
        executed_before[config.seed] = list(bench.executed)
        bench.train(config, *rest, **options)

    monkeypatch.setattr(runs, "_make", train)
    assert bench.reproduce().ok
    assert executed_before == {1: [], 2: [], 0: [FIG2]}


def test_what_is_urgent_comes_first_then_the_main_paper(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "FIRST", [FIG2, FIG1])
    write_notebook("walkthrough/01")
    for name in (FIG1, FIG2, "neural_collapse/fig3"):
        figure(name)
    bench.reproduce()
    assert bench.executed == [FIG2, FIG1, "neural_collapse/fig3", "walkthrough/01"]


def test_the_summary_is_last_and_executed_again_when_claims_changed(bench):
    for name in (reproduce.SUMMARY, "walkthrough/01"):
        figure(name)
    claims = SAVE.format(name=f"{TABLE9}_claims")
    write_notebook(TABLE9, claims)
    bench.reproduce()
    assert bench.executed[-1] == reproduce.SUMMARY
    assert set(statuses(bench.reproduce())) == {"unchanged"}
    write_notebook(TABLE9, claims.replace("1.0", "2.0"))
    bench.reproduce("table9")
    assert statuses(bench.reproduce("scorecard")) == ["executed"]


def test_the_summary_waits_for_the_tables_of_those_that_began_before_it(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "AT_ONCE", 2)
    write_notebook(TABLE9, "import time\ntime.sleep(0.5)", SAVE.format(name=TABLE9))
    table = paths.results("smoke") / f"tables/{TABLE9}.csv"
    write_notebook(reproduce.SUMMARY, f"from pathlib import Path\nassert Path('{table}').exists()")
    assert bench.reproduce().ok


# --- without training -----------------------------------------------------------------------------


def test_never_training_leaves_out_what_lacks_runs_and_fails_for_what_is_broken(bench):
    figure(FIG1)
    figure(FIG2)
    bench.reproduce("fig1")
    bench.trained.clear()
    summary = bench.reproduce(train="never")
    assert statuses(summary) == ["unchanged", "not drawn"] and summary.ok and not bench.trained
    write_notebook("walkthrough/01", "1 / 0")
    assert not bench.reproduce(train="never").ok


@pytest.mark.parametrize(("profile", "hint"), [("smoke", ""), ("lite", " (--largest instead")])
def test_a_larger_profile_without_its_runs_says_how_to_plot_the_stored_ones(bench, profile, hint):
    figure(FIG1)
    bench.reproduce(FIG1, profile=profile, train="never")
    assert any(f"some of their runs are missing{hint}" in line for line in bench.lines)
    assert any("--largest" in line for line in bench.lines) == bool(hint)


def test_what_is_finished_is_executed_and_again_when_another_run_is(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "DRAW_A_PART", [FIG2])
    figure(FIG1)
    figure(FIG2)
    bench.reproduce("fig1")  # seeds 0 and 1; Figure 2 has 1 and 2
    bench.trained.clear()
    assert statuses(bench.reproduce("fig2", train="finished")) == ["executed"]
    assert statuses(bench.reproduce("fig2", train="finished")) == ["unchanged"]
    assert not bench.trained
    assert statuses(bench.reproduce("fig2")) == ["executed"]


def test_what_plots_the_runs_of_another_trains_none_and_waits_for_this_call(bench, monkeypatch):
    monkeypatch.setitem(reproduce.DRAWN_AS_FAR_AS_THERE, "neural_collapse/fig9", FIG1)
    figure("neural_collapse/fig9")
    bench.reproduce("fig9")
    assert not bench.trained
    figure(FIG1)
    assert bench.reproduce("fig9", "fig1").ok
    assert set(statuses(bench.reproduce("fig9", "fig1"))) == {"unchanged"}
    sealed = paths.root() / "results" / "sealed" / "protocol-9" / "runs.json"
    paths.write_atomic(sealed, "{}")
    assert statuses(bench.reproduce("fig9", "fig1")) == ["unchanged", "executed"], (
        "one more is told"
    )


def test_collapse_plots_the_tracked_runs_where_nobody_names_others():
    (task,) = reproduce.prepare(["neural_collapse/collapse"], "full", train="never")
    assert task.has_runs and not task.trains and task.folder == ""
    (other,) = reproduce.prepare(["neural_collapse/collapse"], "full", ["epochs=3"], "never")
    assert not other.has_runs, "trained otherwise"


def test_studies_are_plotted_from_what_is_there_and_trained_where_somebody_asks(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "STUDIES", [FIG2])
    figure(FIG1)
    figure(FIG2)
    assert statuses(bench.reproduce()) == ["executed", "not drawn"]
    assert any("--all trains them" in line and FIG2 in line for line in bench.lines)
    assert set(bench.trained) == {run_of(0), run_of(1)}
    assert statuses(bench.reproduce(everything=True)) == ["unchanged", "executed"]
    assert set(bench.trained) == {run_of(0), run_of(1), run_of(2)}
    bench.trained.clear()
    shutil.rmtree(default_store().root / run_of(2))
    bench.reproduce("fig2")
    assert set(bench.trained) == {run_of(2)}


# --- what is said ---------------------------------------------------------------------------------


def test_the_live_line_has_runs_time_left_and_the_notebook_in_hand(bench, monkeypatch):
    monkeypatch.setattr(reproduce, "SECONDS_OF_A_NOTEBOOK", 600.0)
    figure(FIG1)
    write_notebook("walkthrough/01", "import time\ntime.sleep(0.5)")
    said = []
    bench.reproduce(progress=lambda done, of, text: said.append((done / of, text)))
    done, texts = zip(*said, strict=True)
    assert list(done) == sorted(done) and done[0] < 0.1
    assert any(text.startswith("1 of 2 runs, 20 min left") for text in texts)
    assert any(text.endswith("left, walkthrough/01") for text in texts)
    assert f"{FIG1}: executed: {reproduce.executed(FIG1, 'smoke')}" in bench.lines


def test_the_time_left_follows_the_speed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: now[0])
    work = {str(number): 10.0 for number in range(100)}
    meter = reproduce._Meter(work, len(work), 2, None)
    assert meter.minutes_left() == pytest.approx(1000 / 2 / 60)
    for number in range(60):  # at half of the speed that was guessed
        now[0] += 10
        meter.end(str(number))
    assert meter.minutes_left() == pytest.approx(400 / 60, rel=0.1)


def test_runs_with_unsolved_samples_are_named(bench, monkeypatch):
    figure(FIG1)
    monkeypatch.setattr(reproduce, "_unconverged", lambda configs: [run_of(0)])
    assert bench.reproduce().unconverged == (run_of(0),)


# --- the largest scale ----------------------------------------------------------------------------

SEEDS = 'profile: str = "quick"\nseeds: int = 0\nwidth: int = 0\n'


@pytest.fixture
def tracked(bench):
    """Runs of seeds 0 and 1 are tracked and not stored; a function that lists their scales."""
    for name in (FIG1, FIG2):
        write_notebook(name, SAVE.format(name=name), parameters=SEEDS)
    bench.reproduce("fig1")
    store = default_store()
    reference_store().add("small", [store.open(run_of(seed)) for seed in (0, 1)], {})
    for seed in (0, 1):
        shutil.rmtree(store.root / run_of(seed))
    bench.trained.clear()
    bench.executed.clear()

    def scales(*parameters):
        listing = [{"profile": "smoke", "parameters": values} for values in parameters]
        (paths.reference() / "scales.json").write_text(json.dumps(listing))

    return scales


def test_the_first_scale_whose_runs_are_all_there_is_executed_and_listed(
    bench, tracked, monkeypatch
):
    monkeypatch.setattr(reproduce, "DRAW_A_PART", [])
    tracked({"width": 64}, {"seeds": 1})
    assert bench.reproduce(train="never", largest=True).ok
    folder = "smoke/with/seeds=1"
    assert (paths.results() / folder / f"tables/{FIG1}.csv").is_file()
    # Figure 2 needs seed 2, too
    assert not bench.trained and bench.executed == [FIG1, FIG1]
    scale = {"profile": "smoke", "parameters": {"seeds": 1}, "scale": "toy", "images": "digits"}
    listing = json.loads((paths.results("smoke") / "largest.json").read_text())
    assert listing == {FIG1: scale | {"folder": folder}}
    again = bench.reproduce(train="never", largest=True)
    assert statuses(again) == ["unchanged", "not drawn", "unchanged"]
    assert len(bench.reproduce("fig1", texts=["seeds=1"], train="never", largest=True).rows) == 1


def test_a_changed_reference_is_noticed(bench, tracked):
    assert statuses(bench.reproduce("fig1", train="never")) == ["executed"]
    assert statuses(bench.reproduce("fig1", train="never")) == ["unchanged"]
    rows = paths.reference() / "small/history.csv.xz"
    rows.write_bytes(lzma.compress(lzma.decompress(rows.read_bytes()) + b"\n"))
    assert statuses(bench.reproduce("fig1", train="never")) == ["executed"]


def test_what_plots_the_runs_that_are_there_needs_one_pair(tracked, monkeypatch):
    monkeypatch.setitem(reproduce.DRAWN_AS_FAR_AS_THERE, "neural_collapse/fig8", FIG2)
    write_notebook("neural_collapse/fig8", parameters=SEEDS)
    tracked({"width": 64}, {"seeds": 3})
    scales = reproduce.largest_scales(["neural_collapse/fig8"])
    assert scales["neural_collapse/fig8"]["parameters"] == {"seeds": 3}


def test_the_tracked_runs_give_the_figures_of_the_paper_a_larger_scale():
    scales = reproduce.largest_scales([*reproduce.available(), "walkthrough/08_reading_a_table"])
    names = ("table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "fig5", "scorecard")
    for name in names:
        dataset = scales[f"neural_collapse/{name}"]["parameters"]["dataset"]
        assert dataset.startswith("folder:cifar10-jpeg@")
    assert scales["neural_collapse/collapse"]["scale"] == "reduced"
    assert not any("walkthrough" in name for name in scales)


# --- a real kernel --------------------------------------------------------------------------------


@pytest.mark.slow
def test_papermill_executes_notebooks_in_kernels_of_their_own(project, monkeypatch, tmp_path):
    monkeypatch.setattr("nclib.profiles.makers", dict)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise SystemExit('not this file')")
    figure("walkthrough/01", "print(profile, epochs)")
    write_notebook("walkthrough/02", "import os; print(os.getpid())\n1 / 0")
    write_notebook("walkthrough/03", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    before = reproduce.source("walkthrough/01").read_bytes()
    lines = []
    summary = reproduce.reproduce(profile="smoke", texts=["epochs=7"], echo=lines.append)
    assert statuses(summary) == ["executed", "failed", "failed"]
    assert summary.rows[1].message == "cell 3: ZeroDivisionError: division by zero"
    assert "DeadKernelError" in summary.rows[2].message
    with paths.results_with("epochs=7"):
        cells = reproduce.read_cells(reproduce.executed("walkthrough/01", "smoke"))
        assert (paths.results("smoke") / "tables/walkthrough/01.csv").is_file()
    assert cells[-1]["outputs"][0]["text"] == ["smoke 7\n"]
    assert reproduce.source("walkthrough/01").read_bytes() == before
    again = reproduce.reproduce(["walkthrough/01"], "smoke", ["epochs=7"], echo=lines.append)
    assert statuses(again) == ["unchanged"]
    assert Path.cwd() == tmp_path


@pytest.mark.slow
def test_a_process_that_dies_costs_its_notebook_alone(project, monkeypatch):
    monkeypatch.setattr("nclib.profiles.makers", dict)
    monkeypatch.setattr(reproduce, "AT_ONCE", 1)
    for number in (1, 2, 3):
        figure(f"walkthrough/0{number}")
    kill = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(60)"
    write_notebook("walkthrough/02", kill)
    lines = []
    summary = reproduce.reproduce(profile="smoke", echo=lines.append)
    assert statuses(summary) == ["executed", "failed", "executed"]
    assert "its process died" in summary.rows[1].message
