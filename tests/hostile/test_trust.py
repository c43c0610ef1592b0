"""What docs/internals.md says of trust names tests that exist and versions that are required."""

import re
import tomllib

from nclib import paths

ROOT = paths.root()
PAGE = (ROOT / "docs/internals.md").read_text(encoding="utf-8").partition("## Trust")[2]


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")]
    there = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert len(named) > 5 and named - there == set()


def test_the_versions_of_the_page_are_those_that_are_required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = project["dependencies"] + project["optional-dependencies"]["companion"]
    said = {f"{name}>={version}" for name, version in re.findall(r"^\| (\w+) \| ([\d.]+) \|", PAGE, re.MULTILINE)}
    assert len(said) == 3 and said <= set(required)
