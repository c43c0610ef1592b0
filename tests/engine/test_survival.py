"""Every failure that can be made to happen, made to happen: what is complete afterwards is equal to the bit."""

import contextlib
import ctypes
import errno
import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import faults
import pytest
import torch
from faults import Journal, Kill, assert_equal, debris, train_grid
from marks import thinned

from nclib.cli import app
from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.engine import grid, jobs
from nclib.engine.checkpoint import VERSION, Checkpoint
from nclib.engine.reading import CorruptRun
from nclib.engine.reference import ReferenceStore
from nclib.engine.runs import RunsFailed, ensure_runs
from nclib.engine.store import DamageWarning, RunStore, default_store
from nclib.system import paths
from nclib.system.files import sha256

resource = pytest.importorskip("resource", reason="signals and file limits are those of POSIX systems")


def _config(kind="explicit", seed=0, epochs=3, **train):
    return RunConfig(
        data=DataConfig(n_max=4, test_per_class=2),
        model=ModelConfig(kind=kind, width=2),
        train=TrainConfig(**{"epochs": epochs, "batch_size": 16, "lr": 0.05} | train),
        seed=seed,
        profile="smoke",
    )


def _grid(epochs):
    return [_config(kind, seed, epochs) for seed in range(10) for kind in ("explicit", "deq")]


