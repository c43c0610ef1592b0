"""What nobody would type, in the place of every option and argument of every command; see `hostile.cases`."""

import json
import warnings

import numpy as np
import pytest
from hostile import acting, cases

from nclib.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from nclib.engine import experiments, runs

ROWS = [line.rsplit(maxsplit=2) for line in cases.OPTIONS.strip().splitlines()]
SETTINGS = [line.split() for line in cases.SETTINGS.strip().splitlines()]


def test_the_table_has_every_option_of_every_command():
    known = [(command, option) for command, option, _ in ROWS]
    assert len(set(known)) == len(known)
    options = {(command, option) for command, found in acting.options().items() for option in found}
    flags = {(command, option) for command, option in options if option in cases.FLAGS}
    assert options - flags == set(known), "give these a row in hostile.cases"
    assert {len(letters) for _, _, letters in ROWS} == {len(cases.TYPED)}


@pytest.mark.parametrize("size", acting.SIZES)
@pytest.mark.parametrize(("command", "option", "letters"), ROWS, ids=lambda text: text)
def test_options(command, option, letters, size, project, tmp_path, counted):
    tried = acting.chosen(cases.TYPED.items(), letters, ROWS.index([command, option, letters]), size)
    np.savez(project / "arrays.npz", h=np.eye(4).repeat(5, 0), labels=np.arange(4).repeat(5))
    if command == "runs export":
        runs.ensure_runs(experiments.experiment("fig9", "smoke"))
    before, wrong = acting.tree(tmp_path), []
    with counted("options of the command", len(tried)):
        for (name, typed), letter in tried:
            words = cases.COMMANDS[command].split()
            if option in words:  # the usual value goes
                del words[words.index(option) : words.index(option) + 2]
            words += [option, typed] if option.startswith("-") else [typed]
            became, said = _run(words)
            if became != letter:
                wrong.append(f"{command} {option}={name}: must be {letter}, is {became}: {said[-300:]}")
            if option != "--csv":  # the one that names a file to write
                wrong += acting.changed_outside(tmp_path, before, project)
        assert not wrong, "\n".join(wrong)


def _run(words):
    with warnings.catch_warnings(), acting.little_memory():
        warnings.simplefilter("ignore")
        return acting.command(*words)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "letters"), SETTINGS, ids=lambda text: text)
def test_settings(key, letters, project, tmp_path, counted):
    """Every option of a configuration, as ``nclib train --set`` takes it."""
    data = DataConfig(imbalance="step", num_majority=3, ratio=2.0, n_max=6, test_per_class=3)
    base = RunConfig(data=data, model=ModelConfig(kind="deq", width=2), train=TrainConfig(epochs=1))
    (project / "own.json").write_text(json.dumps(base.model_dump(mode="json")))
    before, wrong = acting.tree(tmp_path), []
    with counted("options of a configuration", len(letters)):
        for (name, typed), letter in zip(cases.SET.items(), letters, strict=True):
            became, said = _run(["train", "--config", "own.json", "--set", f"{key}={typed}"])
            if became != letter:
                wrong.append(f"{key}={name}: must be {letter}, is {became}: {said[-300:]}")
            wrong += acting.changed_outside(tmp_path, before, project)
        assert not wrong, "\n".join(wrong)
