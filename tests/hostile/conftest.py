"""A project of the test's own."""

import pytest


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path))
    monkeypatch.setenv("NCLIB_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
