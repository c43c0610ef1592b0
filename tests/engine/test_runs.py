"""Runs: trained once, by whatever executor, whatever interrupts or competes with it."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from faults import Journal, debris

import nclib as nc
from nclib import training
from nclib.config import ConfigError, RunConfig, run_id
from nclib.data import make_split
from nclib.engine import jobs, runs
from nclib.engine.experiments import experiment
from nclib.engine.reference import finished, load_run
from nclib.engine.runs import MissingRuns, RunsFailed, ensure_runs
from nclib.engine.store import FRAME_COLUMNS, CorruptRun, DamageWarning, RunStore, default_store
from nclib.system import paths, provenance

TINY = {"epochs": 1, "images_per_class": 6, "test_images_per_class": 3}


def _config(kind="explicit", seed=0, epochs=1, n_max=6, **train):
    images, train = {"n_max": n_max, "test_per_class": 3}, {"epochs": epochs, "batch_size": 16, "lr": 0.05} | train
    return RunConfig(data=images, model={"kind": kind, "width": 2}, train=train, seed=seed, profile="smoke")


pytestmark = pytest.mark.usefixtures("reference")


def _same_bits(run, one, other):
    ours, theirs = one.open(run), other.open(run)
    for name in ("history", "classes"):
        pd.testing.assert_frame_equal(ours.tables[name], theirs.tables[name], check_exact=True)
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name, values in ours.arrays.items():
        np.testing.assert_array_equal(values, theirs.arrays[name], err_msg=name)
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights | theirs.weights)


def _stop_after_two_epochs(config):
    """Ctrl-C in the middle of a training."""

    def stop(done, total, text):
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_runs([config], progress=stop)


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
    assert set(frame["dataset"]) == {"digits"} and frame["K_A"].isna().all() and (frame["R"] == 1).all()
    assert {"train", "test", "steps"} == set(frame["split"])
    again = ensure_runs(configs)
    assert len(trained) == 2
    pd.testing.assert_frame_equal(frame, again)
    assert debris(default_store()) == []


def test_training_uses_one_thread_whatever_the_session_uses():
    torch.set_num_threads(2)
    try:
        with jobs.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Four runs, made here one after the other."""
    store = RunStore(tmp_path_factory.mktemp("undisturbed"))
    for config in GRID:
        jobs.train_run(config, store, "cpu")
    return store


GRID = [_config(kind, seed, epochs=4) for seed in (0, 1) for kind in ("explicit", "deq")]


def _listening():
    """Ports on which this process and its children listen."""
    own = {str(os.getpid()), *(str(child.pid) for child in multiprocessing.active_children())}
    sockets = set()
    for process in own:
        for file in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it may be closed meanwhile
                sockets.add(os.readlink(file).removeprefix("socket:[").rstrip("]"))
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in sockets]


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at the table of sockets")
def test_processes_give_the_bits_of_a_serial_run_and_open_no_port(undisturbed):
    told, ports = [], []

    def tell(*state):
        told.append(state)
        ports.extend(_listening())

    with socket.create_server(("127.0.0.1", 0)):
        assert len(_listening()) == 1, "or this test could not fail"
    ensure_runs(GRID, 2, progress=tell)
    for config in GRID:
        _same_bits(run_id(config), undisturbed, default_store())
    assert told[-1][:2] == (4, 4) and told[-1][2].startswith("4 of 4 runs") and ports == []
    assert debris(default_store()) == []
    assert multiprocessing.active_children() == []


def _slowed(config, root, device=None):
    """`attempt` of a worker whose trainings take a second an update; it says which process trains."""
    honest = training.learning_rate
    training.learning_rate = lambda *options: time.sleep(0.3) or honest(*options)
    Journal(Path(root).parent / "journal").note("begun", run_id(config))
    try:
        return jobs.attempt(config, root, device)
    finally:
        training.learning_rate = honest


def _killer(config, root, device=None):
    """The run of seed 1 kills its process each time."""
    if config.seed == 1:
        Journal(Path(root).parent / "journal").note("killer", len(multiprocessing.parent_process().name))
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return jobs.attempt(config, root, device)


def test_a_killed_process_costs_at_most_the_epoch_it_was_in(undisturbed, monkeypatch):
    monkeypatch.setattr(jobs, "attempt", _slowed)
    journal, killed, store = Journal(default_store().root.parent / "journal"), [], default_store()

    def kill(*_):
        for note in journal.notes("begun"):
            if not killed and store.checkpoint(note.value).path.exists():
                killed.append(note.value)
                os.kill(note.process, signal.SIGKILL)

    ensure_runs(GRID[:2], 2, progress=kill)
    assert killed and store.open(killed[0]).provenance["facts"]["continued_from"] != []
    for config in GRID[:2]:
        _same_bits(run_id(config), undisturbed, store)
    assert debris(store) == []


