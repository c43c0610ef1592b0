"""What the notebooks of a stranger's results folder, and the folder one stands in, cannot do to who makes the site."""

import base64
import json
from pathlib import Path

import pytest
from executed import PICTURE, cell, needs_sphinx, text_of, write_notebook

import nclib
from companion.site import build, elsewhere
from nclib.system import paths

pytestmark = needs_sphinx
PACKAGE = Path(nclib.__file__).parent

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

and {{download}}`{secret}` in a line, [a link]({up}{secret}), [another](path:{up}{secret}), ![]({up}{picture})
"""
TITLE = """# A page {{download}}`{secret}`\r\r```{{eval-rst}}\r.. automodule:: imported_by_a_title\r```\r"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page, and the folder in which everything that is run leaves a mark."""
    here, importable, marks = (tmp_path_factory.mktemp(name) for name in ("here", "importable", "marks"))
    for folder, name in (
        (here, "sphinx"),
        (importable, "imported_by_a_page"),
        (importable, "imported_by_a_title"),
    ):
        (folder / f"{name}.py").write_text(MODULE.format(mark=str(marks / name)))
    (here / "secret.txt").write_text("quokka")
    (here / "secret.png").write_bytes(base64.b64decode(PICTURE) + b"quokka")
    files = {"secret": here / "secret.txt", "picture": here / "secret.png", "up": "../" * 20}
    text = TEXT.format(evaluated=marks / "evaluated", **files)
    settings = {
        "mystnb": {"execution_mode": "force"},
        "myst": {"enable_extensions": ["substitution"], "substitutions": {"a": "b"}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCLIB_RESULTS", str(tmp_path_factory.mktemp("strangers") / "results"))
        patch.setattr(elsewhere.provenance, "git_origin", lambda: None)
        code = cell("code", MODULE.format(mark=str(marks / "executed")))
        code["metadata"]["mystnb"] = {"execution_mode": "force"}
        shown = cell(
            "code", "", outputs=[{"output_type": "display_data", "metadata": {}, "data": {"text/markdown": text}}]
        )
        path = write_notebook("neural_collapse/fig3", [cell("markdown", text), code, shown])
        write_notebook("neural_collapse/fig4", [cell("markdown", TITLE.format(**files))])
        patch.setenv("PYTHONPATH", f"{importable}:{PACKAGE.parent}")  # as the notebooks of a clone have it
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
    assert not ran & {"executed", "evaluated", "imported_by_a_page", "imported_by_a_title"}
    text = text_of(page)
    assert "automodule" in text and "secret.txt" in text  # shown as it is written
    assert not [file for file in page.parents[1].rglob("*.*") if b"quokka" in file.read_bytes()]
    landing = text_of(page.parents[1] / "index.html")
    assert "A page {download}`" in landing and "automodule" in landing


def test_a_module_in_the_working_folder_is_not_run(made):
    assert "sphinx" not in {mark.name for mark in made[1].iterdir()}


def test_a_site_without_a_first_page_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(build.sys, "executable", "/bin/true")
    with pytest.raises(build.ReportError, match="could not make the site"):
        build._run_sphinx("smoke", tmp_path, print)