@pytest.fixture(scope="module")
def ledger():
    yield faults.LEDGER
    faults.LEDGER.write()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Eight runs, trained here one after the other, without a fault."""
    store = RunStore(tmp_path_factory.mktemp("undisturbed") / "runs")
    for config in _grid(3)[:8]:
        jobs.train_run(config.model_dump_json(), str(store.root))
    assert len(store.ids()) == 8 and debris(store) == []
    return store


@pytest.fixture
def store():
    return default_store()


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


# --- killed ---------------------------------------------------------------------------------------------------------


def _plan(configs, number, life_seconds, seed):
    """Random kills, a third of each kind; at least one run is killed while it is written out."""
    rng, runs_ = random.Random(seed), [run_id(config) for config in configs]
    kills = []
    for i in range(number):
        run = rng.choice(runs_)
        kind = ("event", "time", "final")[i % 3]
        if kind == "final" and any(other == run and kill.kind == "final" for other, kill in kills):
            kind = "event"  # once a run: the next life has little left to do
        n = {"event": rng.randint(1, 14), "time": rng.uniform(0, life_seconds), "final": rng.randint(1, 29)}[kind]
        kills.append((run, Kill(kind, n)))
    return sorted(kills, key=lambda planned: planned[1].kind == "final")


def _survives_kills(configs, number, tmp_path, ledger, seed):
    usual = train_grid(configs, tmp_path / "undisturbed", tmp_path / "usual")
    reference = RunStore(tmp_path / "undisturbed")
    assert usual.kills == 0 and set(usual.fresh.values()) == {1} and debris(reference) == []
    # A life is killed after at most a part of the run, so that there is something left to kill.
    life_seconds = 0.5 * usual.seconds * 2 / len(configs)
    with ledger.fault(f"random kill -9, grid of {len(configs)} runs", number) as row:
        plan = _plan(configs, number, life_seconds, seed)
        outcome = train_grid(configs, tmp_path / "killed", tmp_path / "journals", plan, seed=seed)
        killed = RunStore(tmp_path / "killed")
        assert outcome.kills == number
        assert killed.ids() == sorted(run_id(config) for config in configs)
        for run in killed.ids():
            assert_equal(run, killed, reference)
            assert outcome.fresh[run] - 1 <= outcome.unsaved[run], run
        assert debris(killed) == []
        assert outcome.epochs_lost <= number
        row["epochs_lost"], row["seconds_lost"] = outcome.epochs_lost, outcome.seconds_lost
        row["note"] = f"{len(configs)} runs, each equal to the bit to the undisturbed one"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "over", "epochs"), [(6, 4, 3), (200, 20, 12)])
def test_random_kills_over_a_grid_of_runs(number, over, epochs, tmp_path, ledger):
    _survives_kills(_grid(epochs)[:over], number, tmp_path, ledger, seed=1 + (epochs == 12))


@pytest.mark.parametrize(("name", "number"), [("SIGKILL", signal.SIGKILL), ("SIGTERM", signal.SIGTERM)])
def test_a_training_process_ended_in_mid_epoch_goes_on_from_the_last_one(
    reference, tmp_path, journal, ledger, name, number
):
    wanted = _config("deq", seed=1)
    run, root = run_id(wanted), tmp_path / "runs"
    with ledger.fault(f"{name} of a training process in mid-epoch") as row:
        child = faults.start(_slow_epochs, wanted.model_dump_json(), str(root), str(journal.path), 2)
        with faults.children(child):
            begun = journal.wait("in epoch 3")
            asked = time.monotonic()
            os.kill(child.pid, number)
            child.join(10)
            assert child.exitcode == -number and time.monotonic() - asked < 10
        assert not RunStore(root).has(run)
        jobs.train_run(wanted.model_dump_json(), str(root))
        after = RunStore(root)
        assert after.load(run).provenance["facts"]["continued_from"] == [2]
        assert_equal(run, after, reference)
        assert debris(after) == []
        row["epochs_lost"], row["seconds_lost"] = 1, asked - begun.when


def _slow_epochs(config_json, root, journal, after):
    """A training that stays in the middle of an epoch for as long as it takes to end it."""
    from nclib import training

    honest, steps = training.learning_rate, {"done": 0}

    def stay(train, step, total):
        steps["done"] += 1
        if steps["done"] == 3 * after + 2:  # three updates an epoch
            Journal(journal).note(f"in epoch {after + 1}")
            time.sleep(300)
        return honest(train, step, total)

    training.learning_rate = stay
    jobs.train_run(config_json, root)


def test_sigterm_ends_the_command_within_ten_seconds_and_nothing_but_the_epoch_is_lost(
    reference, journal, ledger, store, tmp_path
):
    """What a cluster does before it kills: SIGTERM with 10 s to go."""
    wanted = _config(seed=1)
    said = tmp_path / "said"
    with ledger.fault("SIGTERM with 10 s to go", note="stops at once, exit code 143") as row:
        child = faults.start(_train_command, wanted.model_dump_json(), str(journal.path), str(said))
        with faults.children(child):
            begun = journal.wait("epoch", 3)
            asked = time.monotonic()
            os.kill(child.pid, signal.SIGTERM)
            child.join(10)
            assert child.exitcode == 143, said.read_text()
        assert "stopped by SIGTERM" in said.read_text() and "type the same again" in said.read_text()
        ensure_runs([wanted])
        assert store.load(run_id(wanted)).provenance["facts"]["continued_from"] == [2]
        assert_equal(run_id(wanted), store, reference)
        assert debris(store) == []
        row["epochs_lost"], row["seconds_lost"] = 1, asked - begun.when


def _train_command(config_json, journal, said):
    """`nclib train` on one configuration, at a second an update."""
    faults.slow_down(0.2)
    faults.watch(Journal(journal))
    file = Path(said).with_suffix(".json")
    file.write_text(config_json)
    sys.argv = ["nclib", "train", "--config", str(file)]
    with open(said, "w", buffering=1) as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        output.reconfigure = lambda **_: None
        app.main()


def test_two_clients_that_want_the_same_grid_train_each_run_once(reference, tmp_path, ledger, store):
    wanted = _grid(3)[:4]
    journals = tmp_path / "journal"
    with ledger.fault("two clients ask for the same grid at once", 2, "4 runs, each trained once"):
        texts = [config.model_dump_json() for config in wanted]
        clients = [faults.start(_client, texts[::order], str(journals)) for order in (1, -1)]
        with faults.children(*clients):
            for client in clients:
                client.join(120)
                assert client.exitcode == 0
        notes = Journal(journals).notes("fresh")
        assert len(notes) == len(wanted) and len(Journal(journals).notes("epoch")) == 3 * len(wanted)
        assert {note.process for note in notes} == {client.pid for client in clients}, "both took part"
        for config in wanted:
            assert_equal(run_id(config), store, reference)
        assert debris(store) == []


def _client(texts, journal):
    faults.watch(Journal(journal))
    Journal(journal).note("client")
    Journal(journal).wait("client", 2)  # both begin at once
    ensure_runs([RunConfig.from_json(text) for text in texts])


@pytest.mark.slow  # short forms are in test_cluster.py
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_cluster_loses_a_worker_its_client_and_its_scheduler_and_nothing_else(reference, tmp_path, ledger, store):
    """One grid through all three, on processes of a Dask cluster that are killed outright."""
    pytest.importorskip("distributed")
    wanted = [_config(kind, seed) for seed in range(4) for kind in ("explicit", "deq")]
    texts = [config.model_dump_json() for config in wanted]
    own = Journal(tmp_path / "journal")
    with contextlib.ExitStack() as stack:

        def start(work, *arguments):
            child = faults.start(work, *arguments, str(own.path))
            stack.enter_context(faults.children(child))
            return child

        def cluster(number):
            scheduler = start(_scheduler)
            address = own.wait("scheduler", number).value
            return scheduler, address, [start(_dask_worker, address) for _ in range(2)]

        def lost(row, child=None):
            """Epochs under way just now: in this worker, or in any."""
            ended = {(note.process, note.value) for note in own.notes("trained")}
            begun = [note for note in own.notes("epoch") if (note.process, note.value) not in ended]
            running = {note.process: note.when for note in begun if child is None or note.process == child.pid}
            row["epochs_lost"] = len(running)
            row["seconds_lost"] = sum(time.monotonic() - when for when in running.values())

        scheduler, address, workers = cluster(1)
        with ledger.fault("kill -9 of a Dask worker in mid-epoch") as row:
            client = start(_dask_client, address, texts)
            victim = own.wait("epoch", 3).process
            (worker,) = (child for child in workers if child.pid == victim)
            worker.kill()
            lost(row, worker)
            own.wait("checkpoint", 1 + len(own.notes("checkpoint")))  # the other one goes on
            assert client.is_alive()
        with ledger.fault("kill -9 of the client of a Dask cluster") as row:
            client.kill()
            before = len(own.notes("fresh"))
            second = start(_dask_client, address, texts)
            own.wait("fresh", before + 1)
            assert second.is_alive()
            lost(row)
            row["epochs_lost"], row["seconds_lost"] = 0, 0.0  # what a worker is at, it finishes
        with ledger.fault("kill -9 of the Dask scheduler") as row:
            scheduler.kill()
            lost(row)
            second.join(60)
            assert second.exitcode == 0
            (said,) = own.notes("lost")
            assert "no longer answers" in said.value and "type the same again" in said.value
        _, address, _ = cluster(2)
        third = start(_dask_client, address, texts)
        third.join(120)
        assert third.exitcode == 0 and len(own.notes("complete")) == 1
        for config in wanted:
            assert_equal(run_id(config), store, reference)
        again = len(own.notes("fresh")) - len(wanted)
        assert again <= 3, "at most what was killed in its first epoch: one run by the worker, two by the scheduler"
    assert debris(store) == []


def _scheduler(journal):
    import asyncio
    import logging

    import distributed

    logging.disable(logging.CRITICAL)

    async def serve():
        async with distributed.Scheduler(host="127.0.0.1", dashboard_address=":0", dashboard=False) as scheduler:
            Journal(journal).note("scheduler", scheduler.address)
            await scheduler.finished()

    asyncio.run(serve())


def _dask_worker(address, journal):
    """A worker of one thread, without a nanny: nothing starts it again."""
    import asyncio

    import distributed

    faults.slow_down(0.02)
    faults.watch(Journal(journal))

    async def serve():
        options = {"nthreads": 1, "memory_limit": 0, "local_directory": str(Path(journal).parent)}
        async with distributed.Worker(address, **options) as worker:
            await worker.finished()

    asyncio.run(serve())


def _dask_client(address, texts, journal):
    from nclib.engine import cluster

    cluster._CONNECT_SECONDS = 3
    with cluster.connect(address, insecure=True) as executor:
        while not executor.workers():
            time.sleep(0.02)
        try:
            ensure_runs([RunConfig.from_json(text) for text in texts], executor=executor)
            Journal(journal).note("complete")
        except cluster.ClusterLost as lost:
            Journal(journal).note("lost", lost)


@pytest.mark.slow  # the short form is in test_cluster.py
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_worker_that_hangs_is_started_again_and_its_run_goes_on(reference, ledger, store, monkeypatch):
    pytest.importorskip("distributed")
    from nclib.engine import cluster

    wanted, stopped = _config("deq", seed=0), []
    run = run_id(wanted)
    monkeypatch.setattr(grid, "STALL_SECONDS", 30.0)  # a new worker loads torch, for seconds
    with ledger.fault("a Dask worker that hangs in mid-epoch (SIGSTOP)") as row, cluster.local(1) as executor:
        executor.everywhere(faults.slow_down, 1.0)

        def stop(*state):
            if not stopped and 0 < store.progress(run) < 0.9:
                (process,) = executor._client.run(os.getpid).values()
                os.kill(process, signal.SIGSTOP)
                stopped.append(process)

        ensure_runs([wanted], executor=executor, progress=stop)
        assert stopped and store.load(run).provenance["facts"]["continued_from"] in ([1], [2])
        assert_equal(run, store, reference)
        assert debris(store) == []
        row["epochs_lost"], row["note"] = 1, "the worker is started again, the run goes on from its checkpoint"


# --- full disk ------------------------------------------------------------------------------------------------------


def _refused(message, run):
    """What is said when there is no room: which file, and what to do."""
    assert "checkpoint.pt" in message and f"{run}.partial" in message, message
    assert "free some space" in message and "type the same again" in message, message


def test_a_file_that_may_not_grow_fails_the_run_and_the_next_call_goes_on(reference, store, journal, ledger):
    wanted = _config("deq", seed=1)
    run = run_id(wanted)
    with ledger.fault("full disk: file size limit while a checkpoint is written") as row:
        child = faults.start(_file_limit, wanted.model_dump_json(), str(journal.path))
        with faults.children(child):
            child.join(60)
        assert child.exitcode == 0
        _refused(journal.notes("failed")[0].value, run)
        assert store.checkpoint(run).load()["epoch"] == 1
        files = {path.name for path in store.partial(run).iterdir()}
        assert files == {"checkpoint.pt", "progress.json"}, "nothing half-written"
        ensure_runs([wanted])
        assert_equal(run, store, reference)
        assert debris(store) == []
        row["epochs_lost"] = len(journal.notes("epoch")) - 1


def _file_limit(config_json, journal):
    """No file may grow beyond 20 kB from the second checkpoint on."""
    honest = Checkpoint.save

    def save(own, state):
        if state["epoch"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        honest(own, state)

    Checkpoint.save = save
    faults.watch(Journal(journal))
    try:
        ensure_runs([RunConfig.from_json(config_json)])
    except RunsFailed as failed:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Journal(journal).note("failed", str(failed).replace("\n", " "))


def test_a_disk_that_is_full_fails_the_run_and_the_next_call_goes_on(reference, tmp_path, journal, ledger):
    """A small file system in memory, mounted where only the child sees it."""
    wanted = _config("deq", seed=1)
    run, disk, kept = run_id(wanted), tmp_path / "disk", RunStore(tmp_path / "kept")
    disk.mkdir()
    with contextlib.ExitStack() as stack:
        child = faults.start(_small_disk, wanted.model_dump_json(), str(disk), str(kept.root), str(journal.path))
        stack.enter_context(faults.children(child))
        child.join(60)
        refused = journal.notes("not mounted")
        if refused:
            pytest.skip(f"no file system can be mounted here: {refused[0].value}")
        row = stack.enter_context(ledger.fault("full disk: small file system while a checkpoint is written"))
        assert child.exitcode == 0
        _refused(journal.notes("failed")[0].value, run)
        (left,) = journal.notes("left")
        assert left.value == "checkpoint.pt progress.json"
        assert_equal(run, kept, reference)
        assert debris(kept) == []
        epochs = [note.value for note in journal.notes("epoch")]
        row["epochs_lost"] = len(epochs) - len(set(epochs))
        assert row["epochs_lost"] <= 1


def _small_disk(config_json, disk, kept, journal):
    """Train on a disk of 2 MB that something else fills after the first checkpoint; make room; train on."""
    journal = Journal(journal)
    try:
        _mount(disk)
    except OSError as error:
        journal.note("not mounted", error)
        return
    config, ballast = RunConfig.from_json(config_json), Path(disk) / "ballast"
    honest = Checkpoint.save

    def save(own, state):
        if state["epoch"] == 2 and not journal.notes("full"):
            journal.note("full")
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        honest(own, state)

    Checkpoint.save = save
    faults.watch(journal)
    os.environ["NCLIB_RESULTS"] = disk
    try:
        ensure_runs([config])
    except RunsFailed as failed:
        journal.note("failed", str(failed).replace("\n", " "))
    store = default_store()
    journal.note("left", " ".join(sorted(path.name for path in store.partial(run_id(config)).iterdir())))
    ballast.unlink()
    ensure_runs([config])
    shutil.copytree(store.root, kept)


def _mount(folder):
    """A file system of 2 MB in a mount namespace of this process; as another user in a user namespace, too."""
    library = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_users, private = 0x20000, 0x10000000, 0x4000 | 0x40000
    user, group = os.getuid(), os.getgid()
    if not hasattr(library, "unshare"):
        raise OSError(errno.ENOSYS, "this system has no mount namespaces")
    if library.unshare(new_mounts if user == 0 else new_mounts | new_users):
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    for source, target, kind, flags, options in (
        (None, b"/", None, private, None),
        (b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=2m"),
    ):
        if library.mount(source, target, kind, flags, options):
            raise OSError(ctypes.get_errno(), "mount: " + os.strerror(ctypes.get_errno()))


# --- truncated, flipped, foreign ------------------------------------------------------------------------------------


class _Payload:
    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return (Path.touch, (Path(self.target),))


def _interrupted(config, store, epochs=2):
    """A run that was stopped after some epochs."""

    def stop(done, total, text):
        if done == epochs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_runs([config], progress=stop)
    return store.checkpoint(run_id(config)).path


def _headed(run, content, version=VERSION):
    return f"nclib checkpoint {version} {run} {sha256(content)}\n".encode() + content


def _flipped(content, place):
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


CHECKPOINTS = {
    "truncated": (lambda run, old, _: old[:-1], "checksum does not fit"),
    "cut to its first line": (lambda run, old, _: old[:40], "that of run|checksum|no checkpoint"),
    "empty": (lambda run, old, _: b"", "not a checkpoint of this library"),
    "one bit flipped": (lambda run, old, _: _flipped(old, len(old) // 2), "checksum does not fit"),
    "one bit of its name flipped": (lambda run, old, _: _flipped(old, 25), "that of run"),
    "something else": (lambda run, old, _: b"\x89PNG\r\n" + old, "not a checkpoint of this library"),
    "version 1, without a name": (
        lambda run, old, _: b"nclib checkpoint 1 " + old.partition(b"\n")[0][-64:] + b"\n" + old.partition(b"\n")[2],
        "written in version 1, this library reads 2",
    ),
    "version 99": (lambda run, old, _: _headed(run, old.partition(b"\n")[2], 99), "version 99, this library reads 2"),
    "of another run": (lambda run, old, _: _headed("digits-other-s0-0123456789ab", b"x"), "that of run digits-other"),
    "a pickle": (lambda run, old, payload: payload, "not a checkpoint of this library"),
    "a pickle with the right head": (
        lambda run, old, payload: _headed(run, payload), "not a file of tensors and plain values"
    ),
    "a list": (lambda run, old, _: _headed(run, _saved([1, 2])), "holds a list"),
}  # fmt: skip


def _saved(value):
    import io

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("case", thinned(CHECKPOINTS))
def test_a_checkpoint_that_is_not_this_runs_is_set_aside_and_told(case, reference, store, tmp_path, ledger):
    wanted, pwned = _config(seed=0), tmp_path / "pwned"
    damage, says = CHECKPOINTS[case]
    name = "checkpoint truncated, bit-flipped, foreign or of another version"
    with ledger.fault(name, note="set aside by name, trained again from the start") as row:
        path = _interrupted(wanted, store)
        payload = pickle.dumps(_Payload(pwned)) if case != "a pickle with the right head" else _saved(_Payload(pwned))
        path.write_bytes(damage(run_id(wanted), path.read_bytes(), payload))
        with pytest.warns(DamageWarning, match=rf"{run_id(wanted)}.*({says}).*training starts again"):
            ensure_runs([wanted])
        record = store.load(run_id(wanted)).provenance
        assert record["facts"]["continued_from"] == [] and any("starts again" in said for said in record["warnings"])
        assert_equal(run_id(wanted), store, reference)
        (aside,) = (store.root / "set-aside").iterdir()
        assert debris(store) == ["set-aside", f"set-aside/{aside.name}"] and not pwned.exists()
        row["epochs_lost"] = 2


def test_the_payload_would_have_done_it(tmp_path):
    """The pickles of these tests are live: a reader that unpickles them does what they say."""
    pickle.loads(pickle.dumps(_Payload(tmp_path / "plain")))
    path = tmp_path / "weights.pt"
    path.write_bytes(_saved(_Payload(tmp_path / "torch")))
    torch.load(path, weights_only=False)
    assert (tmp_path / "plain").exists() and (tmp_path / "torch").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file_in_place_of_a_checkpoint_does_not_stop_the_run(kind, reference, store):
    wanted = _config(seed=1)
    path = _interrupted(wanted, store)
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to nothing": lambda: path.symlink_to("nowhere")}[
        kind
    ]()
    with pytest.warns(DamageWarning, match="no plain file"):
        ensure_runs([wanted])
    assert_equal(run_id(wanted), store, reference)


def _listed(folder, **contents):
    """Files of a run, and a DONE that lists them: damage that no checksum shows."""
    done = json.loads((folder / "DONE").read_text())
    for name, content in contents.items():
        file = name.replace("_", ".")
        (folder / file).write_bytes(content)
        done[file] = sha256(content)
    (folder / "DONE").write_text(json.dumps(done))


def _other_name(folder):
    """The complete, sound run of another seed, under this name."""
    shutil.rmtree(folder)
    (other,) = (path for path in folder.parent.iterdir() if path.name not in (folder.name, ".locks"))
    shutil.copytree(other, folder)


def _schema(folder, number):
    text = json.loads((folder / "config.json").read_text())
    _listed(folder, config_json=json.dumps(text | {"schema": number}).encode())


def _edited(folder):
    text = (folder / "config.json").read_text()
    _listed(folder, config_json=text.replace('"lr": 0.05', '"lr": 0.06').encode())


SOUND_LOOKING = {
    "another run under this name": (_other_name, "config.json is that of another run"),
    "a configuration that was edited": (_edited, "config.json is that of another run"),
    "a configuration that is a list": (lambda f: _listed(f, config_json=b"[]"), "config.json is damaged"),
    "a store of an older version": (lambda f: _schema(f, 0), "written with schema 0, this library reads 1"),
    "a store of a newer version": (lambda f: _schema(f, 2), "written with schema 2, this library reads 1"),
    "a store without a version": (lambda f: _schema(f, None), "written with schema None, this library reads 1"),
    "no weights listed": (
        lambda f: (f / "DONE").write_text(
            json.dumps({k: v for k, v in json.loads((f / "DONE").read_text()).items() if k != "weights.pt"})
        ),
        "DONE is damaged .does not list weights.pt",
    ),
    "a file outside": (
        lambda f: (f / "DONE").write_text(json.dumps(json.loads((f / "DONE").read_text()) | {"../x": ""})),
        r"DONE is damaged .lists '../x'",
    ),
    "metrics that are a pipe": (
        lambda f: ((f / "history.csv").unlink(), os.mkfifo(f / "history.csv")),
        "history.csv is no plain file",
    ),
    "DONE nested without end": (lambda f: (f / "DONE").write_text("[" * 100_000), "DONE is damaged"),
}


@pytest.mark.parametrize("case", thinned(SOUND_LOOKING))
def test_a_run_that_is_not_what_its_name_says_is_refused_by_name_and_trained_again(
    case, reference, store, ledger, tmp_path
):
    wanted, other = _config(seed=0), _config(seed=1)
    run = run_id(wanted)
    for config in (wanted, other):
        shutil.copytree(reference.root / run_id(config), store.root / run_id(config))
    damage, says = SOUND_LOOKING[case]
    name = "stored run foreign, edited or of another version, its checksums fitting"
    with ledger.fault(name, note="refused by name, trained again from the start") as row:
        damage(store.root / run)
        for read in (store.load, store.weights):
            with pytest.raises(CorruptRun, match=f"{run}.*{says}"):
                read(run)
        with pytest.warns(DamageWarning, match=says):
            ensure_runs([wanted])
        assert_equal(run, store, reference)
        assert len(list((store.root / "set-aside").iterdir())) == 1
        row["epochs_lost"] = 3


def test_metrics_weights_and_arrays_of_somebody_else_are_refused_by_name(reference, store, tmp_path):
    """With a fitting checksum: nothing is executed, and the message names the file."""
    wanted, pwned = _config(seed=0), tmp_path / "pwned"
    run, evil = run_id(wanted), pickle.dumps(_Payload(pwned))
    for name, contents, read in [
        ("weights.pt", [evil, _saved(_Payload(pwned)), b""], store.weights),
        ("arrays.npz", [evil, b"\x93NUMPY", b""], store.load),
        ("history.csv", [b"", b"a,b\n1,2\n", b"\xff\xfe", b'"'], store.load),
        ("provenance.json", [b"[]", b"{", b"\xff"], store.load),
    ]:
        for content in contents:
            shutil.copytree(reference.root / run, store.root / run)
            _listed(store.root / run, **{name.replace(".", "_"): content})
            with pytest.raises(CorruptRun, match=f"{run}: {name}"):
                read(run)
            shutil.rmtree(store.root / run)
    assert not pwned.exists()


@pytest.mark.parametrize("file", ["runs.json", "history.csv.xz", "history.csv", "arrays"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe"])
def test_damaged_reference_results_are_refused_with_where_to_get_them(file, damage, reference, tmp_path):
    run = reference.ids()[0]
    tracked = ReferenceStore(tmp_path / "reference")
    folder = tracked.add("quick", [reference.load(run)])
    if file == "history.csv":  # as collections were once written
        (folder / "history.csv.xz").unlink()
    (folder / "arrays" / f"{run}.npz" if file == "arrays" else folder / file).write_bytes(damage)
    with pytest.raises(CorruptRun, match=r"git checkout -- reference/quick"):
        tracked.load(run)


def test_what_is_left_of_a_run_that_was_finished_is_cleared_by_the_next_call(reference, store):
    """A client killed between the run's last step and the removal of its checkpoint."""
    wanted = _config(seed=0)
    shutil.copytree(reference.root / run_id(wanted), store.root / run_id(wanted))
    store.note_progress(run_id(wanted), 2, 3)
    ensure_runs([wanted])
    assert debris(store) == []