def test_a_run_that_kills_its_process_is_named_and_no_other(monkeypatch):
    monkeypatch.setattr(jobs, "attempt", _killer)
    wanted = [_config(seed=seed) for seed in range(3)]
    with pytest.raises(RunsFailed, match="its process died 3 times, often for want of memory") as caught:
        ensure_runs(wanted, 2)
    assert set(caught.value.failures) == {run_id(wanted[1])}
    assert len(Journal(default_store().root.parent / "journal").notes("killer")) == 3
    assert default_store().ids() == sorted(map(run_id, (wanted[0], wanted[2])))


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    script = f"import nclib as nc\nnc.ensure_runs([nc.RunConfig(**{_config().model_dump()})], 2)\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert "ConfigError: no process could start" in done.stderr.splitlines()[-1]
    assert 'write if __name__ == "__main__": above what trains' in done.stderr.splitlines()[-1]


def test_runs_that_were_lost_together_go_on_alone(monkeypatch):
    """Where run b is under way, all others that are so are lost with it."""

    def train_on(grid, executor, waiting, devices, at_once):
        while waiting:
            now = [waiting.popleft() for _ in range(min(at_once, len(waiting)))]
            if "b" in now:
                return now
            for run in now:
                grid._end(run, "")
        return []

    stored = []
    grid = jobs.Grid(dict.fromkeys("abc"), SimpleNamespace(has=lambda _: True), lambda *_: None, stored.append)
    monkeypatch.setattr(jobs, "pool", contextlib.nullcontext)
    monkeypatch.setattr(jobs.Grid, "_train_on", train_on)
    grid._train_in_processes(2)
    assert stored == ["c", "a"] and set(grid.failures) == {"b"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_command_takes_its_processes_along(tmp_path, number):
    import faults

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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job may ignore it
    jobs.attempt = _slowed
    ensure_runs([_config(seed=seed, epochs=50) for seed in (0, 1)], 2)


def test_a_failing_run_is_named_and_does_not_stop_the_others():
    good, greedy, wild = _config(seed=1), _config(n_max=10_000), _config(lr=1e20, clip=None, weight_decay=0.1, epochs=3)
    with pytest.raises(ConfigError, match="10000 of 138 in class 0"):
        ensure_runs([greedy, good])
    assert default_store().ids() == [], "what cannot begin is refused before anything is trained"
    with pytest.raises(RunsFailed, match=r"(?s)runs that failed: 1.*Use a lower lr") as caught:
        ensure_runs([wild, good], executor=2)
    assert set(caught.value.failures) == {run_id(wild)} and default_store().ids() == [run_id(good)]


class _Elsewhere(concurrent.futures.Executor):
    """Workers of another disk: they say that they have done it."""

    def submit(self, fn, /, *args, **options):
        future = concurrent.futures.Future()
        future.set_result("")
        return future


def test_a_run_that_a_worker_has_finished_out_of_sight_is_named():
    with pytest.raises(RunsFailed, match="not to be seen in the run store here"):
        ensure_runs([_config()], _Elsewhere())


def test_each_gpu_has_as_many_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def train_on(grid, executor, waiting, devices, workers):
        asked.extend(next(devices) for _ in range(4))
        waiting.clear()
        return []

    monkeypatch.setattr(jobs.Grid, "_train_on", train_on)
    jobs.Grid({run_id(_config()): _config()}, default_store(), None, None).train(2)
    assert asked == ["cuda:0", "cuda:1"] * 2 and jobs.place(None, None, 9) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_trains_the_same_runs_with_tls(undisturbed):
    """With the lines that docs/start.md names."""
    distributed = pytest.importorskip("distributed")
    keys = distributed.Security.temporary()
    with distributed.LocalCluster(
        2, threads_per_worker=1, security=keys, dashboard_address=None, host="127.0.0.1"
    ) as cluster, distributed.Client(cluster, security=keys) as client:  # fmt: skip
        assert cluster.scheduler_address.startswith("tls://")
        ensure_runs(GRID, client.get_executor(pure=False))
    for config in GRID:
        _same_bits(run_id(config), undisturbed, default_store())


def test_control_c_keeps_the_epochs_that_were_done(trained):
    config = _config(epochs=3)
    _stop_after_two_epochs(config)
    store = default_store()
    assert store.ids() == [] and store.partial(run_id(config)).is_dir()
    ensure_runs([config])
    record = store.open(run_id(config)).provenance
    assert record["facts"]["continued_from"] == [2]
    said = runs.runs_provenance([config])["value"]
    assert said["continued from a checkpoint"] == 1
    (earlier,) = record["facts"]["earlier_sessions"]
    assert all(earlier[name] == record[name] for name in ("commit", "cpu", "device", "versions", "threads"))
    assert provenance.processor_seconds(record) == record["cost"]["cpu_seconds"] + earlier["cost"]["cpu_seconds"]
    assert earlier["epoch"] == 2 and earlier["cost"]["cpu_seconds"] > 0


def test_of_a_damaged_checkpoint_it_is_said_that_training_starts_again():
    config = _config(epochs=3)
    _stop_after_two_epochs(config)
    checkpoint = default_store().checkpoint(run_id(config)).path
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.warns(DamageWarning, match="training starts again"):
        ensure_runs([config])
    assert load_run(config).provenance["facts"]["continued_from"] == []


@pytest.mark.parametrize("name", ["history.csv", "provenance.json", "classes.csv", "arrays.npz", "weights.pt"])
def test_a_damaged_run_is_set_aside_and_trained_again(name, trained):
    config = _config()
    before, store = ensure_runs([config]), default_store()
    (store.root / run_id(config) / name).write_text("junk")
    with pytest.warns(DamageWarning, match=run_id(config)):
        after = ensure_runs([config])
    assert trained == [run_id(config)] * 2
    pd.testing.assert_frame_equal(before, after, check_exact=True)
    (store.root / run_id(config) / name).write_text("junk")
    with pytest.raises(CorruptRun, match=rf"{name} is damaged.*nclib.ensure_runs\(\[config\]\) trains it again"):
        load_run(config).read(name)
    if name in ("history.csv", "provenance.json"):  # what a table is made of
        with pytest.warns(DamageWarning), pytest.raises(MissingRuns, match="train='missing' trains them here"):
            ensure_runs([config], train="never")
        assert finished([run_id(config)]) == []
    else:
        pd.testing.assert_frame_equal(before, ensure_runs([config], train="never"), check_exact=True)


def test_a_file_in_the_place_of_a_run_is_set_aside():
    config, store = _config(), default_store()
    store.root.mkdir(parents=True, exist_ok=True)
    (store.root / run_id(config)).write_text("x")
    with pytest.warns(DamageWarning, match="a file lay where"):
        ensure_runs([config])
    assert store.is_sound(run_id(config))


def test_one_run_under_two_names_is_refused():
    with pytest.raises(ConfigError, match="has two names"):
        nc.plan([_config(), _config().replace(model={"name": "wide"})])


def test_a_wrong_number_of_threads_is_named(monkeypatch):
    monkeypatch.setenv("NCLIB_THREADS", "many")
    with pytest.raises(ConfigError, match="NCLIB_THREADS='many'"):
        jobs.worker_environment()


def test_never_training_names_what_is_missing(trained):
    stored, missing = _config(), _config(seed=1)
    ensure_runs([stored])
    with pytest.raises(MissingRuns, match=run_id(missing)) as caught:
        ensure_runs([stored, missing], train="never")
    assert run_id(stored) not in str(caught.value) and "train='missing'" in str(caught.value)
    assert trained == [run_id(stored)]
    assert ensure_runs([stored], train="never")["run_id"].unique().tolist() == [run_id(stored)]


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
    ensure_runs(configs[:1])  # with training allowed, a reference run does not stand in for one of this machine
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
    assert all(torch.equal(value, stored.weights[name]) for name, value in model.state_dict().items())
    split = make_split(config.data, config.seed)
    loader = training.Batches(
        split.test_images, split.test_labels, batch_size=256, augment="none",
        mean=split.mean, std=split.std, device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
    (images, _), *_ = loader.in_order()
    assert model(images).features.detach().numpy() == pytest.approx(stored.arrays["test_features"], abs=1e-9)


def test_a_run_without_weights_says_so():
    runs.ensure_runs([_config()])
    (run,) = runs.export_reference([_config()], "mine")
    shutil.rmtree(default_store().root / run)
    with pytest.raises(CorruptRun, match=r"has no weights here; nclib.ensure_runs\(\[config\]\) trains it"):
        nc.load_run(run).network()


def test_no_run_is_lost_when_rows_are_grouped_by_setting():
    skewed = {"imbalance": "step", "num_majority": 3, "ratio": 3.0}, {"imbalance": "exponential", "ratio": 3.0}
    frame = runs.ensure_runs([_config().replace(data=data) for data in ({}, *skewed)])
    sizes = frame.groupby(["setting", "model"])["run_id"].nunique()
    assert sizes.to_dict() == {(s, "explicit"): 1 for s in ("balanced", "KA3-R3", "exp-R3")}


def test_metrics_of_each_epoch_reach_a_log():
    told = []
    study = _config(epochs=2)
    frame = runs.ensure_runs([study], log=lambda *facts: told.append(facts))
    assert [(run, epoch) for run, epoch, _ in told] == [(run_id(study), 1), (run_id(study), 2)]
    last = frame[frame["epoch"] == 2]
    assert told[-1][2] == {f"{s}/{m}": v for s, m, v in zip(last["split"], last["metric"], last["value"], strict=True)}
    runs.ensure_runs([study], log=lambda *facts: pytest.fail("nothing was trained"))
