"""Inputs that nobody would write: each works, or is refused by a message that names it; none hangs or changes what is
stored. How many were tried is told at the end and, with `NCLIB_SURVIVAL`, kept."""

import contextlib
import io
import json
import os
import signal
import struct
import tempfile
import warnings
import wave
from pathlib import Path

import faults
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from companion.neural_collapse.depth import DepthConfig
from companion.neural_collapse.solver_sweep import SolverSweepConfig
from companion.separation_bias import tasks
from companion.separation_bias.saliency import CamConfig
from nclib import data
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, StoredConfig, run_id
from nclib.data import DataError
from nclib.engine import kinds, options
from nclib.engine.experiments import experiment
from nclib.reproduce.parameters import parse_overrides

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and alarms are those of POSIX systems")
SECONDS = 20
"""What one example may take before it counts as hanging."""


def tried(short, long):
    """How many examples: few in `make test`, many in `make test-slow`."""
    return pytest.mark.parametrize("examples", [short, pytest.param(long, marks=pytest.mark.slow)])


@pytest.fixture(scope="module", autouse=True)
def _kept():
    yield
    faults.LEDGER.write()


@pytest.fixture
def fuzz(examples):
    """Run a check on so many examples, the same ones each time."""

    def run(what, strategy, check):
        count = {"tried": 0}

        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # to shrink what hangs takes for ever
            suppress_health_check=list(HealthCheck),
        )
        @seed(examples)
        @given(strategy)
        def each(example):
            count["tried"] += 1
            with _in_time():
                check(example)

        with faults.LEDGER.fault(f"fuzzed {what}") as row:
            each()
            row["injected"] = count["tried"]
        print(f"{what}: {count['tried']} examples tried")

    return run


