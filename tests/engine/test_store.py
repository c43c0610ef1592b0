"""The run store: what was written is read back to the bit, and what is damaged is never read."""

import concurrent.futures
import io
import json
import lzma
import multiprocessing
import os
import pickle
import tarfile
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from nclib.config import (
    SCHEMA_VERSION,
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    StoredConfig,
    TrainConfig,
    digest,
    run_id,
)
from nclib.engine import store as store_module
from nclib.engine.reading import FRAME_COLUMNS, CorruptRun, read_csv
from nclib.engine.reference import ReferenceStore
from nclib.engine.runs import ensure_runs
from nclib.engine.store import DamageWarning, RunStore, default_store
from nclib.system import paths
from nclib.system.files import sha256


class SisterConfig(StoredConfig):
    """Stands for the small trainings of the other papers."""

    kind: str = "sister"
    width: int = 3


def _table():
    values = [0.1 + 0.2, 1 / 3, float("nan"), float("inf"), 1e-300]
    return pd.DataFrame({"epoch": range(1, 6), "split": "train", "metric": "loss", "value": values})


def _save(store, config=None, **changes):
    parts = {
        "tables": {"history": _table()},
        "arrays": {"classifier": np.eye(3, dtype=np.float32)},
        "weights": {"w": torch.arange(3.0)},
        "provenance": {"commit": None},
    }
    return store.save(config or RunConfig(profile="quick"), **parts | changes)


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def test_a_run_is_read_back_to_the_bit(store):
    run = _save(store)
    assert store.ids() == [run] and store.has(run) and store.is_sound(run)
    loaded = store.load(run)
    pd.testing.assert_frame_equal(loaded.history, _table(), check_exact=True)
    assert np.array_equal(loaded.arrays["classifier"], np.eye(3))
    assert torch.equal(store.weights(run)["w"], torch.arange(3.0))
    assert loaded.config == RunConfig().canonical()
    assert loaded.provenance["profile"] == "quick"


def test_any_configuration_with_a_kind_can_be_stored(store):
    run = _save(store, SisterConfig(seed=4))
    frame = store.frame([run], columns=["width"])
    assert frame["width"].unique().tolist() == [3] and frame["seed"].unique().tolist() == [4]
    assert frame["model"].isna().all()


def test_frame_is_tidy(store):
    run = _save(store)
    frame = store.frame([run], columns=["train.lr", "model.width"])
    assert list(frame.columns) == [*FRAME_COLUMNS, "train.lr", "model.width"]
    first = frame.iloc[0]
    assert (first["dataset"], first["model"], first["R"], first["seed"], first["train.lr"]) == (
        "digits",
        "explicit",
        1.0,
        0,
        0.1,
    )
    assert pd.isna(first["K_A"])
    assert list(store.frame([]).columns) == FRAME_COLUMNS


