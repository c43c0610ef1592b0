"""A run that logged more often serves a request that asks for less: what is taken is what a training leaves."""

import errno

import pytest
from marks import slow

from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.engine.denser import denser, take
from nclib.engine.jobs import train_run
from nclib.engine.partial import drawable
from nclib.engine.reference import load_run
from nclib.engine.runs import MissingRuns, ensure_runs, finished_runs, plan, runs_provenance, train_missing
from nclib.engine.store import DamageWarning, RunStore, default_store


def _config(log_every, kind="explicit", epochs=13, seed=0, lr=0.05, **train):
    return RunConfig(
        data=DataConfig(dataset="digits", n_max=3, test_per_class=2, num_majority=5, ratio=3.0, imbalance="step"),
        model=ModelConfig(kind=kind, width=2),
        train=TrainConfig(epochs=epochs, batch_size=8, lr=lr, log_every=log_every, **train),
        seed=seed,
    )


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    return default_store()


def _files(root, config):
    return RunStore(root).verify(train_run(config.model_dump_json(), str(root)))


@pytest.mark.parametrize(
    ("kind", "often", "seldom", "nc_on_test"),
    [("explicit", 1, 4, True), ("deq", 2, 4, False), *slow(("deq", 1, 5, True), ("explicit", 5, 20, False))],
)
def test_what_is_taken_is_what_a_training_leaves(kind, often, seldom, nc_on_test, tmp_path):
    """The last: with ``log_every`` above the number of epochs only the first and the last are asked for."""
    asked = _config(seldom, kind, nc_on_test=nc_on_test)
    trained = _files(tmp_path / "alone", asked)
    dense = _config(often, kind, nc_on_test=nc_on_test)
    source = _files(tmp_path / "both", dense)
    taken = _files(tmp_path / "both", asked)
    for name in ("config.json", "history.csv", "classes.csv"):
        assert taken[name] == trained[name] != source[name], name
    assert taken["cost.csv"] == source["cost.csv"]  # what was spent
    both = RunStore(tmp_path / "both")
    assert both.load(run_id(asked)).provenance["facts"]["taken_from"] == run_id(dense)
    alone, weights = RunStore(tmp_path / "alone"), both.weights(run_id(asked))
    for name, value in alone.weights(run_id(asked)).items():
        assert value.equal(weights[name]), name
    arrays = both.load(run_id(asked)).arrays
    for name, value in alone.load(run_id(asked)).arrays.items():
        assert value.tobytes() == arrays[name].tobytes(), name
    assert both.ids() == sorted([run_id(asked), run_id(dense)])  # ids stay as they are


def test_another_run_serves_nothing(store):
    """Epochs that it has not, more of them, and any other option that differs."""
    train_run(_config(2).model_dump_json(), str(store.root))
    other = ({"seed": 1}, {"epochs": 12}, {"kind": "deq"}, {"lr": 0.1})
    for asked in (_config(3), _config(1), *(_config(4, **options) for options in other)):
        assert denser(asked, store) is None and not take(asked, store)
        assert list(plan([asked])["state"]) == ["missing"]
        with pytest.raises(MissingRuns):
            ensure_runs([asked], train="never")


def test_nothing_is_trained_where_a_denser_run_is_stored(store, monkeypatch):
    """Every way to ask: a plan, the table, training, what may be drawn; a plan changes nothing."""
    ensure_runs([_config(1), _config(1, "deq")])

    monkeypatch.setattr("nclib.training.train", refused(AssertionError("trained")))
    pair = [_config(5), _config(5, "deq")]
    assert set(plan(pair)["state"]) == {"stored"} and len(store.ids()) == 2
    assert drawable(pair) == pair and len(store.ids()) == 4
    frame = ensure_runs([_config(4)], train="never")
    assert set(frame[(frame["split"] == "train")]["epoch"]) == {1, 4, 8, 12, 13}
    assert set(frame["run_id"]) == {run_id(_config(4))}
    assert not train_missing([_config(2), _config(6)]).failures
    assert {run_id(_config(n)) for n in (1, 2, 4, 5, 6)} < set(store.ids())
    assert len(finished_runs(store)) == 2  # what was taken took no time of its own