@contextlib.contextmanager
def _in_time():
    def hang(number, frame):
        raise AssertionError(f"hangs: no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _message(error, *names):
    """A refusal says something, and about what."""
    text = str(error)
    assert len(text) >= 20 and len(text) < 20_000, text[:500]
    assert any(name in text for name in names), f"{text!r} names none of {names}"


def _tree(folder):
    """Everything below a folder: kinds, names and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[path] = os.readlink(path)
        else:
            found[path] = path.read_bytes() if path.is_file() else path.stat().st_mode
    return found


# --- configurations -------------------------------------------------------------------------------------------------

_RUN = RunConfig(data=DataConfig(imbalance="step", num_majority=3, ratio=10.0), model=ModelConfig(kind="deq", width=2))
VALID = [
    _RUN,
    RunConfig(),
    SolverSweepConfig(base=_RUN),
    DepthConfig(base=_RUN),
    CamConfig(base=_RUN),
    experiment("kernel_equivalence/fig3", "smoke")[0],
    experiment("separation_bias/verdicts", "smoke")[0],
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2**31, 2**63, 10**30, -(10**400), 1e308, -0.0, 1e-320])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["deq", "digits", "folder:x", "folder:x@0123456789ab", "broyden", "classifier", "\ud800", "a\0b"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def _places(tree, at=()):
    for key, value in tree.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from _places(value, (*at, key))


@st.composite
def configurations(draw, valid=VALID):
    """The text of a configuration, a few options of which were changed, removed, misspelt or invented."""
    tree = json.loads(draw(st.sampled_from(valid)).model_dump_json())
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(sorted(_places(tree), key=repr) or [("kind",)]))
        branch = tree
        for key in path:
            branch = branch[key]
        match draw(st.sampled_from(["change", "change", "remove", "misspell", "invent"])):
            case "change":
                branch[last] = draw(VALUES)
            case "remove":
                branch.pop(last, None)
            case "misspell":
                branch[last[:-1] or "x"] = branch.pop(last, None)
            case "invent":
                branch[draw(st.text(max_size=8))] = draw(VALUES)
    return _damaged_text(draw, json.dumps(tree))


def _damaged_text(draw, text):
    match draw(st.sampled_from(["whole"] * 6 + ["cut", "spliced", "nested", "digits"])):
        case "cut":
            return text[: draw(st.integers(0, len(text)))]
        case "spliced":
            place = draw(st.integers(0, len(text)))
            return text[:place] + draw(st.text(max_size=4)) + text[place:]
        case "nested":
            return draw(st.sampled_from(["[", '{"data":'])) * 100_000
        case "digits":
            return '{"seed": ' + "9" * draw(st.sampled_from([20, 5000])) + "}"
    return text


@tried(300, 5_000)
def test_configurations(fuzz):
    def check(text):
        try:
            config = kinds.read_config(text)
        except ConfigError as error:
            return _message(error, "Config", "kind", "JSON")
        assert isinstance(config, StoredConfig)
        assert run_id(kinds.read_config(config.model_dump_json())) == run_id(config)
        return None

    fuzz("configurations", configurations(), check)


KEYS = st.sampled_from(
    ["model.solver.tol", "train.lr", "data", "data.dataset", "seed", "train.epochs", "model..x", ".", "train.lr.x",
     "kind"]
) | st.text(max_size=8)  # fmt: skip
TYPED = st.sampled_from(
    ["1e-3", "[", "{", "2001-99-99", "2001-01-01", "!!python/object:os.system x", "!!binary x", "!!set {a}", "&a [*a]",
     ".nan", ".inf", "1:2", "on", "~", "", "9" * 5000, "[" * 5000, "- a\n- b", "'", "folder:~nobody/x",
     "folder:" + "x" * 5000, "*", "%", "\t", "0x", "1_0", "-9223372036854775809", "? x", "|", ">", "@", "`"]
) | st.text(max_size=12)  # fmt: skip


@tried(150, 3_000)
def test_configuration_files_and_settings(fuzz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.json"
    settings_ = st.lists(st.tuples(KEYS, TYPED).map("=".join) | st.text(max_size=6), max_size=2)
    stored = configurations([_RUN]).map(lambda text: json.dumps({"schema": 1, "config": text}))
    files = st.none() | configurations([_RUN]) | stored | VALUES.map(lambda v: json.dumps({"schema": 1, "config": v}))
    given_ = st.sampled_from([{}, {"data.num_majority": 3}, {"seed": 10**30}, {"data.ratio": float("nan")}])
    names = st.sampled_from([None, "paper", "papre"])

    def check(example):
        text, recipe, given, texts = example
        if text is not None:
            file.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            config = options.build_config(None if text is None else file, recipe, given, texts)
        except (ConfigError, DataError) as error:
            return _message(error, "Config", "own.json", "recipe", "assignment", "data set", "folder", "option", "kind")
        assert isinstance(config, RunConfig) and run_id(config)
        return None

    fuzz("configuration files and settings", st.tuples(files, names, given_, settings_), check)


NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "metadata": {"tags": ["parameters"]},
            "source": 'n: int = 0\nlr: float = 0.0\nok: bool = True\ndataset: str = ""\nprofile: str = "quick"\n',
        }
    ]
}


@tried(300, 5_000)
def test_parameters(fuzz, tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path))
    path = tmp_path / "notebooks" / "neural_collapse" / "fig1.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(NOTEBOOK))
    names = st.sampled_from(["n", "lr", "ok", "dataset", "profile", "lrr", ""])
    texts = st.lists(st.tuples(names, TYPED).map("=".join) | st.text(max_size=8), min_size=1, max_size=3)
    types = {"n": int, "lr": float, "ok": bool, "dataset": str}

    def check(example):
        try:
            (values,) = parse_overrides(example, ["neural_collapse/fig1"]).values()
        except ConfigError as error:
            return _message(error, "parameter", "assignment", "-p")
        assert all(type(value) is types[name] for name, value in values.items())
        return None

    fuzz("notebook parameters", texts, check)


FOUND = {
    "a kind that is a list": '{"kind": []}',
    "a method that is an object": '{"kind": "classifier", "model": {"kind": "deq", "solver": {"method": {}}}}',
    "a base that is a number": '{"kind": "solver_probe", "base": 3}',
    "a list": "[]",
    "nested without end": "[" * 100_000,
    "5,000 digits": '{"seed": ' + "9" * 5000 + "}",
    "a seed no generator takes": '{"seed": 4294967296}',
    "a subset no generator takes": '{"data": {"subset_seed": 4294967296}}',
}


@pytest.mark.parametrize("case", FOUND)
def test_configurations_that_once_ended_in_a_traceback(case):
    with pytest.raises(ConfigError) as caught:
        kinds.read_config(FOUND[case])
    _message(caught.value, "Config", "kind", "configuration")


@pytest.mark.parametrize(
    ("file", "recipe", "given", "texts"),
    [
        ('{"schema": 1, "config": [1]}', None, {}, []),
        ('{"train": []}', "paper", {}, []),
        ('{"data": 3}', None, {"data.num_majority": 3}, []),
        (None, None, {}, ["model.solver.tol=["]),
        (None, None, {}, ["seed=2001-99-99"]),
        (None, None, {}, ["seed=2001-01-01"]),
        (None, None, {}, ["data=&a [*a]"]),
        (None, None, {}, ["train=? [1, 2]\n: 3"]),
        (None, None, {}, ["data.dataset=folder:~nobody/x"]),
        (None, None, {}, ["data.dataset=folder:" + "x" * 5000]),
    ],
)
def test_settings_that_once_ended_in_a_traceback(tmp_path, file, recipe, given, texts):
    path = None if file is None else tmp_path / "own.json"
    if path is not None:
        path.write_text(file)
    with pytest.raises((ConfigError, DataError)):
        options.build_config(path, recipe, given, texts)


# --- image folders --------------------------------------------------------------------------------------------------

FORMATS = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "ppm": "PPM"}
_MODES = {"PNG": ["RGB", "L", "1", "P", "RGBA", "LA", "I;16"], "JPEG": ["RGB", "L", "CMYK"], "GIF": ["P", "L"]}


@st.composite
def images(draw):
    """A file name and its bytes: an image, something like one, or nothing of the kind."""
    ending = draw(st.sampled_from(sorted(FORMATS)))
    name = draw(st.sampled_from([b"a", b"\xff\xfe", b"x y", "ü".encode(), b".hidden", b"-", b"a" * 200]))
    name += b"." + ending.encode()
    if draw(st.integers(0, 5)) == 0:
        return name, draw(st.binary(max_size=60))
    kind = FORMATS[ending]
    mode = draw(st.sampled_from(_MODES.get(kind, ["RGB", "L"])))
    size = draw(st.tuples(st.sampled_from([1, 2, 8, 65, 3000]), st.sampled_from([1, 2, 8, 65])))
    buffer = io.BytesIO()
    Image.new(mode, size, draw(st.integers(0, 255)) if mode in ("L", "P", "I;16") else None).save(buffer, kind)
    content = buffer.getvalue()
    match draw(st.sampled_from(["whole", "whole", "cut", "flip", "spliced", "bomb", "empty"])):
        case "cut":
            content = content[: draw(st.integers(0, len(content)))]
        case "flip":
            changed = bytearray(content)
            for place in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5)):
                changed[place] ^= draw(st.integers(1, 255))
            content = bytes(changed)
        case "spliced":
            place = draw(st.integers(0, len(content)))
            content = content[:place] + draw(st.binary(max_size=30)) + content[place:]
        case "bomb" if kind == "PNG":
            import zlib

            sides = struct.pack(">II", *draw(st.tuples(*[st.sampled_from([0, 1, 12_000, 50_000, 2**31 - 1])] * 2)))
            header = b"IHDR" + sides + content[24:29]
            content = content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]
        case "empty":
            content = b""
    return name, content


@st.composite
def folders(draw):
    """Files and odd entries to be put into an image folder."""
    places = st.sampled_from(["train/a", "train/b", "test/a", "test/b/deep"])
    files = draw(st.lists(st.tuples(places, images()), max_size=3))
    odd = draw(
        st.sampled_from(
            [None] * 6 + ["pipe", "link to nothing", "loop", "loop above", "stray file", "empty class", "one class",
                          "other classes", "no test", "class name"]
        )
    )  # fmt: skip
    return files, odd


def _fill(root, files, odd):
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    for split in ("train", "test"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            grey.save(root / split / name / "good.png")
    for where, (name, content) in files:
        (root / where).mkdir(exist_ok=True)
        Path(os.fsdecode(os.fsencode(root / where) + b"/" + name)).write_bytes(content)
    inside = root / "train" / "a"
    match odd:
        case "pipe":
            os.mkfifo(inside / "pipe.png")
        case "link to nothing":
            (inside / "z.png").symlink_to("nowhere")
        case "loop":
            (inside / "loop").symlink_to(".")
        case "loop above":
            for name in ("a", "b"):
                (root / "train" / name / "up").symlink_to(root)
        case "stray file":
            (root / "train" / "notes.txt").write_text("x")
        case "empty class":
            for split in ("train", "test"):
                (root / split / "c").mkdir()
        case "one class":
            for split in ("train", "test"):
                (root / split / "b").rename(root / f"gone-{split}")
        case "other classes":
            (root / "test" / "b").rename(root / "test" / "c")
        case "no test":
            (root / "test").rename(root / "tset")
        case "class name":
            for split in ("train", "test"):
                (root / split / "b").rename(os.fsdecode(os.fsencode(root / split) + b"/\xff\n"))


@tried(80, 1_500)
def test_image_folders(fuzz, tmp_path, monkeypatch):
    def check(example):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's on damaged metadata
            root = Path(folder) / "photos"
            monkeypatch.setenv("NCLIB_DATA", str(Path(folder) / "data"))
            _fill(root, *example)
            before = _tree(root)
            try:
                name = data.resolve_dataset(f"folder:{root}")
                for split in ("train", "test"):
                    loaded = data.load_dataset(name, split)
                    assert len(loaded.images) == len(loaded.labels) >= 2 and loaded.images[0].numel() > 0
                    assert loaded.images.dtype == torch.uint8 and max(loaded.images.shape[2:]) <= data.MAX_SIDE
            except DataError as error:
                _message(error, str(root))
            assert _tree(root) == before, "reading changed the images"
            assert not list(Path(folder).rglob("*.writing"))

    fuzz("image folders", folders(), check)


@pytest.mark.parametrize("odd", ["pipe", "loop", "loop above"])
def test_image_folders_that_once_hung(odd, tmp_path):
    _fill(tmp_path / "photos", [], odd)
    with _in_time(), pytest.raises(DataError, match=r"no plain file|leads back to"):
        data.resolve_dataset(f"folder:{tmp_path / 'photos'}")


# --- sounds ---------------------------------------------------------------------------------------------------------


def _sound():
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((8000 * np.sin(np.arange(400) / 5)).astype("<i2").tobytes())
    return buffer.getvalue()


@st.composite
def sounds(draw):
    """The bytes of a WAV file whose header lies, or which was cut or changed."""
    if draw(st.booleans()):
        numbers = st.sampled_from([0, 1, 2, 3, 7, 8, 16, 24, 32, 64, 65535])
        rate = draw(st.sampled_from([0, 1, 8000, 2**32 - 1]))
        size = draw(st.sampled_from([0, 1, 16, 800, 2**31, 2**32 - 1]))
        tag, channels, block, bits = (draw(numbers | st.just(value)) for value in (1, 1, 2, 16))
        samples = draw(st.binary(max_size=64)) * draw(st.sampled_from([1, 20, 400]))
        form = struct.pack("<HHIIHH", tag, channels, rate, draw(st.sampled_from([0, rate])), block, bits)
        riff = draw(st.sampled_from([b"RIFF", b"RIFX", b"RF64", b"riff"]))
        parts = [b"fmt " + struct.pack("<I", draw(st.sampled_from([16, 18, 40, 2**32 - 1]))) + form]
        between = [b"", b"LIST\x00\x00\x00\x00", b"ds64" + b"\xff" * 28, b"junk\xff\xff\xff\xff"]
        parts += [draw(st.sampled_from(between))]
        parts += [b"data" + struct.pack("<I", size) + samples]
        content = riff + struct.pack("<I", draw(st.sampled_from([0, 36, 2**32 - 1]))) + b"WAVE" + b"".join(parts)
    else:
        content = _sound()
    changed = bytearray(content[: draw(st.just(len(content)) | st.integers(0, len(content)))])
    for place in draw(st.lists(st.integers(0, 60), max_size=3)):
        if place < len(changed):
            changed[place] = draw(st.integers(0, 255))
    return bytes(changed)


@tried(300, 5_000)
def test_wav_files(fuzz, tmp_path):
    path = tmp_path / "song.wav"

    def check(content):
        path.write_bytes(content)
        try:
            samples = tasks.read_wav(path)
        except DataError as error:
            _message(error, "song.wav")
        else:
            assert 100 <= len(samples) <= 1000 and np.isfinite(samples).all() and np.abs(samples).max() == 1
        assert path.read_bytes() == content

    fuzz("WAV files", sounds(), check)


def test_a_sound_that_is_hardly_there_is_one(tmp_path):
    """Its peak so small that 1 % of it is 0: once a thousand zeros divided by 0."""
    from scipy.io import wavfile

    sound = np.zeros(3000)
    sound[2000:2200] = 5e-324
    wavfile.write(tmp_path / "faint.wav", 8000, sound)
    samples = tasks.read_wav(tmp_path / "faint.wav")
    assert len(samples) == 1000 and samples[0] == 1 and np.isfinite(samples).all()
