"""`nclib report`, and the site at the end of `nclib reproduce`."""

import pytest
from typer.testing import CliRunner

from companion.site import build
from nclib.cli import app
from nclib.reproduce import reproduce, summary
from nclib.system import paths


def command(*arguments):
    return CliRunner().invoke(app.app, list(arguments))


def test_the_command_passes_its_options_on_and_ends_with_one_message(monkeypatch):
    asked = []
    monkeypatch.setattr(build, "build", lambda *arguments: asked.append(arguments))
    assert command("report", "--profile", "lite", "--force").exit_code == 0
    assert asked == [("lite", True)]
    monkeypatch.undo()
    monkeypatch.setattr(build, "build", lambda profile, force: asked.append(paths.results(profile).name))
    assert command("report", "--profile", "lite", "-p", "seeds=4", "-p", "epochs=3", "-p", "lr=0").exit_code == 0
    assert asked[-1] == "epochs=3,seeds=4"
    monkeypatch.undo()
    result = command("report", "--profile", "smoke")
    assert result.exit_code == 1 and "error: no notebook has been executed" in result.output


@pytest.mark.parametrize(
    ("status", "problem", "code", "said"),
    [
        ("executed", None, 0, ""),
        ("failed", None, 1, ""),
        ("executed", build.ReportError("Sphinx could not"), 1, "no web site: Sphinx could not"),
        ("failed", build.ReportError("Sphinx could not"), 1, "no web site: Sphinx could not"),
        ("executed", build.SphinxMissing("not installed"), 0, "no web site: not installed"),
        ("failed", build.SphinxMissing("not installed"), 1, "no web site: not installed"),
    ],
)
def test_reproduce_ends_with_the_site_and_fails_if_either_did(monkeypatch, status, problem, code, said):
    built = []

    def make(profile):
        built.append(paths.results(profile).name)
        if problem is not None:
            raise problem

    done = summary.Summary("smoke", {}, [summary.Row("a/b", status, 1.0, 0, 0)], {}, 1.0)
    monkeypatch.setattr(reproduce, "reproduce", lambda *_: done)
    monkeypatch.setattr(build, "build", make)
    result = command("reproduce", "--profile", "smoke")
    assert (result.exit_code, built) == (code, ["smoke"]) and said in result.output
    without = command("reproduce", "--profile", "smoke", "--no-report")
    assert (without.exit_code, built) == (int(status == "failed"), ["smoke"])
    done.parameters["epochs"] = 3
    command("reproduce", "--profile", "smoke", "-p", "epochs=3")
    assert built == ["smoke", "epochs=3"]
