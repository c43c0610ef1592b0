"""A profile that was executed, and its site."""

import json
import os
from pathlib import Path

import filelock
import pytest
from executed import fill

from companion.site import build, elsewhere


@pytest.fixture
def smoke():
    return fill()


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A site as Sphinx makes it, and what was said; tests only read it, so the processes of a test run share one."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "book"
    with filelock.FileLock(f"{root}.lock"), pytest.MonkeyPatch.context() as patch:
        if not (root / "made.json").exists():
            patch.setenv("NCLIB_RESULTS", str(root / "results"))
            patch.setattr(elsewhere.provenance, "git_origin", lambda: None)  # wherever this clone comes from
            fill()
            said: list[str] = []
            landing = build.build("smoke", echo=said.append)
            (root / "made.json").write_text(json.dumps([str(landing.parent), said]))
    site, said = json.loads((root / "made.json").read_text())
    return Path(site), said


@pytest.fixture
def sphinx(monkeypatch):
    """How often pages were made; making them takes no time."""
    made = []

    def run(profile, aside, echo):
        made.append(profile)
        (aside / "html").mkdir()
        (aside / "html/index.html").write_text(f"number {len(made)}")

    monkeypatch.setattr(build, "_run_sphinx", run)
    monkeypatch.setattr(build, "_reference", lambda folder, echo: (folder / "names.json").write_text("{}"))
    monkeypatch.setattr(build.kept, "join", lambda reference, site: None)
    monkeypatch.setattr(build.explore, "page", lambda runs: None)  # reads every tracked run
    monkeypatch.setattr(build, "_require_sphinx", lambda: None)
    monkeypatch.setattr(build.importlib.metadata, "version", lambda name: "1.0")
    return made
