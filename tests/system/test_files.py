"""A file is written whole or not at all."""

import os

import pytest

from nclib.system.files import write_atomic


def test_write_atomic_replaces_and_creates_folders(tmp_path):
    path = write_atomic(tmp_path / "a" / "b.txt", "é")
    assert path.read_bytes() == "é".encode()
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, error, step):
    path = write_atomic(tmp_path / "x", "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_atomic(path, "new")
    assert path.read_text() == "old" and list(tmp_path.glob("*x*")) == [path]
