"""Runs on a Dask cluster: the same bits, whatever dies or hangs, and nobody else's code."""

import concurrent.futures
import contextlib
import importlib.util
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import distributed
import filelock
import numpy as np
import psutil
import pytest
import yaml
from marks import slow
from PIL import Image
from typer.testing import CliRunner

from nclib import data
from nclib.cli import app
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.engine import cluster, costs, executors, experiments, jobs, runs
from nclib.engine import grid as grid_module
from nclib.engine.store import CorruptRun, RunStore, default_store
from nclib.reproduce import drawing
from nclib.system import paths, provenance

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def no_reference(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "reference", lambda: tmp_path / "reference")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Where the workers of `executor` have their own results and data, which are not the client's."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def executor(own):
    places = {"NCLIB_RESULTS": str(own / "results"), "NCLIB_DATA": str(own / "data")}
    with cluster.local([cluster.Slot(places)] * 2) as workers:
        yield workers


FEW = DataConfig(n_max=10, test_per_class=5)


def _config(kind="explicit", seed=0, epochs=2, images=FEW):
    train = TrainConfig(epochs=epochs, batch_size=20, lr=0.05, log_every=max(1, epochs // 4))
    return RunConfig(data=images, model=ModelConfig(kind=kind, width=2), train=train, seed=seed, profile="smoke")


GRID = [_config(kind, seed) for seed in (0, 1) for kind in ("explicit", "deq")]


def _content(store, config):
    """All that a run is, without what it cost."""
    files = store.verify(run_id(config))
    return {name: content for name, content in files.items() if name not in ("provenance.json", "cost.csv")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The runs of `GRID` and a longer one, made here, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(tmp_path_factory.mktemp("undisturbed")))
        assert runs.train_missing([*GRID, LONG]).failures == {}
        yield default_store()


LONG = _config(seed=5, epochs=10)


def _wait(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


def _same(undisturbed, configs):
    for config in configs:
        assert _content(default_store(), config) == _content(undisturbed, config), run_id(config)


# --- the same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 1, 4])
def test_the_same_grid_gives_the_same_bits_on_any_number_of_workers(workers, executor, undisturbed):
    told, stored = [], []
    if workers == 2:
        trained = runs.train_missing(GRID, executor, lambda *state: told.append(state), stored=stored.append)
        assert sorted(stored) == sorted(map(run_id, GRID))
    else:
        with cluster.local(workers) as others:
            assert len(others.workers()) == workers
            trained = runs.train_missing(GRID, others, lambda *state: told.append(state))
    assert trained.failures == {}
    _same(undisturbed, GRID)
    assert told[-1][:2] == (8, 8) and told[-1][2].startswith("4 of 4 runs, 0 s left")
    assert trained.forecast.as_dict()["workers"] == workers
    assert [path.name for path in default_store().root.iterdir() if path.name.startswith(".client")] == []


def test_where_there_is_no_shared_folder_the_runs_come_back_through_the_scheduler(
    executor, own, undisturbed, monkeypatch
):
    nothing = lambda store, token: contextlib.nullcontext()  # noqa: E731
    monkeypatch.setattr(RunStore, "marked", nothing)  # then no worker sees that this folder is the client's
    told = []
    trained = runs.train_missing([*GRID, LONG], executor, lambda *state: told.append(state))
    assert trained.failures == {}
    _same(undisturbed, [*GRID, LONG])
    there = RunStore(own / "results" / "runs")
    assert set(there.ids()) == {run_id(config) for config in [*GRID, LONG]}
    assert any(8 < done < 18 for done, *_ in told)  # progress is told over the same way
    assert not [path for path in default_store().root.glob("*.partial")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda files: files | {"history.csv": files["history.csv"] + b"1"}, "history.csv is not what was written"),
        (lambda files: files | {"../escaped.txt": b"x"}, "not a file of a run"),
        (lambda files: files | {"..": b"x"}, "not a file of a run"),
        (lambda files: files | {"a\0b": b"x"}, "not a file of a run"),
        (lambda files: files | {5: b"x"}, "not a file of a run"),
        (lambda files: files | {"history.csv": None}, "history.csv came as NoneType"),
        (lambda files: files | {"more.csv": b"x"}, "more.csv, which its DONE does not list"),
        (lambda files: [1], "came as list"),
        (lambda files: 5, "came as int"),
        (lambda files: {name: content for name, content in files.items() if name != "DONE"}, "not in the store"),
        (lambda files: {name: content for name, content in files.items() if name != "weights.pt"}, "weights.pt"),
    ],
)
def test_what_comes_back_is_verified_before_it_is_a_run(undisturbed, change, says):
    run, store = run_id(GRID[0]), default_store()
    with pytest.raises(CorruptRun, match=says):
        store.install(run, change(undisturbed.pack(run)))
    assert not store.has(run) and not [path for path in store.root.glob("**/*") if path.is_file()]
    with pytest.raises(CorruptRun, match="another run"):
        store.install(run_id(GRID[1]), undisturbed.pack(run))
    assert store.ids() == []
    cut_off, begun = (store.root / f".arriving/{run}-{number}" for number in ("0123", "4567"))
    for folder in (cut_off, begun):  # as a kill in the middle leaves it
        (folder / run).mkdir(parents=True)
    os.utime(cut_off, (time.time() - 3600,) * 2)
    store.install(run, undisturbed.pack(run))
    assert store.is_sound(run) and begun.exists() and not cut_off.exists()


def test_a_run_that_came_back_twice_is_taken_in_once(undisturbed):
    run, store = run_id(GRID[0]), default_store()
    files = undisturbed.pack(run)
    for _ in range(2):
        store.install(run, files)
    assert store.is_sound(run) and store.ids() == [run]
    (store.root / run / "history.csv").write_text("damaged")
    with pytest.warns(Warning, match="history.csv"):
        store.install(run, files)
    assert store.is_sound(run)
    assert not list((store.root / ".arriving").iterdir())


def test_a_worker_of_other_code_with_the_same_version_refuses_the_run():
    other = provenance.code()[:-2] + "x)"
    with pytest.raises(cluster.ClusterError, match="install the same version there"):
        jobs.worker_entry(GRID[0].model_dump_json(), str(default_store().root), ".client-x", other)
    assert not default_store().has(run_id(GRID[0]))


def test_a_worker_of_another_version_refuses_the_run():
    with pytest.raises(cluster.ClusterError, match=r"has nclib .*, the client 0\.0\.0: install the same version there"):
        jobs.worker_entry(GRID[0].model_dump_json(), str(default_store().root), ".client-x", "0.0.0")
    assert not default_store().has(run_id(GRID[0]))


def test_a_run_that_another_process_is_training_is_not_taken_for_stuck():
    class Workers(cluster.ClusterExecutor):
        def __init__(self):
            self.restarted = []

        def workers(self):
            return ["a"]

        def restart(self, worker):
            self.restarted.append(worker)
            return True

    run, store, workers = run_id(GRID[0]), default_store(), Workers()
    grid = grid_module.Grid({run: GRID[0]}, store, costs.Forecast({run: GRID[0]}, ()), lambda *_: None, None, workers)
    grid._patience = lambda run: -1.0  # any silence is too long
    grid.on_heartbeat({"run": run, "worker": "a", "done": 0, "total": 0, "shared": True})  # it waits for the run's lock
    for epoch in (1, 2):
        store.note_progress(run, epoch, 4)  # somebody else gets on
        grid._restart_stuck(1.0)
        assert workers.restarted == [] and not grid.failures
    grid._restart_stuck(1.0)
    assert workers.restarted == ["a"]


def test_the_patience_with_a_run_follows_the_epochs_it_has_told(monkeypatch):
    run, now = run_id(GRID[0]), 0.0
    forecast = costs.Forecast({run: GRID[0]}, ())
    grid = grid_module.Grid({run: GRID[0]}, default_store(), forecast, lambda *_: None, None, None)
    monkeypatch.setattr(grid.forecast, "seconds", lambda run: 1e6)  # the first guess of a machine nothing is known of
    monkeypatch.setattr(runs.time, "monotonic", lambda: now)
    # before its first epoch a process loads torch; later 20 × the seconds since the epoch before
    for done, seconds, patience in ((0, 0, 1e7), (1, 500, 1e7), (2, 100, 2000), (3, 120, 2400), (4, 5, 600)):
        now += seconds
        grid.on_heartbeat({"run": run, "worker": "a", "done": done, "total": 4, "shared": True})
        assert grid._patience(run) == pytest.approx(patience)


# --- a limited time -----------------------------------------------------------------------------------------------


def test_when_the_time_is_over_the_end_of_the_list_is_left_with_its_checkpoint(undisturbed, monkeypatch):
    real, late, told = time.monotonic, 0.0, []
    monkeypatch.setattr(runs.time, "monotonic", lambda: real() + late)

    def tell(done, total, text):
        nonlocal late
        told.append(text)
        late = 4000.0 if done >= 8 + 3 else 0.0

    trained = runs.train_missing([LONG, *GRID], progress=tell, minutes=60)  # by seed: LONG has the last one
    assert (trained.failures, trained.unfinished) == ({}, [run_id(LONG)])
    assert default_store().progress(run_id(LONG)) == 3 / 10
    assert "stopping in 60" in told[0]
    trained = runs.train_missing([LONG, *GRID], minutes=60)
    assert (trained.failures, trained.unfinished) == ({}, [])
    _same(undisturbed, [*GRID, LONG])


def test_the_last_epoch_is_stored_though_the_time_is_over():
    assert runs.train_missing([_config(epochs=1)], minutes=1e-9).unfinished == []


@pytest.mark.slow
def test_when_the_time_is_over_workers_drop_what_they_have_in_hand(executor, monkeypatch):
    endless, waiting = [_config(seed=seed, epochs=100_000) for seed in (6, 7)], _config(seed=8)
    heard = grid_module.Grid.on_heartbeat

    def hear(grid, message):
        heard(grid, message)
        if sum(told.done >= 1 for told in grid.heartbeats.values()) == 2:
            grid.until = 0.0

    monkeypatch.setattr(grid_module.Grid, "on_heartbeat", hear)
    trained = runs.train_missing([waiting, *endless], executor, minutes=60)
    left = [run_id(config) for config in [*endless, waiting]]
    assert (trained.failures, trained.unfinished) == ({}, left)
    store = default_store()
    assert [0 < store.progress(run) < 1 for run in left] == [True, True, False]
    _wait(lambda: not any(store.busy(run) for run in left))
    _wait(lambda: len(executor.workers()) == 2)


@pytest.mark.slow
def test_on_another_executor_what_has_begun_is_finished_when_the_time_is_over():
    begun, waiting = _config(epochs=4), [_config(seed=seed) for seed in (1, 2, 3, 4, 5, 6)]
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        trained = runs.train_missing([begun, *waiting], executor, minutes=1e-9)
    assert trained.failures == {} and default_store().has(run_id(begun))
    assert run_id(waiting[-1]) in trained.unfinished and run_id(begun) not in trained.unfinished


def test_an_address_of_another_machine_is_refused():
    refused = pytest.raises(cluster.ClusterError, match=r"nothing here can listen at 192\.0\.2\.1")
    with refused, cluster.local(1, "192.0.2.1"):
        pytest.fail("it started")


# --- what dies ----------------------------------------------------------------------------------------------------


def _warm_up(folder):
    """The first training of a process loads torch and the images, which takes seconds and tells nothing."""
    jobs.train_run(GRID[0].model_dump_json(), f"{folder}-{os.getpid()}")


def _training(executor, config, meanwhile):
    """Train a run and, once its first epochs are done, do something to the process that trains it."""
    store, run, busy = default_store(), run_id(config), {}
    executor.everywhere(_warm_up, str(paths.results() / "warm"))

    def listen(message):
        busy[message["worker"]] = message["done"]

    with concurrent.futures.ThreadPoolExecutor(1) as thread, pytest.MonkeyPatch.context() as patch:
        heard = grid_module.Grid.on_heartbeat
        patch.setattr(grid_module.Grid, "on_heartbeat", lambda grid, message: (listen(message), heard(grid, message)))
        training = thread.submit(runs.train_missing, [config], executor)
        _wait(lambda: store.progress(run) >= 3 / 10)
        processes = executor._client.run(os.getpid)  # unlike a task, it does not wait for the training
        meanwhile(processes[next(reversed(busy))])
        return training.result(timeout=120)


def test_a_killed_worker_is_replaced_and_its_run_goes_on(executor, undisturbed):
    trained = _training(executor, LONG, lambda process: os.kill(process, signal.SIGKILL))
    assert trained.failures == {}
    _same(undisturbed, [LONG])
    epochs = default_store().load(run_id(LONG)).provenance["cost"]["wall_seconds"]
    assert epochs > 0
    _wait(lambda: len(executor.workers()) == 2)


def test_a_hanging_worker_is_restarted_and_its_run_goes_on(executor, undisturbed, monkeypatch):
    monkeypatch.setattr(grid_module, "STALL_SECONDS", 8.0)
    trained = _training(executor, LONG, lambda process: os.kill(process, signal.SIGSTOP))
    assert trained.failures == {}
    _same(undisturbed, [LONG])


PAUSED = """
import os, sys
import dask
from nclib.engine import cluster, grid, kinds, runs

if __name__ == "__main__":
    warm, long = [kinds.read_config(text) for text in sys.argv[1:]]
    restarted = []
    with dask.config.set({"distributed.scheduler.worker-ttl": "5s"}), cluster.local(1) as executor:
        runs.train_missing([warm], executor)
        before = executor.everywhere(os.getpid)
        grid.STALL_SECONDS = 5.0
        executor.restart = restarted.append
        failures = runs.train_missing([long], executor).failures
        print(failures, restarted, executor.everywhere(os.getpid) == before)
"""


@pytest.mark.slow
def test_a_pause_of_everything_is_not_taken_for_hanging_workers(tmp_path, undisturbed):
    (tmp_path / "client.py").write_text(PAUSED)
    texts = [config.model_dump_json() for config in (GRID[0], LONG)]
    words = [sys.executable, str(tmp_path / "client.py"), *texts]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    _wait(lambda: default_store().progress(run_id(LONG)) >= 2 / 10)
    os.killpg(client.pid, signal.SIGSTOP)
    time.sleep(12)
    os.killpg(client.pid, signal.SIGCONT)
    said, _ = client.communicate(timeout=120)
    assert said == "{} [] True\n"
    _same(undisturbed, [LONG])


@pytest.mark.slow
def test_a_run_that_hangs_again_and_again_is_named(executor, monkeypatch):
    monkeypatch.setattr(grid_module, "STALL_SECONDS", 8.0)
    monkeypatch.setattr(grid_module, "ATTEMPTS", 1)
    trained = _training(executor, LONG, lambda process: os.kill(process, signal.SIGSTOP))
    assert re.search(r"stuck 1 times, no progress for 8 s, at last on tls://127", trained.failures[run_id(LONG)])
    assert runs.train_missing(GRID[:1], executor).failures == {}  # and the cluster is still good for others


def test_a_run_that_kills_its_workers_is_named_with_how_many(monkeypatch):
    monkeypatch.setattr(cluster, "DEATHS", 0)
    with cluster.local(1) as executor:
        error = executor.submit(os._exit, 1).exception(timeout=60)
    assert "each of the 1 worker processes that tried it died" in cluster.explain(error)


def test_an_error_is_named_and_not_repeated(executor):
    greedy = _config(images=DataConfig(n_max=10_000))
    trained = runs.train_missing([greedy, GRID[0]], executor)
    assert list(trained.failures) == [run_id(greedy)] and "10000 training images" in trained.failures[run_id(greedy)]
    assert default_store().has(run_id(GRID[0]))


def test_a_worker_without_the_images_is_named(executor, tmp_path):
    for split in ("train", "test"):
        for name, grey in (("dark", 10), ("light", 200)):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.fromarray(np.full((8, 8), grey + number, np.uint8)).save(folder / f"{number}.png")
    name = data.resolve_dataset(f"folder:{tmp_path / 'pictures'}")
    config = _config(images=DataConfig(dataset=name, n_max=4))
    failures = runs.train_missing([config], executor).failures
    assert re.search(rf"data set {name} is not on worker tls://127\S+: .*NCLIB_DATA", failures[run_id(config)])


@pytest.mark.parametrize("number", [1, *slow(2)])
def test_a_killed_client_takes_its_workers_along(number, tmp_path):
    script = f"""
import os, time
from nclib.engine import cluster
if __name__ == "__main__":
    with cluster.local({number}) as executor:
        print(*executor.everywhere(os.getpid).values(), flush=True)
        time.sleep(300)
"""
    file = tmp_path / "client.py"
    file.write_text(script)
    client = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True)
    workers = [int(word) for word in client.stdout.readline().split()]
    assert len(workers) == number
    client.kill()
    client.wait()
    client.stdout.close()
    _wait(lambda: not any(_alive(worker) for worker in workers), 30)