@pytest.mark.parametrize("name", ["config.json", "history.csv", "arrays.npz", "weights.pt", "provenance.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_detected_named_and_set_aside(store, name, damage):
    run = _save(store)
    path = store.root / run / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(CorruptRun, match=name.replace(".", r"\.")):
        store.load(run)
    with pytest.warns(DamageWarning, match=name.replace(".", r"\.")):
        assert not store.is_sound(run)
    assert not store.has(run) and store.ids() == []
    assert len(list((store.root / "set-aside").iterdir())) == 1
    _save(store)
    assert store.is_sound(run)


def test_a_store_whose_locks_cannot_be_written_is_read_and_checked(store):
    run = _save(store)
    (store.root / ".locks").write_text("in the place of the folder, because root may write everywhere")
    assert not store.busy(run) and dict(store.check()) == {run: ""}


@pytest.mark.parametrize("left", ["file", "dangling link", "folder"])
def test_what_lies_where_a_run_is_written_is_replaced(store, left):
    writing = store.root / f"{_save(RunStore(store.root / 'other'))}.writing"
    if left == "file":
        writing.write_text("junk")
    elif left == "dangling link":
        writing.symlink_to(store.root / "nowhere")
    else:
        writing.mkdir()
        (writing / "history.csv").write_text("junk")
    assert store.is_sound(_save(store)) and not os.path.lexists(writing)


def _junk(path):
    path.write_text("junk")


def _nested(path):
    path.write_text("[" * 100_000 + "]" * 100_000)


def _other_shape(path):
    path.write_text('{"config": [1]}')


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _dangling(path):
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def _absent(path):
    path.unlink()


DAMAGES = [_junk, _nested, _other_shape, _pipe, _dangling, _absent]


@pytest.mark.parametrize("name", ["config.json", "provenance.json", "DONE"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_that_nobody_asked_for_is_named_and_left_out(store, name, damage):
    run, other = _save(store), _save(store, RunConfig(seed=1))
    damage(store.root / run / name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [found for found, *_ in store.records()] == [other]
    if store.has(run):
        assert run in str(said[0].message) and "left out" in str(said[0].message)
    assert {found: bool(reason) for found, reason in store.check()} == {run: True, other: False}
    assert store.ids() == [other] and len(list((store.root / "set-aside").iterdir())) == 1
    assert dict(store.check()) == {other: ""}


@pytest.mark.parametrize("seconds", ["Infinity", "-Infinity", "NaN", "1" + 400 * "0", "null", '"soon"', "-1"])
def test_a_record_without_a_finite_time_is_set_aside_by_check(store, seconds):
    run = _save(store, provenance={"cost": {"wall_seconds": 1.5}})
    folder = store.root / run
    written = (folder / "provenance.json").read_text().replace("1.5", seconds)
    (folder / "provenance.json").write_text(written)
    sums = json.loads((folder / "DONE").read_text())
    sums["provenance.json"] = store_module.sha256(written.encode())
    (folder / "DONE").write_text(json.dumps(sums))
    assert "how long it took" in dict(store.check())[run]


def test_check_leaves_alone_what_is_under_way_and_what_is_no_run(store):
    run = _save(store)
    (store.root / run / "history.csv").write_text("")
    store.note_progress("other", 1, 2)
    (store.root / "notes.txt").touch()
    with store.lock(run):
        assert dict(store.check()) == {}
    assert "history.csv" in dict(store.check())[run]
    assert (store.root / "notes.txt").exists() and store.partial("other").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_done_file_is_no_run(store, content):
    run = _save(store)
    (store.root / run / "DONE").write_bytes(content)
    with pytest.warns(DamageWarning):
        assert not store.is_sound(run)


def test_set_aside_never_overwrites(store):
    run = _save(store)
    for expected in range(3):
        (store.root / run / "history.csv").write_text("x")
        with pytest.warns(DamageWarning):
            assert not store.is_sound(run)
        assert len(list((store.root / "set-aside").iterdir())) == expected + 1
        _save(store)


def test_another_schema_is_refused_by_name(store, monkeypatch):
    run = _save(store)
    monkeypatch.setattr(store_module, "SCHEMA_VERSION", 2)
    with pytest.raises(CorruptRun, match="schema 1, this library reads 2"):
        store.load(run)


def test_absent_run_is_named(store):
    with pytest.raises(CorruptRun, match="nothing-s0-abc"):
        store.load("nothing-s0-abc")


class _Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def test_pickles_are_never_executed(store, tmp_path, monkeypatch):
    """Even with a fitting checksum, a pickle in place of weights, arrays or checkpoint is refused."""
    monkeypatch.chdir(tmp_path)
    run = _save(store)
    for name in ("weights.pt", "arrays.npz"):
        evil = pickle.dumps(_Evil(), protocol=2)
        (store.root / run / name).write_bytes(evil)
        done = store.root / run / "DONE"
        sums = json.loads(done.read_text())
        done.write_text(json.dumps(sums | {name: store_module.sha256(evil)}))
        with pytest.raises(CorruptRun, match=name.replace(".", r"\.")):
            store.weights(run) if name == "weights.pt" else store.load(run)
    assert not (tmp_path / "pwned").exists()


def test_checkpoint_round_trip_and_damage(store):
    checkpoint = store.checkpoint("some-run")
    assert checkpoint.load() is None
    state = {"epoch": 3, "history": [(1, "train", "loss", 0.5)], "model": {"w": torch.ones(2)}}
    checkpoint.save(state)
    loaded = checkpoint.load()
    assert loaded["epoch"] == 3 and torch.equal(loaded["model"]["w"], torch.ones(2))
    content = bytearray(checkpoint.path.read_bytes())
    content[-10] ^= 1
    checkpoint.path.write_bytes(content)
    with pytest.warns(DamageWarning, match="checksum"):
        assert checkpoint.load() is None
    assert not checkpoint.path.exists()
    for foreign in (b"", b"not a checkpoint", b"nclib checkpoint 1 \n"):
        checkpoint.path.write_bytes(foreign)
        with pytest.warns(DamageWarning):
            assert checkpoint.load() is None


def test_what_a_kill_left_of_a_write_is_cleared_but_not_beside_a_training(store):
    checkpoint = store.checkpoint("some-run")
    checkpoint.save({"epoch": 3})
    left = checkpoint.path.with_name(".checkpoint.pt.0123abcd.tmp")
    left.touch()
    with store.lock("some-run"):
        store.clear_cut_off(["some-run", "another"])
    assert left.exists()
    store.clear_cut_off(["some-run", "another"])
    assert not left.exists() and checkpoint.load() == {"epoch": 3}
    assert not store.partial("another").exists()


def test_a_full_disk_leaves_no_run_and_no_debris(store, monkeypatch):
    written = []
    real = store_module.write_atomic

    def failing(path, content):
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        return real(path, content)

    monkeypatch.setattr(store_module, "write_atomic", failing)
    with pytest.raises(OSError, match="No space"):
        _save(store)
    assert store.ids() == [] and list(store.root.iterdir()) == []
    monkeypatch.undo()
    assert store.is_sound(_save(store))


def test_progress_of_a_run_under_way(store):
    run = run_id(RunConfig())
    assert store.progress(run) == 0
    store.note_progress(run, 3, 4)
    assert store.progress(run) == 0.75 and not store.has(run)
    _save(store)
    assert store.progress(run) == 1 and not store.partial(run).exists()


def test_remove(store):
    run = _save(store)
    store.remove(run)
    assert not store.has(run)


@pytest.mark.parametrize("part", ["run", "partial"])
def test_what_the_system_does_not_let_be_removed_is_told_and_kept(store, monkeypatch, part):
    run = _save(store)
    store.note_progress(run, 1, 2)
    unlink, kept = os.unlink, {"run": ("DONE", "history.csv"), "partial": ("progress.json",)}[part]

    def refuse(path, **options):
        if os.path.basename(os.fspath(path)) in kept:
            raise PermissionError(13, "Permission denied", os.fspath(path))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError):
        store.remove(run)
    monkeypatch.undo()
    assert store.has(run) is (part == "run")
    if part == "run":
        assert store.is_sound(run)


def test_a_checkpoint_that_cannot_be_removed_is_told_and_the_run_is_there(store, monkeypatch):
    run = _save(store)
    store.note_progress(run, 1, 2)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store_module.shutil, "rmtree", refuse)
    with pytest.warns(DamageWarning, match="cannot be removed"):
        assert store.is_sound(run)


def test_a_run_that_is_a_link_is_refused_by_name(store, tmp_path):
    run = _save(store)
    (store.root / run).rename(tmp_path / "moved")
    (store.root / run).symlink_to(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"is a symbolic link; remove .*moved"):
        store.remove(run)
    assert store.is_sound(run)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_checkpoint_folder_that_is_a_link_goes_with_the_checkpoint_alone(store, tmp_path, dangling):
    elsewhere = tmp_path / "elsewhere"
    if not dangling:
        elsewhere.mkdir()
        (elsewhere / "thesis.tex").touch()
    run = run_id(RunConfig())
    store.root.mkdir()
    store.partial(run).symlink_to(elsewhere)
    if not dangling:
        store.note_progress(run, 1, 2)
    _save(store)
    assert not os.path.lexists(store.partial(run))
    assert dangling or [file.name for file in elsewhere.iterdir()] == ["thesis.tex"]


def test_a_run_in_training_is_not_removed(store):
    run = _save(store)
    with RunStore(store.root).lock(run), pytest.raises(ConfigError, match="is being trained"):
        assert store.busy(run)
        store.remove(run)
    assert store.has(run) and not store.busy(run)


def _hold(root, run, seconds):
    with RunStore(root).lock(run):
        time.sleep(seconds)


def test_two_processes_take_turns(store):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_hold, args=(store.root, "r", 0.5))
    process.start()
    deadline = time.monotonic() + 5
    while not (store.root / ".locks" / "r.lock").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    started = time.monotonic()
    with store.lock("r"):
        waited = time.monotonic() - started
    process.join()
    assert waited > 0.2


def test_reference_results_are_small_extracts(store, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 100)
    features = rng.normal(size=(300, 8)).astype(np.float32)
    arrays = {
        "train_features": features,
        "train_labels": labels,
        "counts": np.array([100] * 3),
        "minority": np.zeros(3, bool),
        "class_means": np.stack([features[labels == k].mean(0) for k in range(3)]),
        "classifier": np.eye(3, 8),
    }
    run = _save(store, arrays=arrays)
    reference = ReferenceStore(tmp_path / "reference")
    assert not reference.has(run)
    reference.add("quick", [store.load(run)])
    reference.add("quick", [store.load(run)])
    assert reference.ids() == [run] and reference.has(run)
    kept = reference.load(run)
    pd.testing.assert_frame_equal(
        reference.frame([run]).drop(columns="profile"), store.frame([run]).drop(columns="profile")
    )
    np.testing.assert_array_equal(kept.arrays["class_means"], arrays["class_means"])
    assert kept.arrays["train_features"].dtype == np.float16 and len(kept.arrays["train_labels"]) == 300
    with pytest.raises(CorruptRun, match="not among the reference"):
        reference.load("other")


@pytest.mark.parametrize("collection", ["../escaped", "/tmp/escaped", "..", "", ".hidden", "a/b", "a\\b", "-x", "a\nb"])
def test_a_collection_is_a_plain_folder_name(store, tmp_path, collection):
    run = store.load(_save(store))
    root = tmp_path / "project" / "reference"
    with pytest.raises(ConfigError, match="cannot name a folder"):
        ReferenceStore(root).add(collection, [run])
    assert not root.parent.exists() and not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("name", ["arrays.npz", "weights.pt"])
def test_what_would_be_unpacked_into_far_more_memory_is_refused_before_it_is(store, monkeypatch, name):
    run = _save(store)
    path = store.root / run / name
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as whole:
        members = {member: whole.read(member) for member in whole.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for member, content in members.items():
            bomb.writestr(member, content)
        bomb.writestr("archive/data/9" if name == "weights.pt" else "x.npy", bytes(2**27))
    sums = json.loads((store.root / run / "DONE").read_text())
    (store.root / run / "DONE").write_text(json.dumps(sums | {name: store_module.sha256(path.read_bytes())}))
    for reader in ("np", "torch"):
        monkeypatch.setattr(getattr(store_module, reader), "load", None)  # is not called
    with pytest.raises(CorruptRun, match=f"{name}.*unpacked it would take 134 MB"):
        store.load(run) if name == "arrays.npz" else store.weights(run)


def test_arrays_that_compress_well_are_read(store, tmp_path):
    run = _save(store, arrays={"classifier": np.zeros((3000, 2000))})
    reference = ReferenceStore(tmp_path / "reference")
    reference.add("quick", [store.load(run)])
    assert not reference.load(run).arrays["classifier"].any()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_reference_run_keeps_what_figures_draw_and_thins_the_rest(store, tmp_path, seed):
    """Of seed 0 means and classifier are in single precision; features are 400 where they are drawn, else 100."""
    labels = np.repeat(np.arange(10), 50)
    means = np.linspace(0.1, 1, 80).reshape(10, 8)
    arrays = {"train_features": np.ones((500, 8), np.float32), "train_labels": labels, "class_means": means}
    arrays |= {"classifier": 1e6 * np.eye(10, 8), "counts": np.full(10, 50)}
    run = store.load(_save(store, RunConfig(seed=seed), arrays=arrays))
    kept = {}
    for collection, drawn in {"all": None, "drawn": [run.run_id], "other": []}.items():
        reference = ReferenceStore(tmp_path / collection)
        reference.add(collection, [run], drawn=drawn)
        kept[collection] = reference.load(run.run_id).arrays
        assert np.array_equal(kept[collection]["classifier"], arrays["classifier"].astype(np.float32)), "no overflow"
        assert kept[collection]["class_means"].dtype == (np.float16 if seed else np.float32)
        np.testing.assert_allclose(kept[collection]["class_means"], means, rtol=1e-3 if seed else 1e-7)
    sizes = {name: len(found.get("train_labels", ())) for name, found in kept.items()}
    assert sizes == ({"all": 0, "drawn": 0, "other": 0} if seed else {"all": 400, "drawn": 400, "other": 100})


def test_a_reference_run_keeps_no_features_where_each_class_would_have_one(store, tmp_path):
    arrays = {"train_features": np.ones((600, 8), np.float32), "train_labels": np.repeat(np.arange(60), 10)}
    run = store.load(_save(store, arrays=arrays))
    for collection, drawn, labels in (("drawn", [run.run_id], 360), ("other", [], 0)):
        reference = ReferenceStore(tmp_path / collection)
        reference.add(collection, [run], drawn=drawn)
        assert len(reference.load(run.run_id).arrays.get("train_labels", ())) == labels


def test_reference_tables_are_packed_the_same_each_time_and_read_as_they_once_were(store, tmp_path):
    run = store.load(_save(store))
    folders = [ReferenceStore(tmp_path / name).add("small", [run]) for name in ("one", "other")]
    one, other = ([(path.name, path.read_bytes()) for path in sorted(f.rglob("*.*"))] for f in folders)
    assert one == other and not (folders[0] / "history.csv").exists()
    (folders[0] / "history.csv").write_bytes(lzma.decompress((folders[0] / "history.csv.xz").read_bytes()))
    (folders[0] / "history.csv.xz").unlink()
    before = ReferenceStore(tmp_path / "one")
    pd.testing.assert_frame_equal(before.load(run.run_id).history, _table(), check_exact=True)
    second = store.load(_save(store, RunConfig(seed=1)))
    before.add("small", [second])
    assert sorted(path.name for path in folders[0].iterdir() if path.is_file()) == [
        "datasets.json",
        "history.csv.xz",
        "runs.json",
    ]
    for kept in (run, second):
        pd.testing.assert_frame_equal(before.load(kept.run_id).history, _table(), check_exact=True)


def _in_collection(folder, change):
    """Have somebody else write the list of runs of a collection."""
    listing = folder / "runs.json"
    listing.write_text(json.dumps(change(json.loads(listing.read_text()))))


def _other_width(records):
    for record in records.values():
        record["config"]["model"]["width"] = 99
    return records


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_other_width, "that of another run, whose name ends in [0-9a-f]+"),
        (lambda records: {f"</script>/{run}": record for run, record in records.items()}, "no name of a run"),
        (lambda records: dict.fromkeys(records, 5), "holds no configuration"),
    ],
    ids=["another configuration", "a name that is none", "no record"],
)
def test_a_reference_run_that_is_not_what_its_name_stands_for_is_named_and_left_out(store, tmp_path, change, said):
    reference = ReferenceStore(tmp_path / "reference")
    folder = reference.add("stranger", [store.load(_save(store))])
    _in_collection(folder, change)
    with pytest.warns(DamageWarning, match=f"of stranger: .*{said}; it is left out"):
        assert reference.ids() == []


