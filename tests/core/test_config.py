"""Configurations: strict names and types, defaults, identities that do not depend on how a run was written."""

import json
import subprocess
import sys

import numpy as np
import pytest

from nclib import deq, solver
from nclib.config import (
    ConfigError,
    DataConfig,
    GradientConfig,
    ModelConfig,
    RunConfig,
    SolverConfig,
    TrainConfig,
    recipe,
    run_id,
)
from nclib.models import build_gradient, build_solver


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (lambda: TrainConfig(epoch=3), "epoch", "epochs"),
        (lambda: ModelConfig(widht=8), "widht", "width"),
        (lambda: ModelConfig(kind="dqe"), "dqe", "deq"),
        (lambda: SolverConfig(method="boyden"), "boyden", "broyden"),
        (lambda: RunConfig(sed=1), "sed", "seed"),
        (lambda: RunConfig(train={"epoch": 3}), "epoch", "epochs"),
        (lambda: recipe("workabel"), "workabel", "workable"),
        (lambda: recipe("paper", epoch=3), "epoch", "epochs"),
    ],
)
def test_misspelt_options_name_the_nearest_right_one(make, wrong, right):
    with pytest.raises(ConfigError, match=rf"{wrong!r}.*Did you mean {right!r}"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrainConfig(epochs="3"),
        lambda: TrainConfig(epochs=3.0),
        lambda: TrainConfig(epochs=True),
        lambda: TrainConfig(lr=float("nan")),
        lambda: TrainConfig(epochs=0),
        lambda: ModelConfig(width=-1),
        lambda: SolverConfig(tol=0.0),
        lambda: DataConfig(imbalance="step", num_majority=3, ratio=0.5),
        lambda: RunConfig(seed=-1),
        lambda: TrainConfig(epochs=10**400),
        lambda: ModelConfig(kind="deq", solver="anderson"),
        lambda: RunConfig(data=None),
        lambda: TrainConfig(jacobian_reg=0.1),
    ],
)
def test_wrong_types_and_values_are_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ModelConfig(kind="explicit", solver=SolverConfig()), "solver does not apply"),
        (lambda: ModelConfig(kind="explicit_flops"), "num_blocks"),
        (lambda: ModelConfig(kind="deq", unroll=3), "unroll does not apply"),
        (lambda: SolverConfig(method="fixed_point", history=3), "history does not apply"),
        (lambda: GradientConfig(damping=0.5), "damping does not apply to method 'implicit'"),
        (lambda: GradientConfig(method="unrolled"), "needs steps"),
        (lambda: GradientConfig(method="reversible"), "method 'reversible' needs steps"),
        (lambda: GradientConfig(method="reversible", steps=3, damping=0.5), "damping does not apply"),
        (lambda: GradientConfig(method="phantom", beta=0.5), "beta does not apply"),
        (lambda: GradientConfig(method="reversible", steps=3, beta=1.0), "beta"),
        (lambda: DataConfig(ratio=10.0), "does not apply to imbalance 'balanced'"),
        (lambda: DataConfig(imbalance="step", ratio=10.0), "num_majority"),
        (lambda: DataConfig(dataset="folder:some/where"), "resolve_dataset"),
    ],
)
def test_options_that_do_not_apply_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_configuration_cannot_be_changed_but_by_another():
    with pytest.raises(Exception, match="frozen"):
        TrainConfig().epochs = 3
    assert TrainConfig().replace(epochs=3).epochs == 3


def test_a_mapping_changes_the_options_that_it_names_alone():
    deq = {"kind": "deq", "width": 4, "solver": {"max_steps": 9}}
    config = RunConfig(train={"epochs": 2, "lr": 0.05}, model=deq | {"cell": "mdeq"})
    assert config.replace(train={"epochs": 5}).train == TrainConfig(epochs=5, lr=0.05)
    assert config.replace(model={"solver": {"tol": 0.1}}).model.solver == SolverConfig(tol=0.1, max_steps=9)
    with pytest.raises(ConfigError, match="does not apply to kind 'explicit'"):
        config.replace(model={"kind": "explicit"})
    assert config.replace(model=ModelConfig()).model == ModelConfig()
    assert config.replace(train=TrainConfig(epochs=5)).train.lr == 0.1


def test_defaults_are_filled_in_so_that_two_ways_of_writing_are_one_run():
    parts = {"solver": SolverConfig(method="broyden", tol=1e-3, max_steps=20, history=20)}
    parts["gradient"] = GradientConfig(method="implicit")
    long = ModelConfig(kind="deq", cell="residual", groups=8, start="x", **parts)
    assert run_id(RunConfig(model=ModelConfig(kind="deq"))) == run_id(RunConfig(model=long))
    assert build_solver(SolverConfig()) == solver.paper_solver()
    assert run_id(RunConfig(seed=np.int64(3))) == run_id(RunConfig(seed=3))


