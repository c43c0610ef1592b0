"""Variables of the environment set to what nobody would set them to; see `hostile.cases`."""

import os
import warnings

import pytest
from hostile import acting, cases
from PIL import Image

ROWS = [
    (line.split()[0], " ".join(line.split()[1:-1]), line.split()[-1]) for line in cases.ENVIRONMENT.strip().splitlines()
]


def test_each_row_has_a_letter_for_each_value():
    assert {len(letters) for *_, letters in ROWS} == {len(cases.SURROUNDINGS)}


@pytest.mark.parametrize("size", acting.SIZES)
@pytest.mark.parametrize(("variable", "asked", "letters"), ROWS, ids=lambda text: text)
def test_environment(variable, asked, letters, size, project, tmp_path, monkeypatch, counted):
    for split in ("train", "test"):
        for place, name in enumerate("ab"):
            (project / f"photos/{split}/{name}").mkdir(parents=True)
            Image.new("L", (4, 4), 90 * place).save(project / f"photos/{split}/{name}/0.png")
    (project / "closed").mkdir()
    access = os.access  # the tests may run as root, who may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and access(path, mode))
    before, wrong = acting.tree(tmp_path), []
    tried = acting.chosen(cases.SURROUNDINGS.items(), letters, ROWS.index((variable, asked, letters)), size)
    with counted("environment", len(tried)):
        for (name, text), letter in tried:
            with monkeypatch.context() as patch, warnings.catch_warnings(), acting.little_memory():
                warnings.simplefilter("ignore")
                if text is None:
                    patch.delenv(variable, raising=False)
                else:
                    patch.setenv(variable, text.replace("PROJECT", str(project)))
                became, said = acting.read(asked)
            if became != letter:
                wrong.append(f"{variable}={name}, {asked}: must be {letter}, is {became}: {said[-300:]}")
            after = acting.tree(tmp_path)
            inside = f"{project.relative_to(tmp_path).as_posix()}/"
            wrong += [f"{name}: changed {file}" for file in before if before[file] != after.get(file)]
            if variable not in ("NCLIB_RESULTS", "NCLIB_DATA"):
                new = [file for file in after if file not in before and not file.startswith(inside)]
                wrong += [f"{name}: outside {file}" for file in new]
        assert not wrong, "\n".join(wrong)