def test_a_state_of_another_network_is_refused_by_name(store):
    """A checkpoint of this run, but by a version of the library that built the network differently."""
    wanted = _config(seed=0)
    _interrupted(wanted, store)
    checkpoint = store.checkpoint(run_id(wanted))
    state = checkpoint.load()
    for change in ({"model": {}}, {"optimiser": {"state": {}}}, {"history": 3}, {"epoch": None}):
        checkpoint.save(state | change)
        with pytest.raises(RunsFailed, match=r"checkpoint.*another version.*nclib runs remove"):
            ensure_runs([wanted])
    assert store.ids() == []


# --- clocks and numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-366 * 86400.0, 366 * 86400.0], ids=["a year back", "a year on"])
def test_a_clock_that_jumps_changes_nothing_but_the_date(jump, reference, store, ledger, monkeypatch):
    from nclib import training

    wanted, honest, told = _config("deq", seed=1), time.time, []
    monkeypatch.setattr(time, "time", lambda: honest() + jump * (len(told) % 2 + 1))
    with ledger.fault("the clock jumps by a year, forward or back, at each epoch", 3):
        ensure_runs([wanted], progress=lambda *state: told.append(state))
        assert [done for done, _, _ in told] == [1, 2, 3]
        assert_equal(run_id(wanted), store, reference)
        stored = store.load(run_id(wanted))
        assert 0 < stored.provenance["cost"]["wall_seconds"] < 60
        cost = stored.tables["cost"][["train_seconds", "evaluate_seconds"]]
        assert ((cost > 0) & (cost < 60)).all(axis=None)
        with store.lock(run_id(wanted), timeout=5):
            pass
    assert training.time is time


