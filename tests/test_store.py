"""The run store: what was written is read back to the bit, and what is damaged is never read."""

import json
import os
import pickle
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from nclib import paths, runs
from nclib.config import DataConfig, ModelConfig, RunConfig, StoredConfig, TrainConfig, run_id
from nclib.paths import sha256
from nclib.runs import ensure_runs
from nclib.store import (
    FRAME_COLUMNS,
    CorruptRun,
    DamageWarning,
    ReferenceStore,
    RunStore,
    default_store,
    stack,
    tidy,
)


class SisterConfig(StoredConfig):
    """Stands for the small trainings of the other papers."""

    kind: str = "sister"
    width: int = 3


def _table():
    values = [0.1 + 0.2, 1 / 3, float("nan"), float("inf"), 1e-300]
    return pd.DataFrame({"epoch": range(1, 6), "split": "train", "metric": "loss", "value": values})


def _save(store, config=None, **changes):
    parts = {"tables": {"history": _table()}, "arrays": {"classifier": np.eye(3, dtype=np.float32)}}
    made = runs.Result(**parts | {"weights": {"w": torch.arange(3.0)}} | changes)
    return store.save(config or RunConfig(profile="quick"), made, {"commit": None})


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def test_a_run_is_read_back_to_the_bit(store):
    run = _save(store)
    assert store.ids() == [run] and store.has(run) and store.is_sound(run)
    loaded = store.open(run)
    pd.testing.assert_frame_equal(loaded.history, _table(), check_exact=True)
    assert np.array_equal(loaded.arrays["classifier"], np.eye(3))
    assert torch.equal(store.open(run).weights["w"], torch.arange(3.0))
    assert loaded.config == RunConfig().canonical()
    assert loaded.provenance["profile"] == "quick"


def test_a_run_appears_in_one_step_or_not_at_all(store, monkeypatch):
    honest = os.replace
    folder = store.root / run_id(RunConfig())

    def interrupted(source, target):
        if Path(target) == folder:
            raise KeyboardInterrupt
        honest(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _save(store)
    assert not folder.exists() and list(store.root.iterdir()) == []


def test_frame_is_tidy(store):
    frame = stack(
        tidy(store.open(run)) for run in (_save(store), _save(store, SisterConfig(seed=4)))
    )
    assert list(frame.columns) == list(stack([]).columns) == FRAME_COLUMNS
    ours, sister = frame.iloc[0], frame.iloc[-1]
    assert ours[["dataset", "model", "setting", "R"]].tolist() == [
        "digits",
        "explicit",
        "balanced",
        1.0,
    ]
    assert sister["seed"] == 4 and pd.isna([ours["K_A"], sister["model"]]).all()


JUNK = [b"", b"[]", b"{}", b'{"config": [1]}', b"[" * 10_000, b"epoch,split\n1,train\n", bytes(64)]


def _damage(path, way, generator):
    content = path.read_bytes()
    place = generator.randrange(len(content))
    match way:
        case "flip":
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        case "cut":
            path.write_bytes(content[: max(place - 1, 0)])  # the last byte of DONE is an empty line
        case "replace":
            path.write_bytes(generator.choice(JUNK))
        case "remove":
            path.unlink()


@pytest.mark.filterwarnings("ignore::nclib.store.DamageWarning")
@pytest.mark.parametrize("way", ["flip", "cut", "replace", "remove"])
def test_a_damaged_file_is_never_read_as_a_run(store, way):
    """Whatever is done to a file: reading it names run and file, the run counts as not sound, and it
    can be stored again."""
    generator = random.Random(0)
    run = _save(store)
    other = _save(store, RunConfig(seed=1))
    names = sorted(file.name for file in (store.root / run).iterdir())
    for name in names * 3:
        _damage(store.root / run / name, way, generator)
        if name != "DONE":
            with pytest.raises(CorruptRun, match=rf"run {run}: {name} is damaged"):
                store.open(run).read(name)
        assert not store.is_sound(run)
        assert store.is_sound(other)
        assert store.ids() == [other]
        _save(store)
        assert store.is_sound(run)


def test_a_file_is_checked_when_it_is_read_and_only_then(store):
    run = _save(store)
    opened = store.find(run)
    (store.root / run / "weights.pt").write_text("junk")
    assert opened.arrays is opened.arrays and store.find(run).history.equals(_table())
    with pytest.raises(CorruptRun, match=r"weights\.pt is damaged: it is not what was written"):
        _ = opened.weights
    with pytest.warns(DamageWarning, match=r"weights\.pt"):
        assert not store.is_sound(run)
    assert store.find(run) is None and store.find("other") is None


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), PermissionError(13, "denied"), MemoryError()]
)
def test_a_file_that_cannot_be_opened_now_is_not_set_aside(store, monkeypatch, error):
    run, read = _save(store), Path.read_bytes

    def fail(path):
        if path.name == "history.csv":
            raise error
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(type(error)):
        store.find(run)
    monkeypatch.undo()
    assert store.find(run) is not None and not (store.root / "set-aside").exists()


def _relisted(store, run, name, content):
    """Somebody else's file with its right checksum."""
    folder = store.root / run
    (folder / name).write_bytes(content)
    (folder / "DONE").write_text(
        json.dumps(json.loads((folder / "DONE").read_text()) | {name: sha256(content)})
    )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "config.json",
            lambda text: text.replace(b'"lr": 0.1', b'"lr": 0.2'),
            "that of another run",
        ),
        (
            "history.csv",
            lambda text: text.replace(b"0.3333333333333333", b"much"),
            "could not convert",
        ),
        ("history.csv", lambda text: text.replace(b"metric", b"measure"), "metric"),
    ],
)
def test_what_is_not_the_run_of_its_name_is_refused_though_its_checksum_fits(
    store, name, content, says
):
    run = _save(store)
    _relisted(store, run, name, content((store.root / run / name).read_bytes()))
    with pytest.warns(DamageWarning, match=says):
        assert store.find(run) is None


