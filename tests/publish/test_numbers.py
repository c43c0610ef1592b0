"""Marked spans of pages: filled from named values, checked, and refused where a mark is wrong."""

import pytest
from typer.testing import CliRunner

from companion import docs_tables as measured
from nclib.cli import app
from nclib.publish.numbers import SpanError, fill

VALUES = {"fall": "−17 %", "table": "| a |\n|---|\n| 1 |"}
PAGE = "# A\n\nIt falls by <!--n:fall-->−17 %<!--/n-->.\n\n<!--t:table-->\n| a |\n|---|\n| 1 |\n<!--/t-->\n"


def test_a_page_with_the_right_numbers_stays_as_it_is():
    assert fill(PAGE, VALUES) == (PAGE, [])


@pytest.mark.parametrize(("right", "wrong", "name"), [("−17", "−18", "fall"), ("| 1 |", "| 2 |", "table")])
def test_a_changed_number_is_named_and_written(right, wrong, name):
    assert fill(PAGE.replace(right, wrong), VALUES) == (PAGE, [name])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!--n:fal-->1<!--/n-->", "no number is named 'fal'"),
        ("<!--n:fall-->1", r"<!--n:fall--> has no partner"),
        ("<!--n:fall-->1<!--/t-->", r"<!--n:fall--> has no partner"),
        ("<!--n:fall-->1 <!--n:fall-->1<!--/n-->", r"<!--n:fall--> has no partner"),
        ("1<!--/n-->", r"<!--/n--> has no partner"),
    ],
)
def test_a_wrong_mark_is_an_error(text, said):
    with pytest.raises(SpanError, match=f"^p.md.*{said}"):
        fill(text, VALUES, "p.md")


def test_the_command_checks_names_what_differs_and_writes(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "nclib"\n')
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/page.md"
    page.write_text(PAGE.replace("17", "18"), encoding="utf-8")
    monkeypatch.setenv("NCLIB_ROOT", str(tmp_path))
    monkeypatch.setattr(measured, "numbers", lambda: VALUES)
    found = CliRunner().invoke(app.app, ["numbers", "--check"])
    assert found.exit_code == 1 and "docs/page.md: fall" in found.output
    assert "18" in page.read_text(encoding="utf-8")
    assert CliRunner().invoke(app.app, ["numbers"]).exit_code == 0
    assert page.read_text(encoding="utf-8") == PAGE
    assert CliRunner().invoke(app.app, ["numbers", "--check"]).exit_code == 0