def test_of_a_reference_run_that_was_trained_twice_the_first_is_read_and_it_is_said(store, tmp_path):
    reference = ReferenceStore(tmp_path / "reference")
    run = store.load(_save(store))
    reference.add("ours", [run])
    reference.add("ours_too", [run])
    assert reference.ids() == [run.run_id]
    store.remove(run.run_id)
    reference.add("theirs", [store.load(_save(store, provenance={"commit": "abc"}))])
    with pytest.warns(DamageWarning, match="trained twice, for the collections ours and theirs; the first is read"):
        assert reference.load(run.run_id).provenance["commit"] is None


def test_two_exports_into_one_collection_at_once_keep_all_runs(store, tmp_path):
    runs = [store.load(_save(store, RunConfig(seed=seed))) for seed in range(4)]
    reference = ReferenceStore(tmp_path / "reference")
    with concurrent.futures.ThreadPoolExecutor(4) as several:
        list(several.map(lambda run: reference.add("mine", [run]), runs))
    assert reference.ids() == sorted(run.run_id for run in runs)
    assert all(len(reference.load(run.run_id).history) == 5 for run in runs)


def test_a_run_that_another_process_finishes_meanwhile_is_not_set_aside(store, monkeypatch):
    run = _save(store)
    aside = store.root / "elsewhere"
    (store.root / run).rename(aside)
    has = RunStore.has

    def finished_just_after(self, name):
        answer = has(self, name)
        if aside.exists():
            aside.rename(self.root / name)
        return answer

    monkeypatch.setattr(RunStore, "has", finished_just_after)
    assert store.find(run) is None and store.find(run) is not None