@pytest.mark.parametrize("method", ["broyden", "anderson", "fixed_point"])
def test_solver_options_reach_the_solver(method):
    kinds = {"broyden": solver.Broyden, "anderson": solver.Anderson, "fixed_point": solver.FixedPointIteration}
    built = build_solver(SolverConfig(method=method, tol=1e-5, max_steps=7))
    assert built == kinds[method](tol=1e-5, max_steps=7), "other options left out mean the solver's own default"
    for make in (kinds[method], lambda tol: SolverConfig(method=method, tol=tol)):
        with pytest.raises(ValueError, match="tol"):
            make(tol=1.0)  # every start would be solved


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, deq.Implicit()),
        ({"steps": 2}, deq.Implicit(steps=2)),
        ({"method": "phantom"}, deq.Phantom(steps=1, damping=0.0)),
        ({"method": "neumann", "steps": 3}, deq.Neumann(terms=3)),
        ({"method": "unrolled", "steps": 3}, deq.Unrolled(steps=3, tol=1e-3)),
        ({"method": "reversible", "steps": 3}, deq.Reversible(steps=3, beta=0.5, tol=1e-3)),
        ({"method": "reversible", "steps": 3, "beta": 0.8}, deq.Reversible(3, 0.8, tol=1e-3)),
    ],
)
def test_gradient_options_reach_the_gradient(options, rule):
    assert build_gradient(GradientConfig(**options), 1e-3) == rule


def test_identity_is_pinned():
    """The same on every machine and in every release with this schema: a change here orphans every stored run."""
    assert run_id(RunConfig()) == "digits-balanced-explicit-s0-f90e5ecfb8a7"


def test_every_option_but_the_profile_enters_the_identity():
    base = RunConfig(model=ModelConfig(kind="deq"))
    changed = [
        base.replace(seed=1),
        base.replace(data=DataConfig(n_max=5)),
        base.replace(data=DataConfig(imbalance="step", num_majority=3, ratio=10.0)),
        base.replace(model=ModelConfig(kind="deq", width=8)),
        base.replace(model=ModelConfig(kind="deq", solver=SolverConfig(tol=1e-4))),
        *(base.replace(model={"gradient": {"method": "reversible", "steps": 8, "beta": b}}) for b in (None, 0.8)),
        base.replace(model={"gradient": {"steps": 5}}),
        base.replace(train=TrainConfig(precision="bfloat16")),
    ]
    ids = {run_id(config) for config in [base, *changed]}
    assert len(ids) == len(changed) + 1
    assert run_id(base.replace(profile="quick")) == run_id(base)


def test_json_round_trip_keeps_the_identity():
    images = {"imbalance": "step", "num_majority": 3, "ratio": 10.0, "n_max": 50}
    network = {"kind": "deq", "width": 4, "gradient": {"method": "phantom"}}
    config = RunConfig(data=images, model=network, train=recipe("paper", epochs=2), seed=3, profile="quick")
    text = config.model_dump_json()
    assert (again := RunConfig(**json.loads(text))) == config and run_id(again) == run_id(config)
    assert "profile" not in json.loads(json.dumps(config.canonical()))


def test_recipes_state_the_papers_protocol_and_a_workable_one():
    literal = recipe("paper")
    assert (literal.lr, literal.schedule, literal.momentum, literal.weight_decay) == (1e-4, "constant", 0.9, 5e-4)
    assert (literal.epochs, literal.batch_size) == (100, 128)
    workable = recipe("workable")
    assert (workable.lr, workable.schedule, workable.clip) == (0.1, "cosine", 1.0)


def test_majority_classes_of_digit_pairs_are_drawn_at_random():
    step = {"imbalance": "step", "num_majority": 50, "ratio": 10.0}
    assert DataConfig(dataset="digit_pairs", **step).majority == "random"
    assert DataConfig(dataset="digits", **step | {"num_majority": 5}).majority == "first"


def test_options_that_came_later_leave_older_identities_alone():
    plain = RunConfig(data=DataConfig(subset_seed=None), model=ModelConfig(head="linear"))
    assert run_id(plain) == run_id(RunConfig())
    text = plain.model_dump_json()
    assert not any(name in text for name in ("subset_seed", "head", '"loss"'))
    assert RunConfig(**json.loads(text)) == plain
    others = [
        RunConfig(data=DataConfig(subset_seed=0)),
        RunConfig(model=ModelConfig(head="etf")),
        RunConfig(train=TrainConfig(loss="class_balanced")),
    ]
    assert len({run_id(other) for other in [plain, *others]}) == 4
    assert all(RunConfig(**other.model_dump(mode="json")) == other for other in others)


def test_a_configuration_needs_no_torch():
    code = "import sys; from nclib.config import *; run_id(RunConfig()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