def _alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def remote(request, tmp_path, own):
    """A scheduler and one worker, or as many as asked for, started as the book says; yields the scheduler's process and
    file."""
    started = []
    environment = os.environ | {"NCLIB_RESULTS": str(own / "remote"), "NCLIB_DATA": str(own / "data")}

    def start(*words):
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        started.append(subprocess.Popen([sys.executable, "-m", "dask", *words], env=environment, **options))

    key = str(cluster.make_key(tmp_path / "cluster"))
    file = tmp_path / "cluster" / "scheduler.json"
    at = ["--scheduler-file", str(file), "--tls-ca-file", key, "--tls-cert", key, "--tls-key", key]
    start("scheduler", *at, "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    for _ in range(getattr(request, "param", 1)):
        start("worker", *at, "--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard",
              "--resources", "gpu_memory=3")  # fmt: skip
    try:
        yield started[0], str(file)
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_scheduler_that_dies_is_said_with_what_is_stored(remote, monkeypatch):
    scheduler, file = remote
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 5)
    _wait(lambda: Path(file).exists() and Path(file).read_text())
    with cluster.connect(file) as executor:
        _wait(executor.workers)
        assert executor.check() == []
        assert executor.room(2.0) == {} and executor.room(3.0) == {}
        with pytest.raises(cluster.ClusterError, match=r"4\.0 GiB of GPU memory and the largest worker has 3\.0"):
            executor.room(4.0)
        assert runs.train_missing(GRID[:1], executor).failures == {}
        with monkeypatch.context() as patched:
            patched.setattr(provenance, "code", lambda: "0.0.1")
            with pytest.raises(cluster.ClusterError, match=r"is 0.0.1: install the same version"):
                executor.check()
        with pytest.raises(cluster.ClusterLost, match=r"no longer answers.*1 of 2 runs are stored by now"):
            _training_until_lost(executor, scheduler)