def test_a_run_that_produces_nan_fails_by_name_with_what_to_change_and_no_other_does(reference, store, ledger):
    wild, tame = _config(lr=1e20, clip=None, weight_decay=0.1), _config(seed=0)
    with ledger.fault("a run that produces NaN", note="told each time; the others finish") as row:
        messages = []
        for _ in range(2):
            with pytest.raises(RunsFailed) as caught:
                ensure_runs([wild, tame])
            assert set(caught.value.failures) == {run_id(wild)}
            messages.append(caught.value.failures[run_id(wild)])
        assert messages[0] == messages[1] and "lower lr" in messages[0].lower() and "1e+20" in messages[0]
        assert store.ids() == [run_id(tame)]
        assert_equal(run_id(tame), store, reference)
        row["survived"] = 1


# --- notebooks ------------------------------------------------------------------------------------------------------

NOTEBOOK = """
import os, pathlib, signal
import pandas as pd
from nclib.publish.artefacts import save_table
save_table(pd.DataFrame({"x": [1.0]}), "neural_collapse/fig1", f"profile {profile}", [], profile)
if pathlib.Path("trap").exists():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow  # the short form is in tests/reproduce/test_execute.py
def test_a_kernel_killed_in_the_middle_of_a_notebook_is_told_and_the_next_call_succeeds(tmp_path, monkeypatch, ledger):
    folder = tmp_path / "project" / "notebooks" / "neural_collapse"
    folder.mkdir(parents=True)
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path / "project"))
    cells = [('profile: str = "smoke"  # the size\n', ["parameters"]), (NOTEBOOK, [])]
    content = {
        "cells": [
            {"cell_type": "code", "id": f"cell-{n}", "metadata": {"tags": tags}, "source": text, "outputs": [],
             "execution_count": None}
            for n, (text, tags) in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }  # fmt: skip
    (folder / "fig1.ipynb").write_text(json.dumps(content))
    trap, results, said = folder / "trap", paths.results("smoke"), tmp_path / "said"
    earlier = results / "notebooks" / "neural_collapse" / "fig1.ipynb"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("of an earlier call")

    def call():
        child = faults.start(_reproduce_command, str(said))
        with faults.children(child):
            child.join(180)
        return child.exitcode

    def published():
        return sorted(path.name for path in (results / "notebooks").rglob("*.*"))

    with ledger.fault("kill -9 of a notebook kernel in the middle of papermill"):
        trap.touch()
        assert call() == 1
        assert "failed: neural_collapse/fig1: DeadKernelError" in said.read_text()
        assert set(published()) <= {"fig1.failed.ipynb", "fig1.ipynb"}
        assert earlier.read_text() == "of an earlier call"
        trap.unlink()
        assert call() == 0
        assert published() == ["fig1.ipynb", "fig1.json"]
        summary = json.loads((results / "summary.json").read_text())
        assert summary["ok"] and summary["notebooks"][0]["status"] == "executed"
        assert json.loads(earlier.read_text())["cells"]
        assert not list(results.rglob("*.tmp"))


def _reproduce_command(said):
    from nclib.engine import experiments

    experiments.known = lambda: {}
    sys.argv = ["nclib", "reproduce", "--profile", "smoke", "--workers", "1", "--no-report"]
    with open(said, "w", buffering=1) as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        output.reconfigure = lambda **_: None
        app.main()