KINDS = [{}, {"kind": "classifier"}, {"kind": ["classifier"]}, {"kind": "classifier", "x": 5}]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_options_that_nobody_can_have_are_damage_whatever_the_name_says(store, options):
    run = f"stranger-{digest(options)}"
    _rewrite(store, _save(store), run, {"config.json": json.dumps({"schema": SCHEMA_VERSION, "config": options})})
    with pytest.warns(DamageWarning, match=f"run {run}: config.json .*left out"):
        assert list(store.records()) == []


@pytest.mark.parametrize(
    "files",
    [
        {"provenance.json": json.dumps({"profile": "\u001b]0;owned\u0007"})},
        {"provenance.json": json.dumps({"profile": None})},
        {"history.csv": "epoch,split,metric,value\n1,train,loss,much\n"},
        {"history.csv": "epoch,split,metric,value\n1,train,\u001b[2J,1.0\n"},
        {"history.csv": "epoch,split,metric,va"},
    ],
    ids=["escape", "no profile", "no number", "escape in a metric", "no column"],
)
def test_names_that_would_act_on_a_terminal_and_texts_for_numbers_are_damage(store, files):
    run = _save(store)
    _rewrite(store, run, run, files)
    with pytest.raises(CorruptRun, match=f"{next(iter(files))} cannot be read"):
        store.load(run)