def _training_until_lost(executor, scheduler):
    wanted = {run_id(config): config for config in (GRID[0], _config(seed=6, epochs=1000))}

    def tell(done, total, text):
        if scheduler.poll() is None and done > 3:
            scheduler.kill()

    grid_module.Grid(
        wanted,
        default_store(),
        costs.Forecast(wanted),
        tell,
        None,
        executor,
    ).train()


# --- what is asked for --------------------------------------------------------------------------------------------


INTRUDER = """
import asyncio, os, ssl, sys
from distributed.comm import connect
from distributed.security import Security

own = Security.temporary()
anonymous, stranger = ssl._create_unverified_context(), own.get_connection_args("client")["ssl_context"]
stranger.verify_mode = ssl.CERT_NONE  # whoever breaks in does not ask for proof himself
ways = [("tcp", None), ("tls", anonymous), ("tls", stranger)]

async def ask(protocol, context, port):
    comm = await connect(f"{protocol}://127.0.0.1:{port}", timeout=5, ssl_context=context)
    await comm.write({"op": "identity", "reply": True})
    print("uid", os.getuid(), "is let in:", await comm.read())

async def main():
    asked = [asyncio.wait_for(ask(*way, port), 20) for port in sys.argv[1:] for way in ways]
    return await asyncio.gather(*asked, return_exceptions=True)

if os.getuid() == 0:  # after a first attempt, which imports all there is: the other account may not be able to read it
    asyncio.run(main())
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
print("uid", os.getuid(), [type(each).__name__ for each in asyncio.run(main())])
"""


