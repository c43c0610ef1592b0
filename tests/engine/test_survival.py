"""Every failure that can be made to happen, made to happen: what is complete afterwards is equal to the bit."""

import random
import shutil
import time

import faults
import pytest
from faults import Journal, Kill, assert_equal, debris, train_grid

from nclib.config import RunConfig, run_id
from nclib.engine import jobs
from nclib.engine.runs import RunsFailed, ensure_runs
from nclib.engine.store import Checkpoint, RunStore, default_store

resource = pytest.importorskip("resource", reason="signals and file limits are those of POSIX systems")


def _config(kind="explicit", seed=0, epochs=3):
    images, train = {"n_max": 4, "test_per_class": 2}, {"epochs": epochs, "batch_size": 16, "lr": 0.05}
    return RunConfig(data=images, model={"kind": kind, "width": 2}, train=train, seed=seed, profile="smoke")


def _grid(epochs):
    return [_config(kind, seed, epochs) for seed in range(10) for kind in ("explicit", "deq")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Eight runs, trained here one after the other, without a fault."""
    store = RunStore(tmp_path_factory.mktemp("undisturbed") / "runs")
    for config in _grid(3)[:8]:
        jobs.train_run(config, store)
    assert len(store.ids()) == 8 and debris(store) == []
    return store


@pytest.fixture
def store():
    return default_store()


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


def _plan(configs, number, life_seconds, seed):
    """Random kills, a third of each kind; at least one run is killed while it is written out."""
    rng, kills = random.Random(seed), []
    for i in range(number):
        kind = ("event", "time", "final")[i % 3]
        n = {"event": rng.randint(1, 14), "time": rng.uniform(0, life_seconds), "final": rng.randint(1, 29)}[kind]
        kills.append((run_id(rng.choice(configs)), Kill(kind, n)))
    return sorted(kills, key=lambda planned: planned[1].kind == "final")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "over", "epochs"), [(6, 4, 3), (200, 20, 12)])
def test_random_kills_over_a_grid_of_runs(number, over, epochs, tmp_path):
    configs, began = _grid(epochs)[:over], time.monotonic()
    assert train_grid(configs, tmp_path / "undisturbed", tmp_path / "usual") == (0, set(map(run_id, configs)))
    # A life is killed after at most a part of the run, so that there is something left to kill.
    plan = _plan(configs, number, 0.5 * (time.monotonic() - began) / over, seed=1)
    delivered, sound = train_grid(configs, tmp_path / "killed", tmp_path / "journals", plan)
    reference, killed = RunStore(tmp_path / "undisturbed"), RunStore(tmp_path / "killed")
    assert delivered > number / 2 and sound == set(map(run_id, configs))
    assert killed.ids() == sorted(sound)
    for run in killed.ids():
        assert_equal(run, killed, reference)
    assert debris(killed) == debris(reference) == []


def test_two_clients_that_want_the_same_grid_train_each_run_once(reference, tmp_path, store):
    wanted = _grid(3)[:4]
    journals = tmp_path / "journal"
    clients = [faults.start(_client, wanted[::order], str(journals)) for order in (1, -1)]
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


def _client(configs, journal):
    faults.watch(Journal(journal))
    Journal(journal).note("client")
    Journal(journal).wait("client", 2)  # both begin at once
    ensure_runs(configs)


def test_a_file_that_may_not_grow_fails_the_run_and_the_next_call_goes_on(reference, store, journal):
    wanted = _config("deq", seed=1)
    run = run_id(wanted)
    child = faults.start(_file_limit, wanted, str(journal.path))
    with faults.children(child):
        child.join(60)
    assert child.exitcode == 0
    message = journal.notes("failed")[0].value
    assert run in message and "File too large" in message and "Type the same again" in message, message
    assert store.checkpoint(run).load()["epoch"] == 1
    files = {path.name for path in store.partial(run).iterdir()}
    assert files == {"checkpoint.pt"}, "nothing half-written"
    ensure_runs([wanted])
    assert_equal(run, store, reference)
    assert debris(store) == []


def _file_limit(config, journal):
    """No file may grow beyond 20 kB from the second checkpoint on."""
    honest = Checkpoint.save

    def save(own, state):
        if state["epoch"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        honest(own, state)

    Checkpoint.save = save
    faults.watch(Journal(journal))
    try:
        ensure_runs([config])
    except RunsFailed as failed:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Journal(journal).note("failed", str(failed).replace("\n", " "))


def test_what_is_left_of_a_run_that_was_finished_is_cleared_by_the_next_call(reference, store):
    """A client killed between the run's last step and the removal of its checkpoint."""
    wanted = _config(seed=0)
    shutil.copytree(reference.root / run_id(wanted), store.root / run_id(wanted))
    store.checkpoint(run_id(wanted)).save({"epoch": 2})
    ensure_runs([wanted])
    assert debris(store) == []
