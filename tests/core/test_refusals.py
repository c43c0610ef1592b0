"""Options refuse what is not a number of their own kind, whoever takes them: NaN, infinity, a bool, a text."""

import dataclasses
import inspect
import types
import typing

import pytest

import nclib as nc
from nclib.config import ConfigError

WRONG = {"nan": float("nan"), "infinity": float("inf"), "bool": True, "text": "x", "list": [1]}
VALID = {
    nc.RunConfig: {},
}
"""What else a call needs."""
TAKERS = (
    *(nc.SolverConfig, nc.GradientConfig, nc.DataConfig, nc.ModelConfig, nc.TrainConfig, nc.ClassMoments),
    *(nc.simplex_etf, nc.ideal_values, *VALID),
)


def _numeric(taker):
    """The names of a callable's arguments that are one number by their annotation."""
    if hasattr(taker, "model_fields"):
        hints = {name: field.annotation for name, field in taker.model_fields.items()}
    else:
        owner = taker.__init__ if inspect.isclass(taker) and not dataclasses.is_dataclass(taker) else taker
        hints = typing.get_type_hints(owner)
    for name, hint in hints.items():
        kinds = set(typing.get_args(hint) if isinstance(hint, types.UnionType) else [hint]) - {type(None)}
        if kinds and kinds <= {int, float}:
            yield name


CASES = [(taker, name) for taker in TAKERS for name in _numeric(taker)]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("taker", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_number_that_is_none_is_refused(taker, name, wrong):
    given = {**VALID.get(taker, {}), name: WRONG[wrong]}
    with pytest.raises((ValueError, TypeError, ConfigError)):
        taker(**given)