class _Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def test_pickles_are_never_executed(store, tmp_path, monkeypatch):
    """Even with a fitting checksum, a pickle in place of weights, arrays or checkpoint is refused; and it is live."""
    monkeypatch.chdir(tmp_path)
    torch.save(_Evil(), tmp_path / "saved")
    plain, zipped = pickle.dumps(_Evil(), protocol=2), (tmp_path / "saved").read_bytes()
    for evil, names in ((plain, ["weights.pt", "arrays.npz"]), (zipped, ["weights.pt"])):
        for name in names:
            run = _save(store)
            _relisted(store, run, name, evil)
            with pytest.raises(CorruptRun, match=f"{name} is damaged: it cannot be read"):
                store.open(run).read(name)
            shutil.rmtree(store.root / run)
        checkpoint = store.checkpoint("some-run")
        checkpoint.path.parent.mkdir(exist_ok=True)
        checkpoint.path.write_bytes(checkpoint._header(evil) + evil)
        with pytest.warns(DamageWarning, match="cannot be read"):
            assert checkpoint.load() is None
    assert not (tmp_path / "pwned").exists()
    torch.load(tmp_path / "saved", weights_only=False)
    assert (tmp_path / "pwned").exists(), "or this test could not fail"


def test_checkpoint_round_trip_and_damage(store):
    checkpoint = store.checkpoint("some-run")
    assert checkpoint.load() is None
    checkpoint.save(
        {"epoch": 3, "history": [(1, "train", "loss", 0.5)], "model": {"w": torch.ones(2)}}
    )
    loaded, content = checkpoint.load(), checkpoint.path.read_bytes()
    assert loaded["epoch"] == 3 and torch.equal(loaded["model"]["w"], torch.ones(2))
    other = content.replace(b"some-run", b"someother", 1)
    for damaged in (
        content[:-1],
        content[:-10] + b"x" + content[-9:],
        b"",
        b"not a checkpoint",
        other,
        content[:40],
    ):
        checkpoint.path.write_bytes(damaged)
        with pytest.warns(
            DamageWarning, match="some-run: it is damaged, or of another run or version"
        ):
            assert checkpoint.load() is None
        assert not checkpoint.path.exists()


def test_a_stored_run_is_not_trained_again_where_no_lock_can_be_written(store):
    run = _save(store)
    (store.root / ".locks").write_text(
        "in the place of the folder, because root may write everywhere"
    )
    assert runs.train_run(RunConfig(), store) == run


def test_reference_results_are_small_extracts(store, tmp_path):
    labels, means = np.repeat(np.arange(10), 50), np.linspace(0.1, 1, 80).reshape(10, 8)
    arrays = {
        "train_features": np.ones((500, 8), np.float32),
        "train_labels": labels,
        "class_means": means,
    }
    runs = [store.open(_save(store, RunConfig(seed=seed), arrays=arrays)) for seed in (0, 1)]
    reference = ReferenceStore(tmp_path / "reference")
    for run in (*runs, runs[0]):  # the first again, which replaces it
        reference.add("quick", [run])
    assert reference.ids() == sorted(run.run_id for run in runs) and reference.has(runs[0].run_id)
    pd.testing.assert_frame_equal(reference.frame([runs[0].run_id]), stack([tidy(runs[0])]))
    first, second = (reference.open(run.run_id).arrays for run in runs)
    np.testing.assert_array_equal(first["class_means"], means.astype(np.float32))
    assert len(first["train_labels"]) == 400 and "train_labels" not in second
    with pytest.raises(CorruptRun, match="not among the reference"):
        reference.open("other")


def test_a_reference_run_that_is_not_what_its_name_stands_for_is_refused(store, tmp_path):
    reference = ReferenceStore(tmp_path / "reference")
    listing = reference.add("stranger", [store.open(_save(store))]) / "runs.json"
    listing.write_text(listing.read_text().replace('"width": 64', '"width": 99'))
    with pytest.raises(CorruptRun, match="has the configuration of another run"):
        reference.open(*reference.ids())


EARLIER = Path(__file__).with_name("earlier_runs.tar.xz")
"""A run and a checkpoint after one of two epochs, written at commit e954f09, before the modules moved into wings."""


def test_runs_and_checkpoints_of_an_earlier_version_are_read(isolated):
    """Nobody's run store is lost: the run is drawn without training, the checkpoint is gone on from."""
    with tarfile.open(EARLIER) as archive:
        archive.extractall(paths.runs(), filter="data")
    store = default_store()
    train = TrainConfig(epochs=2, batch_size=20, lr=0.05, log_every=1)
    images = DataConfig(n_max=6, test_per_class=3)
    done, begun = (
        RunConfig(data=images, model=ModelConfig(width=2), train=train, seed=seed)
        for seed in (0, 1)
    )
    assert store.ids() == [run_id(done)] and store.is_sound(run_id(done))
    loss = (
        ensure_runs([done], train="never")
        .query("split == 'steps' and metric == 'loss'")["value"]
        .tolist()
    )
    assert loss == [2.509383281071981, 2.3106335004170737]
    assert set(store.open(run_id(done)).arrays) >= {"train_features", "class_means", "classifier"}
    assert store.open(run_id(done)).weights["classifier.weight"].shape == (10, 16)
    assert store.checkpoint(run_id(begun)).load()["epoch"] == 1
    ensure_runs([begun])
    assert store.open(run_id(begun)).provenance["facts"]["continued_from"] == [1]