def _rewrite(store, run, name, files):
    """Have somebody else write files of a run, with their right checksums."""
    folder = (store.root / run).rename(store.root / name)
    sums = json.loads((folder / "DONE").read_text())
    for file, text in files.items():
        (folder / file).write_text(text)
        sums[file] = sha256(text.encode())
    (folder / "DONE").write_text(json.dumps(sums))


def test_a_table_that_would_be_unpacked_into_far_more_memory_is_refused(store, tmp_path):
    run = store.load(_save(store))
    folder = ReferenceStore(tmp_path / "reference").add("small", [run])
    (folder / "history.csv.xz").write_bytes(lzma.compress(bytes(2**27)))
    with pytest.raises(CorruptRun, match="more than 67 MB"):
        ReferenceStore(tmp_path / "reference").load(run.run_id)


@pytest.mark.parametrize("name", ["history.csv", "arrays.npz", "provenance.json", "extra.csv"])
def test_a_file_of_an_opened_run_is_read_once_and_checked_then(store, monkeypatch, name):
    run = _save(store, tables={"history": _table(), "extra": _table()})
    read, honest = [], store_module.read_file
    monkeypatch.setattr(store_module, "read_file", lambda path: read.append(path.name) or honest(path))
    opened = store.open(run)
    assert read == ["DONE", "config.json"]
    for _ in range(2):
        assert opened.files[name] is not None
    assert read == ["DONE", "config.json", name]
    path = store.root / run / name
    path.write_bytes(path.read_bytes()[:-1])
    assert opened.files[name] is not None, "it is there already"
    with pytest.raises(CorruptRun, match=f"{run}: {name} is not what was written"):
        store.open(run).files[name]