def test_a_run_that_is_being_trained_is_left_to_that(store, monkeypatch):
    train_run(_config(1).model_dump_json(), str(store.root))
    monkeypatch.setattr("nclib.engine.denser._PATIENCE", 0.01)
    with store.lock(run_id(_config(4))):
        assert not take(_config(4), store)
        assert ensure_runs([_config(2)], train="never")["run_id"].nunique() == 1
    source = run_id(_config(1))
    assert take(_config(4), store) == source and take(_config(4), store) is None
    assert take(_config(8), store) == source and load_run(_config(8)).provenance["facts"]["taken_from"] == source


def test_a_store_that_may_only_be_read_serves_nothing_and_says_nothing(store, monkeypatch):
    train_run(_config(1).model_dump_json(), str(store.root))
    monkeypatch.setattr(RunStore, "install", refused(OSError(errno.EROFS, "read-only", "x")))
    assert take(_config(4), store) is None
    with pytest.raises(MissingRuns):
        ensure_runs([_config(4)], train="never")
    monkeypatch.setattr(RunStore, "install", refused(OSError(errno.ENOSPC, "no room", "x")))
    with pytest.raises(OSError, match="no room"):
        take(_config(4), store)


def refused(error):
    def act(*args, **named):
        raise error

    return act


def test_what_is_damaged_is_taken_again(store):
    train_run(_config(1).model_dump_json(), str(store.root))
    asked = _config(4)
    take(asked, store)
    for again in (
        lambda: ensure_runs([asked], train="never"),
        lambda: train_run(asked.model_dump_json(), str(store.root)),
    ):
        (store.root / run_id(asked) / "history.csv").write_bytes(b"")
        with pytest.warns(DamageWarning, match="history.csv is not what was written"):
            again()
        assert load_run(asked).provenance["facts"]["taken_from"] == run_id(_config(1))
    both, one = (runs_provenance(runs).loc["processor seconds"] for runs in ([_config(1), asked], [_config(1)]))
    assert both.equals(one)


def test_code_of_ones_own_is_trained_again(store, monkeypatch):
    own = _config(4).replace(model=ModelConfig(kind="deq", width=2, cell="package.module:Cell", source="1" * 16))
    assert denser(_config(2**63), store) is None  # at once
    monkeypatch.setattr(RunStore, "has", lambda store, run: True)
    assert denser(_config(4), store) and denser(own, store) is None


def test_a_damaged_one_serves_nothing_and_is_set_aside(store):
    run = train_run(_config(1).model_dump_json(), str(store.root))
    (store.root / run / "weights.pt").write_bytes(b"")
    with pytest.warns(DamageWarning, match="weights.pt is not what was written"):
        assert not take(_config(4), store)
    assert store.ids() == []


def test_another_sound_one_is_taken_where_the_first_is_damaged(store):
    run, other = (train_run(_config(n).model_dump_json(), str(store.root)) for n in (2, 4))
    (store.root / run / "weights.pt").write_bytes(b"")
    with pytest.warns(DamageWarning, match="weights.pt is not what was written"):
        assert take(_config(8), store) == other


def test_the_command_says_that_there_is_nothing_to_train(store):
    from typer.testing import CliRunner

    from nclib.cli import app as commands

    words = ["train", "--profile", "smoke", "--epochs", "4", "--dataset", "digits"]
    assert CliRunner().invoke(commands.app, [*words, "-s", "train.log_every=1"]).exit_code == 0
    source = store.ids()[0]
    said = CliRunner().invoke(commands.app, [*words, "-s", "train.log_every=2"])
    assert said.exit_code == 0 and f"nothing to train: {source} was evaluated at every epoch asked for" in said.output
