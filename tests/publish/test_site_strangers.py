"""What the notebooks of a stranger's results folder, and the folder one stands in, cannot do to who makes the site."""

import json

import pytest
from executed import cell, needs_sphinx, text_of, write_notebook

from nclib.publish.site import build, elsewhere
from nclib.system import paths

pytestmark = needs_sphinx

MODULE = "from pathlib import Path\nPath({mark!r}).touch()\n"
TEXT = """# A page

{{{{ cycler.__init__.__globals__.os.system("touch {evaluated}") }}}}

```{{include}} {secret}
```

```{{eval-rst}}
.. raw:: html
   :file: {secret}

.. automodule:: imported_by_a_page
```

and {{download}}`{secret}` in a line
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page, and the folder in which everything that is run leaves a mark."""
    here, marks = (tmp_path_factory.mktemp(name) for name in ("here", "marks"))
    for name in ("sphinx", "imported_by_a_page"):
        (here / f"{name}.py").write_text(MODULE.format(mark=str(marks / name)))
    (here / "secret.txt").write_text("quokka")
    text = TEXT.format(evaluated=marks / "evaluated", secret=here / "secret.txt")
    settings = {
        "mystnb": {"execution_mode": "force"},
        "myst": {"enable_extensions": ["substitution"], "substitutions": {"a": "b"}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(tmp_path_factory.mktemp("strangers") / "results"))
        patch.setattr(elsewhere.provenance, "git_origin", lambda: None)
        code = cell("code", MODULE.format(mark=str(marks / "executed")))
        code["metadata"]["mystnb"] = {"execution_mode": "force"}
        path = write_notebook("neural_collapse/fig3", [cell("markdown", text), code])
        notebook = json.loads(path.read_text())
        notebook["metadata"] |= settings
        path.write_text(json.dumps(notebook))
        paths.root()  # found from the folder of the tests, as by a command inside the project
        patch.setenv("NCLIB_ROOT", str(paths.root()))
        patch.chdir(here)
        landing = build.build("smoke", echo=lambda line: None, draft=True)
    return landing.parent / "neural_collapse/fig3.html", marks


def test_a_notebook_starts_nothing_and_reads_no_file(made):
    page, marks = made
    ran = {mark.name for mark in marks.iterdir()}
    assert not ran & {"executed", "evaluated", "imported_by_a_page"}
    text = text_of(page)
    assert "automodule" in text and "secret.txt" in text  # shown as it is written
    assert not any("quokka" in file.read_text(errors="replace") for file in page.parents[1].rglob("*.*"))


def test_a_module_in_the_working_folder_is_not_run(made):
    assert "sphinx" not in {mark.name for mark in made[1].iterdir()}


def test_a_site_without_a_first_page_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(build.sys, "executable", "/bin/true")
    with pytest.raises(build.ReportError, match="could not make the site"):
        build._run_sphinx("smoke", tmp_path, print)
