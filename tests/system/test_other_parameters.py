"""Folders for results of other parameters."""

import pytest

from nclib.system import other_parameters, paths


@pytest.mark.parametrize(
    ("values", "name"), [({}, ""), ({"seeds": 5, "epochs": 3}, "epochs=3,seeds=5"), ({"lr": 1e-05}, "lr=1e-05")]
)
def test_folders_of_other_parameters_are_named_plainly(values, name):
    assert other_parameters.folder_name(values) == name


def test_folders_of_parameters_that_cannot_stand_in_a_name_differ_all_the_same():
    hard = ["a/b", "a:b", "../../x", "A", "a", "größe", "x" * 300, "x" * 301, "-", "a\nb"]
    names = {other_parameters.folder_name({"dataset": value}) for value in hard}
    assert len({name.casefold() for name in names}) == len(hard)
    for name in names:
        with other_parameters.results_with(name):
            assert paths.results("smoke").parent == paths.results() / "smoke" / "with"
            assert paths.results("smoke").name == name and len(name) < 130
