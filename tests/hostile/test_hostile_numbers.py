"""Numbers that nobody would give, to every public function of the core; see `hostile.cases`."""

import inspect
import warnings

import pytest
from hostile import acting, cases

ROWS = [line.split() for line in cases.NUMBERS.strip().splitlines()]
CALLS: dict[tuple[str, str], tuple[str, list[str], dict[str, str]]] = {}
for _line in cases.CALLS.strip().splitlines():
    _function, _before, _named = acting.parsed(_line)
    for _argument in _named:
        CALLS.setdefault((_function, _argument), (_function, _before, _named))


def test_the_table_has_every_argument_of_every_public_function():
    assert [(function, argument) for function, argument, _ in ROWS] == list(CALLS)
    assert {len(letters) for _, _, letters in ROWS} == {len(cases.VALUES)}
    known = {function.split(".")[0] for function, _, _ in ROWS} | {n for names in cases.LEFT_OUT for n in names.split()}
    public = {
        name
        for module in acting.CORE
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(module.__name__)
        and not name.startswith("_")
    }
    assert public - known == set(), "give these a row in hostile.cases"


@pytest.mark.parametrize("size", acting.SIZES)
@pytest.mark.parametrize(("function", "argument", "letters"), ROWS, ids=lambda text: text)
def test_numbers(function, argument, letters, size, tmp_path, counted):
    row, wrong = ROWS.index([function, argument, letters]), []
    tried = acting.chosen(cases.VALUES.items(), letters, row, size)
    with counted("numbers", len(tried)):
        for (name, value), letter in tried:
            became, said = _try(function, argument, value, tmp_path)
            if became != letter:
                wrong.append(f"{argument}={name} of {function}: must be {letter}, is {became}: {said}")
        assert not wrong, "\n".join(wrong)


def _try(function, argument, value, folder):
    names = acting.objects(folder)
    _, before, named = CALLS[function, argument]
    positional = [eval(text, names) for text in before]
    given = {name: eval(text, names) for name, text in named.items()}
    given[argument] = acting.exchanged(given[argument], value)

    def act():
        found = eval(function, names)(*positional, **given)
        return [batch for batch, _ in found.in_order()] if function == "Batches" else found

    with warnings.catch_warnings(), acting.little_memory():
        warnings.simplefilter("ignore")  # of numbers that are no numbers, and of classes that are not there
        return acting.outcome(act)