def _ports():
    """Those that this process and its children listen on."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    sockets = [socket for socket in psutil.net_connections("tcp") if socket.pid in ours]
    return {socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN}


def test_other_accounts_of_the_machine_are_refused_at_every_port(tmp_path):
    """By the scheduler, the nanny and the worker. As root, asked by another uid; else by a process without the key."""
    before = _ports()
    with cluster.local(1) as executor:
        ports = _ports() - before
        named = {int(at.rpartition(":")[2]) for at in (executor._address, *executor.workers())}
        assert {ip for ip, _ in ports} == {"127.0.0.1"} and named < {port for _, port in ports}
        words = [sys.executable, "-c", INTRUDER, *(str(port) for _, port in ports)]
        tried = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=120)
        assert tried.stdout.startswith(f"uid {os.getuid() or 12345} "), tried.stderr
        assert "is let in" not in tried.stdout and tried.stdout.count("CommClosedError") == 3 * len(ports)
        assert len(ports) == 3  # scheduler, nanny and worker, and no web server
        assert "no other account of this machine has its key" in executor.reach()
        (place,) = executor.everywhere(_scratch).values()
        assert place.stat().st_mode & 0o777 == 0o700 and place.name != "dask-scratch-space"
    assert not place.exists()


def _scratch():
    """The folder that Dask makes its own in."""
    return Path(distributed.get_worker().local_directory).parents[1]


@pytest.mark.slow
def test_a_worker_of_another_machine_joins_by_the_command_that_is_said():
    with cluster.local(1, "127.0.0.2") as executor:
        said = executor.reach()
        key = Path(re.search(r"whoever can read (\S+): you alone", said)[1])
        assert key.is_relative_to(paths.results())
        assert [path.stat().st_mode & 0o777 for path in (key, key.parent)] == [0o600, 0o700]
        command = shlex.split(said[said.index("dask worker") :])
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        joined = subprocess.Popen([sys.executable, "-m", *command], **options)
        try:
            _wait(lambda: len(executor.workers()) == 2)
            assert executor.check() == [] and set(executor.everywhere(os.getuid).values()) == {os.getuid()}
        finally:
            os.killpg(joined.pid, signal.SIGKILL)
            joined.wait()
    assert not key.parent.exists()


def test_without_tls_everybody_is_let_in_and_it_is_said():
    with cluster.local(1, "127.0.0.2", insecure=True) as executor:
        assert executor._address.startswith("tcp://127.0.0.2:")
        assert "other accounts of its machine included, can run what they like as you" in executor.reach()
        with pytest.raises(cluster.ClusterError, match="--insecure"), cluster.connect(executor._address):
            pytest.fail("it connected")
        with cluster.connect(executor._address, insecure=True) as other:
            assert other.everywhere(os.getuid) == executor.everywhere(os.getuid)


@pytest.mark.parametrize("remote", [0], indirect=True)
def test_a_client_without_the_key_is_refused(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 3)
    file = Path(remote[1])
    _wait(lambda: file.exists() and file.read_text())
    address = json.loads(file.read_text())["address"]
    file.with_name(cluster.KEY_FILE).rename(tmp_path / "elsewhere.pem")
    for asked in (address, str(file)):
        with pytest.raises(cluster.ClusterError, match=r"wants a key: .*key\.pem beside it"), cluster.connect(asked):
            pytest.fail("it connected")
    cluster.make_key(file.parent)
    with pytest.raises(cluster.ClusterError, match="no scheduler answers"), cluster.connect(str(file)):
        pytest.fail("it connected")
    key, words = str(tmp_path / "elsewhere.pem"), ("ca-file", "client.cert", "client.key")
    settings = {f"distributed.comm.tls.{word}": key for word in words}
    with dask.config.set(settings), cluster.connect(address) as executor:
        assert executor.reach() == f"the scheduler at {address} lets in who has its key"


def test_workers_start_with_one_thread_and_the_client_keeps_its_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("NCLIB_THREADS", "3")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with cluster.local([cluster.Slot({"CUDA_VISIBLE_DEVICES": "5"}, {"gpu_memory": 2.0})]) as executor:
        (seen,) = executor.everywhere(_environment).values()
        assert executor.room(1.5) == {} and executor.room(2.0) == {}
    assert seen == ["3", "PASSIVE", "5", str(2**32), False]
    assert os.environ["OMP_NUM_THREADS"] == "7" and "OMP_WAIT_POLICY" not in os.environ


def _environment():
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES", "MALLOC_TRIM_THRESHOLD_")
    return [*(os.environ.get(name) for name in names), dask.config.get("distributed.worker.profile.enabled")]


@pytest.mark.parametrize(
    ("workers", "cores", "gpus", "need", "on"),
    [
        (None, 4, [], 1.0, [None] * 4),
        (3, 1, [], 1.0, [None] * 3),
        (None, 8, [("0", 80.0)], 30.0, ["0"] * 2),  # two fit
        (None, 8, [("0", 80.0)], 1.0, ["0"] * cluster.PER_GPU),
        (None, 2, [("0", 80.0)], 1.0, ["0"] * 2),  # a core each
        (6, 2, [("0", 80.0)], 1.0, ["0"] * 6),  # asked for, and they fit
        (6, 2, [("0", 80.0)], 30.0, ["0"] * 2),  # asked for, but they do not
        (None, 2, [("0", 80.0)], 100.0, ["0"]),  # tried all the same; the run is named if it fails
        (None, 1, [("0", 80.0), ("1", 80.0)], 30.0, ["0", "1"]),  # no GPU without a worker
        (None, 16, [("0", 80.0), ("1", 24.0)], 20.0, ["0", "1", "0", "0", "0"]),
        (3, 16, [("2", 80.0), ("5", 80.0)], 20.0, ["2", "5", "2"]),
    ],
)
def test_as_many_workers_share_a_gpu_as_fit(workers, cores, gpus, need, on):
    slots = cluster.slots(workers, cores, gpus, need)
    assert [slot.environment.get("CUDA_VISIBLE_DEVICES") for slot in slots] == on
    for name, memory in gpus:
        shares = [s.resources["gpu_memory"] for s in slots if s.environment["CUDA_VISIBLE_DEVICES"] == name]
        assert sum(shares) == pytest.approx(max(memory, need), abs=0.1)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A project of one notebook that needs two runs."""
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path))
    folder = tmp_path / "notebooks" / "neural_collapse"
    folder.mkdir(parents=True)
    content = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "fig2.ipynb").write_text(json.dumps(content))
    monkeypatch.setattr(experiments, "known", lambda: {"neural_collapse/fig2": lambda profile: GRID[:2]})
    monkeypatch.setattr(drawing.Drawing, "look", lambda *_: None)
    monkeypatch.setattr(drawing.Drawing, "finish", lambda *_: [])
    return tmp_path