@pytest.mark.parametrize("name", ["DONE", "config.json", "history.csv"])
def test_a_run_whose_table_cannot_be_trusted_is_set_aside_when_it_is_looked_for(store, name):
    run = _save(store)
    assert store.find(run).history.equals(_table()) and store.find("other") is None
    (store.root / run / name).write_text("junk")
    with pytest.warns(DamageWarning, match=name):
        assert store.find(run) is None
    assert not store.has(run)


def test_damage_to_a_file_that_nobody_read_is_found_by_check(store):
    run = _save(store)
    (store.root / run / "weights.pt").write_text("junk")
    assert store.find(run).history.equals(_table())
    assert "weights.pt is not what was written" in dict(store.check())[run] and store.ids() == []


EARLIER = Path(__file__).with_name("earlier_runs.tar.xz")
"""A run and a checkpoint after one of two epochs, written at commit e954f09, before the modules moved into wings."""


def test_runs_and_checkpoints_of_an_earlier_version_are_read(isolated):
    """Nobody's run store is lost: the run is drawn without training, the checkpoint is gone on from."""
    with tarfile.open(EARLIER) as archive:
        archive.extractall(paths.runs(), filter="data")
    store = default_store()
    train = TrainConfig(epochs=2, batch_size=20, lr=0.05, log_every=1)
    images = DataConfig(n_max=6, test_per_class=3)
    done, begun = (RunConfig(data=images, model=ModelConfig(width=2), train=train, seed=seed) for seed in (0, 1))
    assert store.ids() == [run_id(done)] and store.is_sound(run_id(done))
    frame = ensure_runs([done], train="never")
    loss = frame.query("split == 'steps' and metric == 'loss'")["value"].tolist()
    assert loss == [2.509383281071981, 2.3106335004170737]
    assert set(store.load(run_id(done)).arrays) >= {"train_features", "class_means", "classifier"}
    assert store.weights(run_id(done))["classifier.weight"].shape == (10, 16)
    assert store.checkpoint(run_id(begun)).load()["epoch"] == 1
    ensure_runs([begun])
    assert store.open(run_id(begun)).provenance["facts"]["continued_from"] == [1]


def test_csv_keeps_every_bit(tmp_path):
    table = _table()
    table.to_csv(tmp_path / "t.csv", index=False)
    pd.testing.assert_frame_equal(read_csv(tmp_path / "t.csv"), table, check_exact=True)
