"""A profile that was executed, and its site."""

import pytest
from executed import fill

from nclib.publish.site import build, elsewhere


@pytest.fixture
def smoke():
    return fill()


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A site as Sphinx makes it, and what was said; tests only read it."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(tmp_path_factory.mktemp("book") / "results"))
        patch.setattr(elsewhere.provenance, "git_origin", lambda: None)  # wherever this clone comes from
        fill()
        landing = build.build("smoke", echo=said.append)
    return landing.parent, said


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