def _reproduce(*words):
    return CliRunner().invoke(app.app, ["reproduce", "fig2", "--profile", "smoke", "--no-report", *words])


@pytest.mark.slow
def test_the_command_trains_on_workers_and_keeps_how_long_it_took(notebook, undisturbed):
    result = _reproduce("--workers", "2")
    assert result.exit_code == 0, result.output
    assert "training on 2 workers of this machine; the scheduler at tls://127.0.0.1:" in result.output
    assert re.search(r"trained 2 runs in \d+ s", result.output)
    _same(undisturbed, GRID[:2])
    summary = json.loads((paths.results("smoke") / "summary.json").read_text())
    assert summary["training"]["runs"] == 2 and summary["training"]["seconds"] > 0


@pytest.mark.slow
def test_the_command_trains_on_a_running_cluster(notebook, remote, undisturbed):
    _wait(lambda: Path(remote[1]).exists() and Path(remote[1]).read_text())
    result = _reproduce("--scheduler", remote[1])
    assert result.exit_code == 0, result.output
    assert f"training on the cluster at {remote[1]}" in result.output
    _same(undisturbed, GRID[:2])


def test_a_few_seconds_of_work_start_no_cluster(notebook, monkeypatch):
    monkeypatch.setattr(cluster, "local", None)
    result = _reproduce()
    assert result.exit_code == 0 and "workers of this machine" not in result.output
    assert set(default_store().ids()) == {run_id(config) for config in GRID[:2]}


