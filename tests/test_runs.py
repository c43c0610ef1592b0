"""Runs: trained once, by whatever executor, whatever interrupts or competes with it, with the same bits."""

import concurrent.futures
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import numpy as np
import pandas as pd
import pytest
import torch
from faults import Journal, Kill, assert_equal, debris, train_grid

import nclib as nc
from nclib import paths, provenance, runs, training
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, run_id
from nclib.data import make_split
from nclib.profiles import experiment
from nclib.runs import MissingRuns, RunsFailed, ensure_runs
from nclib.store import (
    FRAME_COLUMNS,
    CorruptRun,
    DamageWarning,
    RunStore,
    default_store,
    finished,
    load_run,
)

pytestmark = pytest.mark.usefixtures("reference")
TINY = {"epochs": 1, "images_per_class": 6, "test_images_per_class": 3}


def _config(kind="explicit", seed=0, epochs=1, n_max=6, **train):
    images = {"n_max": n_max, "test_per_class": 3}
    train = {"epochs": epochs, "batch_size": 16, "lr": 0.05} | train
    return RunConfig(
        data=images, model={"kind": kind, "width": 2}, train=train, seed=seed, profile="smoke"
    )


GRID = [_config(kind, seed, epochs=4) for seed in (0, 1) for kind in ("explicit", "deq")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The runs of `GRID`, made here one after the other."""
    store = RunStore(tmp_path_factory.mktemp("undisturbed") / "runs")
    for config in GRID:
        runs.train_run(config, store, "cpu")
    return store


@pytest.fixture
def store():
    return default_store()


@pytest.fixture
def warm(monkeypatch):
    """Workers are forked from a server that has imported everything, in 50 ms and not in 5 s. The
    slow tests of a killed command and of a script without a guard start them as users do."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: faults.SERVER)


def _interrupt(config):
    """Ctrl-C after two epochs of three."""

    def stop(done, total, text):
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_runs([config], progress=stop)


# --- what is trained --------------------------------------------------------------------------------------------------


def test_runs_are_trained_once(trained):
    configs = experiment("table1", "smoke", **TINY)
    told = []
    for wrong in (configs[0], [run_id(configs[0])]):
        with pytest.raises(ConfigError, match="give a list of configurations"):
            ensure_runs(wrong)
    frame = ensure_runs(iter(configs), progress=lambda *state: told.append(state))
    assert sorted(trained) == sorted(run_id(c) for c in configs)
    assert told == [(1, 2, "1 of 2 runs"), (2, 2, "2 of 2 runs")]
    assert list(frame.columns) == FRAME_COLUMNS
    assert set(frame["model"]) == {"explicit", "deq"} and set(frame["profile"]) == {"smoke"}
    assert (
        set(frame["dataset"]) == {"digits"}
        and frame["K_A"].isna().all()
        and (frame["R"] == 1).all()
    )
    assert {"train", "test", "steps"} == set(frame["split"])
    again = ensure_runs(configs)
    assert len(trained) == 2
    pd.testing.assert_frame_equal(frame, again)
    assert debris(default_store()) == []


def test_no_run_is_lost_when_rows_are_grouped_by_setting():
    skewed = (
        {"imbalance": "step", "num_majority": 3, "ratio": 3.0},
        {"imbalance": "exponential", "ratio": 3.0},
    )
    frame = runs.ensure_runs([_config().replace(data=data) for data in ({}, *skewed)])
    sizes = frame.groupby(["setting", "model"])["run_id"].nunique()
    assert sizes.to_dict() == {(s, "explicit"): 1 for s in ("balanced", "KA3-R3", "exp-R3")}


def test_metrics_of_each_epoch_reach_a_log():
    told = []
    study = _config(epochs=2)
    frame = runs.ensure_runs([study], log=lambda *facts: told.append(facts))
    assert [(run, epoch) for run, epoch, _ in told] == [(run_id(study), 1), (run_id(study), 2)]
    last = frame[frame["epoch"] == 2]
    assert told[-1][2] == {
        f"{s}/{m}": v for s, m, v in zip(last["split"], last["metric"], last["value"], strict=True)
    }
    runs.ensure_runs([study], log=lambda *facts: pytest.fail("nothing was trained"))


def test_training_uses_one_thread_whatever_the_session_uses():
    torch.set_num_threads(2)
    try:
        with runs.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_one_run_under_two_names_is_refused():
    with pytest.raises(ConfigError, match="has two names"):
        nc.runs.plan([_config(), _config().replace(model={"name": "wide"})])


def test_a_wrong_number_of_threads_is_named(monkeypatch):
    monkeypatch.setenv("NCLIB_THREADS", "many")
    with pytest.raises(ConfigError, match="NCLIB_THREADS='many'"):
        runs.worker_environment()


def test_never_training_names_what_is_missing(trained):
    stored, missing = _config(), _config(seed=1)
    ensure_runs([stored])
    with pytest.raises(MissingRuns, match=run_id(missing)) as caught:
        ensure_runs([stored, missing], train="never")
    assert run_id(stored) not in str(caught.value) and "train='missing'" in str(caught.value)
    assert trained == [run_id(stored)]
    assert ensure_runs([stored], train="never")["run_id"].unique().tolist() == [run_id(stored)]


# --- where runs are trained -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm")
def test_processes_give_the_bits_of_a_serial_run(undisturbed, store):
    told = []
    ensure_runs(GRID, workers=2, progress=lambda *state: told.append(state))
    for config in GRID:
        assert_equal(run_id(config), store, undisturbed)
    assert told[-1] == (4, 4, "4 of 4 runs")
    assert debris(store) == []
    assert multiprocessing.active_children() == []


def test_any_executor_trains_the_same_runs(undisturbed, store):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        ensure_runs(GRID[:2], executor)
    for config in GRID[:2]:
        assert_equal(run_id(config), store, undisturbed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_trains_the_same_runs(undisturbed, store):
    """With the lines that docs/start.md shows."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        ensure_runs(GRID[:2], client.get_executor())
    for config in GRID[:2]:
        assert_equal(run_id(config), store, undisturbed)


def _slowed(config, root, device=None):
    """`attempt` of a worker whose trainings take their time; it says which process trains."""
    honest = training.learning_rate

    def slow(*options):
        time.sleep(0.1)
        return honest(*options)

    training.learning_rate = slow
    Journal(Path(root).parent / "journal").note("begun", run_id(config))
    try:
        return runs.attempt(config, root, device)
    finally:
        training.learning_rate = honest


def _killer(config, root, device=None):
    """The run of seed 1 kills its process each time."""
    if config.seed == 1:
        Journal(Path(root).parent / "journal").note("killer")
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return runs.attempt(config, root, device)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_killed_process_costs_at_most_the_epoch_it_was_in(undisturbed, store, monkeypatch):
    monkeypatch.setattr(runs, "attempt", _slowed)
    journal = Journal(store.root.parent / "journal")
    killed = []

    def kill(*_):
        for note in journal.notes("begun"):
            if not killed and store.checkpoint(note.value).path.exists():
                killed.append(note.value)
                os.kill(note.process, signal.SIGKILL)

    ensure_runs(GRID[:2], workers=2, progress=kill)
    assert killed and store.open(killed[0]).provenance["facts"]["continued_from"] != []
    for config in GRID[:2]:
        assert_equal(run_id(config), store, undisturbed)
    assert debris(store) == []


@pytest.mark.parametrize("where", ["torch", "numpy"])
def test_a_run_that_exceeds_memory_says_so(store, monkeypatch, where):
    def greedy(*_):
        return {"torch": torch.empty, "numpy": np.empty}[where](2**55)

    monkeypatch.setattr(runs, "train_run", greedy)
    store.root.mkdir(parents=True, exist_ok=True)
    failure = runs.attempt(_config(), str(store.root)).failure
    assert failure.startswith("there is not enough memory for it: go on with fewer workers (")


@pytest.mark.usefixtures("warm")
def test_a_run_that_kills_its_process_is_named_and_no_other(store, monkeypatch):
    monkeypatch.setattr(runs, "attempt", _killer)
    wanted = [_config(seed=seed) for seed in range(3)]
    with pytest.raises(
        RunsFailed, match="its process died twice, often for want of memory"
    ) as caught:
        ensure_runs(wanted, workers=2)
    assert set(caught.value.failures) == {run_id(wanted[1])}
    assert len(Journal(store.root.parent / "journal").notes("killer")) == 2
    assert store.ids() == sorted(map(run_id, (wanted[0], wanted[2])))


def test_each_gpu_has_as_many_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def train_on(grid, executor, waiting, at_once, devices):
        asked.extend(next(devices) for _ in range(4))
        return runs._Lost([], [])

    monkeypatch.setattr(runs._Grid, "train_on", train_on)
    runs._train_in_processes(
        runs._Grid({run_id(_config()): _config()}, default_store(), None, None, None), 2
    )
    assert asked == ["cuda:0", "cuda:1"] * 2
    assert runs.default_workers(9) == 2


SCRIPT = f"import nclib as nc\nif GUARD:\n    nc.ensure_runs([nc.RunConfig(**{_config().model_dump()})], workers=2)\n"


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("GUARD", "True"))
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert "ConfigError: no process could start" in done.stderr.splitlines()[-1]
    assert 'write if __name__ == "__main__": above what trains' in done.stderr.splitlines()[-1]


def test_outside_a_clone_a_folder_for_results_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "_project_above", lambda _: None)
    monkeypatch.delenv("NCLIB_DATA")
    monkeypatch.chdir(tmp_path)
    frame = ensure_runs([_config()])
    assert frame["run_id"].unique().tolist() == [run_id(_config())]
    assert finished([run_id(_config())]) == [run_id(_config())]


@pytest.mark.usefixtures("warm")
def test_a_failing_run_is_named_and_does_not_stop_the_others():
    good, greedy, wild = (
        _config(seed=1),
        _config(n_max=10_000),
        _config(lr=1e20, clip=None, weight_decay=0.1, epochs=3),
    )
    with pytest.raises(ConfigError, match="10000 of 138 in class 0"):
        ensure_runs([greedy, good])
    assert default_store().ids() == [], "what cannot begin is refused before anything is trained"
    with pytest.raises(RunsFailed, match=r"(?s)runs that failed: 1.*Use a lower lr") as caught:
        ensure_runs([wild, good], workers=2)
    assert set(caught.value.failures) == {run_id(wild)} and default_store().ids() == [run_id(good)]


CELL = """
import warnings
from nclib.models import ResidualCell

class Cell(ResidualCell):
    def forward(self, z, x):
        if self.training:
            TRAINING
        return super().forward(z, x)
"""


def _of_own_cell(tmp_path, monkeypatch, name, training, seeds):
    """Runs with a cell of the user's own, which does this in training."""
    (tmp_path / f"{name}.py").write_text(CELL.replace("TRAINING", training))
    monkeypatch.syspath_prepend(tmp_path)
    return [
        _config("deq", seed).replace(model={"cell": f"{name}:Cell", "kind": "deq", "width": 2})
        for seed in seeds
    ]


def test_the_traceback_of_a_run_that_fails_is_kept(tmp_path, monkeypatch, store):
    configs = _of_own_cell(tmp_path, monkeypatch, "fails", 'raise OSError("no such mask")', [0])
    with pytest.raises(RunsFailed) as caught:
        ensure_runs(configs)
    file = store.partial(run_id(configs[0])) / "traceback.txt"
    assert f"OSError: no such mask\n    traceback: {file}" in str(caught.value)
    assert 'fails.py", line 8, in forward' in file.read_text()


@pytest.mark.usefixtures("warm")
def test_a_warning_of_a_cell_of_ones_own_is_given_once(tmp_path, monkeypatch, store):
    warning = 'warnings.warn("too large", type("Mine", (RuntimeWarning,), {}))'
    configs = _of_own_cell(tmp_path, monkeypatch, "warns", warning, [0, 1])
    with pytest.warns(RuntimeWarning, match="too large") as caught:
        ensure_runs(configs, workers=2)
    ((filename, line),) = [(w.filename, w.lineno) for w in caught if str(w.message) == "too large"]
    assert (filename, line) == (str(tmp_path / "warns.py"), 8)
    for config in configs:
        assert "too large" in store.open(run_id(config)).provenance["warnings"]


class _Elsewhere(concurrent.futures.Executor):
    """Workers of another disk: they say that they have done it."""

    def submit(self, fn, /, *args, **options):
        future = concurrent.futures.Future()
        future.set_result(runs.Attempt())
        return future


def test_a_run_that_a_worker_has_finished_out_of_sight_is_named():
    with pytest.raises(RunsFailed, match="not to be seen in the run store here"):
        ensure_runs([_config()], _Elsewhere())


# --- faults -----------------------------------------------------------------------------------------------------------


def test_two_clients_that_want_the_same_runs_train_each_once(undisturbed, tmp_path, store):
    journal = Journal(tmp_path / "journal")
    clients = [faults.start(_client, GRID[::order], str(journal.path)) for order in (1, -1)]
    with faults.children(*clients):
        for client in clients:
            client.join(120)
            assert client.exitcode == 0
    notes = journal.notes("fresh")
    assert len(notes) == len(GRID) and len(journal.notes("epoch")) == 4 * len(GRID)
    assert {note.process for note in notes} == {client.pid for client in clients}, "both took part"
    for config in GRID:
        assert_equal(run_id(config), store, undisturbed)
    assert debris(store) == []


def _client(configs, journal):
    faults.watch(Journal(journal))
    Journal(journal).note("client")
    Journal(journal).wait("client", 2)  # both begin at once
    ensure_runs(configs)


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_kill_9_at_any_moment_and_resume_gives_the_same_bits(kind, undisturbed, tmp_path):
    """Killed in an update, while a checkpoint is written, and while the finished run is written."""
    config = next(config for config in GRID if config.model.kind == kind)
    kills = [
        (run_id(config), kill)
        for kill in (Kill("event", 2), Kill("event", 7), Kill("event", 9), Kill("final", 5))
    ]
    delivered, sound = train_grid([config], tmp_path / "killed", tmp_path / "journals", kills)
    assert delivered == len(kills) and sound == {run_id(config)}
    assert_equal(run_id(config), RunStore(tmp_path / "killed"), undisturbed)
    assert debris(RunStore(tmp_path / "killed")) == []


@pytest.mark.slow
def test_forty_kills_at_random_moments(tmp_path):
    """Each call of the test draws other moments; it prints the seed that draws the same again."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    generator = random.Random(seed)
    configs = [_config(kind, number, 12) for number in (0, 1) for kind in ("explicit", "deq")]
    began = time.monotonic()
    assert train_grid(configs, tmp_path / "undisturbed", tmp_path / "usual") == (
        0,
        set(map(run_id, configs)),
    )
    # A life is killed after at most a part of the run, so that there is something left to kill.
    life_seconds = 0.5 * (time.monotonic() - began) / len(configs)
    plan = []
    for number in range(40):
        kind = ("event", "time", "final")[number % 3]
        moments = {
            "event": generator.randint(1, 14),
            "time": generator.uniform(0, life_seconds),
            "final": generator.randint(1, 29),
        }
        plan.append((run_id(configs[number % len(configs)]), Kill(kind, moments[kind])))
    plan.sort(key=lambda planned: planned[1].kind == "final")
    delivered, sound = train_grid(configs, tmp_path / "killed", tmp_path / "journals", plan)
    reference, killed = RunStore(tmp_path / "undisturbed"), RunStore(tmp_path / "killed")
    assert delivered > 20 and sound == set(map(run_id, configs)) == set(killed.ids())
    for run in killed.ids():
        assert_equal(run, killed, reference)
    assert debris(killed) == debris(reference) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_command_takes_its_processes_along(tmp_path, number):
    child = faults.start(_busy_client, str(tmp_path / "results"))
    with faults.children(child):
        worker = Journal(tmp_path / "results" / "journal").wait("begun").process
        os.kill(child.pid, number)
        child.join(20)
        limit = time.monotonic() + 20
        while Path(f"/proc/{worker}").exists() and time.monotonic() < limit:
            time.sleep(0.05)
        assert not Path(f"/proc/{worker}").exists()


def _busy_client(results):
    os.environ["NCLIB_RESULTS"] = results
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job may ignore it
    runs.attempt = _slowed
    ensure_runs([_config(seed=seed, epochs=50) for seed in (0, 1)], workers=2)


def test_control_c_keeps_the_epochs_that_were_done(trained):
    config = _config(epochs=3)
    _interrupt(config)
    store = default_store()
    assert store.ids() == [] and store.partial(run_id(config)).is_dir()
    ensure_runs([config])
    record = store.open(run_id(config)).provenance
    assert record["facts"]["continued_from"] == [2]
    said = runs.runs_provenance([config])["value"]
    assert said["continued from a checkpoint"] == 1
    (earlier,) = record["facts"]["earlier_sessions"]
    assert all(
        earlier[name] == record[name] for name in ("commit", "cpu", "device", "versions", "threads")
    )
    assert (
        provenance.processor_seconds(record)
        == record["cost"]["cpu_seconds"] + earlier["cost"]["cpu_seconds"]
    )
    assert earlier["epoch"] == 2 and earlier["cost"]["cpu_seconds"] > 0


def test_of_a_damaged_checkpoint_it_is_said_that_training_starts_again():
    config = _config(epochs=3)
    _interrupt(config)
    checkpoint = default_store().checkpoint(run_id(config)).path
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.warns(DamageWarning, match="training starts again"):
        ensure_runs([config])
    assert load_run(config).provenance["facts"]["continued_from"] == []


@pytest.mark.parametrize(
    "name", ["history.csv", "provenance.json", "classes.csv", "arrays.npz", "weights.pt"]
)
def test_a_damaged_run_is_set_aside_and_trained_again(name, trained):
    config = _config()
    before, store = ensure_runs([config]), default_store()
    (store.root / run_id(config) / name).write_text("junk")
    with pytest.warns(DamageWarning, match=run_id(config)):
        after = ensure_runs([config])
    assert trained == [run_id(config)] * 2
    pd.testing.assert_frame_equal(before, after, check_exact=True)
    (store.root / run_id(config) / name).write_text("junk")
    with pytest.raises(
        CorruptRun, match=rf"{name} is damaged.*nclib.ensure_runs\(\[config\]\) trains it again"
    ):
        load_run(config).read(name)
    if name in ("history.csv", "provenance.json"):  # what a table is made of
        with (
            pytest.warns(DamageWarning),
            pytest.raises(MissingRuns, match="train='missing' trains them here"),
        ):
            ensure_runs([config], train="never")
        assert finished([run_id(config)]) == []
    else:
        pd.testing.assert_frame_equal(
            before, ensure_runs([config], train="never"), check_exact=True
        )


def test_reference_results_round_trip(trained, reference):
    configs = experiment("table1", "smoke", **TINY)
    with pytest.raises(MissingRuns, match=run_id(configs[0])):
        runs.export_reference(configs, "small")
    assert runs.export_reference(configs, "small", finished=True) == []
    frame = ensure_runs(configs)
    for _ in range(2):  # again, without doubling anything
        assert runs.export_reference(configs, "small") == [run_id(c) for c in configs]
    shutil.rmtree(paths.runs())
    from_reference = ensure_runs(configs, train="never")
    columns = ["run_id", "epoch", "split", "metric"]
    ours, theirs = (f.sort_values(columns, ignore_index=True) for f in (frame, from_reference))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert load_run(configs[0]).arrays["train_features"].shape == (60, 16)
    assert sum(p.stat().st_size for p in reference.rglob("*") if p.is_file()) < 200_000
    ensure_runs(
        configs[:1]
    )  # with training allowed, a reference run does not stand in for one of this machine
    assert len(trained) == 3


def test_plan_says_what_would_be_done(trained):
    configs = experiment("table1", "smoke", seeds=3, **TINY)
    ensure_runs(configs[:2])
    runs.export_reference(configs[:2], "small")
    shutil.rmtree(paths.runs())
    ensure_runs(configs[2:4])
    plan = runs.plan([*configs, configs[0]])
    assert plan["run_id"].tolist() == [run_id(c) for c in configs]
    assert plan["state"].tolist() == ["reference"] * 2 + ["stored"] * 2 + ["missing"] * 2
    assert len(trained) == 4


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_the_network_of_a_stored_run_is_the_trained_one(kind):
    config = _config(kind, precision="float64")
    runs.ensure_runs([config])
    stored = nc.load_run(config)
    model = stored.network()
    assert not model.training
    assert all(
        torch.equal(value, stored.weights[name]) for name, value in model.state_dict().items()
    )
    split = make_split(config.data, config.seed)
    loader = training.Batches(
        split.test_images, split.test_labels, batch_size=256, augment="none",
        mean=split.mean, std=split.std, device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
    (images, _), *_ = loader.in_order()
    assert model(images).features.detach().numpy() == pytest.approx(
        stored.arrays["test_features"], abs=1e-9
    )


def test_a_run_without_weights_says_so():
    runs.ensure_runs([_config()])
    (run,) = runs.export_reference([_config()], "mine")
    shutil.rmtree(default_store().root / run)
    with pytest.raises(
        CorruptRun, match=r"has no weights here; nclib.ensure_runs\(\[config\]\) trains it"
    ):
        nc.load_run(run).network()


# --- a part of the runs -----------------------------------------------------------------------------------------------

BALANCED = DataConfig(dataset="digits", n_max=2, test_per_class=2)
STEP = BALANCED.replace(imbalance="step", num_majority=5, ratio=2.0)


def planned(*images, seeds=range(3), kinds=runs.PAIR):
    return [
        RunConfig(data=each, model=ModelConfig(kind=kind, width=2), seed=seed)
        for each in images
        for seed in seeds
        for kind in kinds
    ]


@pytest.fixture
def there(isolated, monkeypatch):
    """A run store in which exactly the runs of this set are."""
    stored = set()
    monkeypatch.setattr(runs, "finished", lambda wanted: [run for run in wanted if run in stored])
    return stored


def test_a_network_without_its_partner_is_left_out(there, capsys):
    both = planned(BALANCED, STEP)
    assert runs.drawable(both, "missing") == both
    there |= {run_id(config) for config in planned(BALANCED) + planned(STEP, kinds=["deq"])}
    there.remove(run_id(planned(BALANCED)[-1]))
    assert runs.drawable(both) == planned(BALANCED, seeds=[0, 1])
    assert (
        "4 of 12 runs are plotted. The others are unfinished or lack their partner."
        in capsys.readouterr().out
    )
    assert runs.finished_pairs(planned(STEP)) == []


def test_without_any_pair_there_is_nothing_to_draw(there):
    with pytest.raises(
        MissingRuns,
        match="none of 6 runs is finished with its partner; train='missing' trains them",
    ):
        runs.drawable(planned(STEP))
    with pytest.raises(MissingRuns, match="train='finished' forbids"):
        ensure_runs(planned(STEP), train="finished")


def rows(*settings, models=("explicit", "deq")):
    columns = ["dataset", "K_A", "R", "seed", "model"]
    return pd.DataFrame(
        [("digits", *setting, model) for setting in settings for model in models], columns=columns
    )


def test_a_setting_counts_once_it_has_every_seed():
    both = planned(BALANCED, STEP)
    balanced = [(None, 1.0, seed) for seed in range(3)]
    step = [(5, 2.0, seed) for seed in range(3)]
    every = rows(*balanced, *step)
    assert len(runs.whole(every, both)) == 12 and runs.counted(every, both) == (2, 2)
    some = runs.whole(rows(*balanced[:2], *step), both)
    assert some["K_A"].tolist() == [5] * 6 and runs.counted(some, both) == (1, 2)
    assert runs.counted(rows(*balanced), planned(BALANCED)) == (1, 1)
    assert runs.whole(rows(*balanced, models=["deq"]), both).empty, "the other network has no seed"
