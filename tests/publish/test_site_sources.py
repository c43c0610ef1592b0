"""What a site is made of: its order, and files that are damaged or lie."""

import json
from pathlib import Path

import pytest
from executed import INJECTED

from companion.site import build
from companion.site.sources import collect
from nclib.config import ConfigError
from nclib.system import paths


def test_without_notebooks_it_says_what_to_type():
    with pytest.raises(build.ReportError, match="type: nclib reproduce --profile smoke"):
        build.build("smoke")
    with pytest.raises(ConfigError, match="Did you mean 'smoke'"):
        build.build("smoek")
    assert not paths.results().exists()


@pytest.mark.parametrize(
    ("stem", "change"),
    [
        ("fig3", {"name": "../../secret"}),
        ("fig3", {"name": "neural_collapse/fig4"}),
        ("fig3", {"name": ["neural_collapse/fig3"]}),
        (INJECTED, {"name": f"neural_collapse/{INJECTED}"}),
        ("fig3", {"files": {"../../../secret.png": {}}}),
        ("fig3", {"files": {"secret.png": {}}}),
        ("fig3", {"files": {'fig3."><script>': {}}}),
    ],
)
def test_a_record_speaks_of_the_files_beside_it_alone(smoke, stem, change):
    folder = smoke / "figures/neural_collapse"
    record = json.loads((folder / "fig3.json").read_text()) | change
    (folder / f"{stem}.json").write_text(json.dumps(record))
    with pytest.raises(build.ReportError, match=r"\.json is damaged \(.*execute its notebook again"):
        collect("smoke")


@pytest.mark.parametrize(
    "file", ["notebooks/neural_collapse/fig4.ipynb", "figures/neural_collapse/fig3.json"], ids=["notebook", "record"]
)
@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_damaged_file_is_named(smoke, file, content):
    (smoke / file).write_text(content)
    with pytest.raises(build.ReportError, match=Path(file).name):
        collect("smoke")