def test_without_dask_one_run_follows_the_other_and_more_are_refused_with_what_to_type(notebook, monkeypatch):
    monkeypatch.setattr(cluster, "installed", lambda: False)
    monkeypatch.setattr(executors, "_WORTH_A_CLUSTER", 0.0)
    monkeypatch.setattr(executors, "_cores", lambda: 2)
    for words in (["--workers", "2"], ["--scheduler", "tls://127.0.0.1:1"]):
        result = _reproduce(*words)
        assert result.exit_code == 2 and 'pip install ".[cluster]"' in result.output
    assert default_store().ids() == []
    result, more = _reproduce(), 'for more at once, in the clone, type: pip install ".[cluster]"'
    assert result.exit_code == 0 and more in result.output
    assert len(default_store().ids()) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--scheduler", "missing.json"], "there is no scheduler file missing.json"),
        (["--scheduler", "tcp://127.0.0.1:9", "--insecure"], "no scheduler answers at tcp://127.0.0.1:9"),
        (["--scheduler", "tcp://127.0.0.1:9"], "asks nobody who they are: start it with TLS"),
        (["--scheduler", "tls://127.0.0.1:9"], "wants a key"),
        (["--insecure"], "--scheduler or --host"),
        (["--scheduler", "tcp://127.0.0.1:9", "--workers", "2"], "leave out --workers"),
    ],
)
def test_a_cluster_that_is_not_there_stops_before_training(notebook, monkeypatch, words, says):
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 1)
    result = _reproduce(*words)
    assert result.exit_code == 2 and says in result.output and default_store().ids() == []


# --- recipes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(monkeypatch):
    spec = importlib.util.spec_from_file_location("slurm", RECIPES / "slurm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with dask.config.set({}):
        yield module


def test_without_sbatch_the_slurm_recipe_says_so_in_a_sentence(slurm, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["slurm.py", "--interface", "lo", "reproduce"])
    monkeypatch.setenv("PATH", "")
    assert slurm.main() == 2
    assert capsys.readouterr().err == "slurm.py: no sbatch here; type this on the login node of a SLURM cluster\n"


def test_the_slurm_recipe_asks_for_one_worker_and_one_gpu_a_job(slurm, tmp_path):
    words = (
        "--interface lo --partition gpu --jobs 8 --time 04:00:00 --memory 40GB --gpu reproduce table1 --profile paper"
    )
    asked = slurm.options(words.split())
    assert asked.command == ["reproduce", "table1", "--profile", "paper"]
    with slurm.cluster(asked, tmp_path) as workers:
        script, address = workers.job_script(), workers.scheduler_address
        with cluster.connect(str(tmp_path / "scheduler.json")) as client:  # as the command that it starts
            assert client._address == address and address.startswith("tls://")
    lines = script.splitlines()
    assert {"#SBATCH -p gpu", "#SBATCH -t 04:00:00", "#SBATCH --gpus=1", "#SBATCH -n 1"} <= set(lines)
    assert "#SBATCH --mem=38G" in lines  # 40 GB in GiB
    start = next(line for line in lines if "dask_worker" in line)
    assert start.startswith(sys.executable) and address in start
    key = tmp_path / cluster.KEY_FILE
    assert all(f"--tls-{file} {key}" in start for file in ("ca-file", "cert", "key"))
    assert "--nthreads 1" in start and "--nworkers" not in start and start.index("--memory-limit 0 ") > 0
    assert lines.index("export " + " ".join(slurm.ENVIRONMENT)) < lines.index(start)


def _flags(command):
    return {flag for parameter in command.params for flag in [*parameter.opts, *parameter.secondary_opts]}


def test_the_kubernetes_recipe_is_whole_and_names_options_that_exist():
    from distributed.cli import dask_scheduler, dask_worker
    from typer.main import get_command

    documents = list(yaml.safe_load_all((RECIPES / "kubernetes.yml").read_text()))
    kinds = [document["kind"] for document in documents]
    assert sorted(kinds) == sorted(
        ["PersistentVolumeClaim", "Service", "NetworkPolicy", "Deployment", "Deployment", "Job"]
    )
    by_name = {document["metadata"]["name"]: document for document in documents}
    known = {
        "nclib-scheduler": _flags(dask_scheduler.main),
        "nclib-worker": _flags(dask_worker.main),
        "nclib-reproduce": _flags(get_command(app.app).commands["reproduce"]),
    }
    by_name["nclib-scheduler"] = next(
        d for d in documents if d["metadata"]["name"] == "nclib-scheduler" and "template" in d["spec"]
    )
    for name, flags in known.items():
        template = by_name[name]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        used = {word for word in container["args"] if word.startswith("--")}
        assert not any("tcp://" in word for word in container["args"]) and "--insecure" not in used, name
        settings = [each["value"] for each in container.get("env", []) if "__TLS__" in each["name"]]
        files = [container["args"][at + 1] for at, word in enumerate(container["args"]) if word.startswith("--tls-")]
        assert settings + files == [f"/key/{cluster.KEY_FILE}"] * 3, name
        assert {"name": "key", "mountPath": "/key", "readOnly": True} in container["volumeMounts"], name
        assert {"name": "key", "secret": {"secretName": "nclib-key"}} in template["spec"]["volumes"], name
        assert used <= flags, name
        assert template["metadata"]["labels"]["app"] == "nclib"
    volumes = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in by_name["nclib-worker"]["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert volumes == {"nclib"}
    policy = by_name["nclib"] if by_name["nclib"]["kind"] == "NetworkPolicy" else None
    assert policy is not None and policy["spec"]["policyTypes"] == ["Ingress"]


def test_keys_of_killed_commands_are_removed_and_no_others(isolated):
    results = isolated / "results"
    long_ago = time.time() - 3600
    for name in (".key-left", ".key-held", ".key-new", ".key-mine"):
        (results / name).mkdir(parents=True)
        (results / name / ("thesis.tex" if name == ".key-mine" else cluster.KEY_FILE)).touch()
        if name != ".key-new":
            os.utime(results / name, (long_ago, long_ago))
    with filelock.FileLock(results / ".key-held/held"):
        os.utime(results / ".key-held", (long_ago, long_ago))
        cluster.clear_keys()
    assert sorted(path.name for path in results.iterdir()) == [".key-held", ".key-mine", ".key-new"]
