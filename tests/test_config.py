"""Configurations: ids that never move, defaults, and strict names and types."""

import json
import subprocess
import sys

import numpy as np
import pytest

from nclib.config import (
    ConfigError,
    DataConfig,
    GradientConfig,
    ModelConfig,
    PostHocConfig,
    RunConfig,
    SolverConfig,
    TrainConfig,
    import_object,
    recipe,
    run_id,
    setting,
)

# --- Ids ------------------------------------------------------------------------------------------


def test_the_id_of_the_default_run_is_pinned():
    """A change here orphans every stored run."""
    assert run_id(RunConfig()) == "digits-balanced-explicit-s0-f90e5ecfb8a7"


def test_the_canonical_options_hold_those_that_have_one_value():
    options = RunConfig().canonical()
    fixed = {"constraint": "weight_decay", "e_w": None, "e_h": None}
    fixed |= {"skip": "keep_best", "jacobian_reg": 0.0, "compile": False}
    assert fixed.items() <= options["train"].items()
    assert "profile" not in options and "name" not in options["model"]


def test_every_option_but_profile_and_name_enters_the_id():
    base = RunConfig(model=ModelConfig(kind="deq"))
    others = [
        base.replace(seed=1),
        base.replace(data=DataConfig(n_max=5)),
        base.replace(data=DataConfig(subset_seed=0)),
        base.replace(data=DataConfig(imbalance="step", num_majority=3, ratio=10.0)),
        base.replace(model={"width": 8}),
        base.replace(model={"head": "etf"}),
        base.replace(model={"solver": {"tol": 1e-4}}),
        base.replace(model={"gradient": {"steps": 5}}),
        base.replace(train={"precision": "bfloat16"}),
        base.replace(train={"loss": "class_balanced"}),
        base.replace(train={"optimiser": "adam"}),
    ]
    assert len({run_id(config) for config in [base, *others]}) == 1 + len(others)
    assert run_id(base.replace(profile="quick")) == run_id(base)
    assert run_id(base.replace(model={"name": "mine"})) == run_id(base)


def test_defaults_are_filled_in_so_that_two_ways_of_writing_are_one_run():
    solver = SolverConfig(method="broyden", tol=1e-3, max_steps=20, history=20)
    gradient = GradientConfig(method="implicit")
    long = ModelConfig(
        kind="deq", cell="residual", groups=8, start="x", solver=solver, gradient=gradient
    )
    assert run_id(RunConfig(model=ModelConfig(kind="deq"))) == run_id(RunConfig(model=long))
    assert run_id(RunConfig(seed=np.int64(3))) == run_id(RunConfig(seed=3))


def test_a_configuration_comes_back_from_json_with_its_id():
    images = {"imbalance": "step", "num_majority": 3, "ratio": 10.0, "n_max": 50}
    network = {"kind": "deq", "width": 4, "gradient": {"method": "phantom"}}
    config = RunConfig(
        data=images, model=network, train=recipe("paper", epochs=2), seed=3, profile="quick"
    )
    for text in (config.model_dump_json(), json.dumps(config.canonical() | {"profile": "quick"})):
        again = RunConfig(**json.loads(text))
        assert again == config
        assert run_id(again) == run_id(config)


def test_options_that_came_later_stay_out_of_older_ids():
    text = RunConfig(
        data=DataConfig(subset_seed=None), model=ModelConfig(head="linear")
    ).model_dump_json()
    later = ("subset_seed", "head", "source", "name", "optimiser", "loss")
    assert not any(f'"{name}"' in text for name in later)


def test_an_analysis_has_the_seed_and_the_parts_of_its_base():
    base = RunConfig(model=ModelConfig(kind="deq", name="mine"), seed=5, profile="quick")
    analysis = PostHocConfig(kind="analysis", base=base)
    assert (analysis.seed, analysis.profile, analysis.needs()) == (5, "quick", base)
    assert (analysis.data, analysis.model, analysis.train) == (base.data, base.model, base.train)
    assert analysis.canonical()["base"] == base.canonical()


# --- Defaults -------------------------------------------------------------------------------------


def test_recipes_state_the_papers_protocol_and_a_workable_one():
    literal = recipe("paper")
    assert (literal.lr, literal.schedule, literal.clip) == (1e-4, "constant", None)
    assert (literal.momentum, literal.weight_decay) == (0.9, 5e-4)
    assert (literal.epochs, literal.batch_size) == (100, 128)
    workable = recipe("workable")
    assert (workable.lr, workable.schedule, workable.clip) == (0.1, "cosine", 1.0)


def test_settings_by_name():
    assert setting("balanced") == setting(None) == "balanced"
    assert setting("step", 3, 10.0) == "KA3-R10"
    assert setting("exponential", None, 2.5) == "exp-R2.5"


def test_majority_classes_of_digit_pairs_are_drawn_at_random():
    step = {"imbalance": "step", "num_majority": 5, "ratio": 10.0}
    assert DataConfig(dataset="digit_pairs", **step).majority == "random"
    assert DataConfig(dataset="digits", **step).majority == "first"


@pytest.mark.parametrize(
    ("epoch", "evaluated"),
    [
        (1, {"train": True, "test": False}),
        (2, {}),
        (25, {"train": True, "test": False}),
        (51, {"test": False}),
        (60, {"train": True, "test": False}),
    ],
)
def test_epochs_that_are_evaluated(epoch, evaluated):
    assert TrainConfig(epochs=60, log_every=25).evaluated(epoch) == evaluated


def test_a_configuration_is_changed_by_a_copy():
    with pytest.raises(Exception, match="frozen"):
        TrainConfig().epochs = 3
    assert TrainConfig().replace(epochs=3).epochs == 3


def test_a_mapping_changes_the_options_that_it_names_alone():
    model = {"kind": "deq", "width": 4, "solver": {"max_steps": 9}, "cell": "mdeq"}
    config = RunConfig(train={"epochs": 2, "lr": 0.05}, model=model)
    assert config.replace(train={"epochs": 5}).train == TrainConfig(epochs=5, lr=0.05)
    assert config.replace(model={"solver": {"tol": 0.1}}).model.solver == SolverConfig(
        tol=0.1, max_steps=9
    )
    assert config.replace(model=ModelConfig()).model == ModelConfig()
    assert config.replace(train=TrainConfig(epochs=5)).train.lr == 0.1


def test_a_configuration_needs_no_torch():
    code = "from nclib.config import *; run_id(RunConfig()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"import sys; {code}"], check=True, timeout=60)


# --- What is refused ------------------------------------------------------------------------------


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
        (lambda: ModelConfig(kind="deq", cell="residua"), "residua", "residual"),
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
        lambda: TrainConfig(epochs=0),
        lambda: TrainConfig(lr=float("nan")),
        lambda: TrainConfig(jacobian_reg=0.1),
        lambda: ModelConfig(width=-1),
        lambda: ModelConfig(kind="deq", solver="anderson"),
        lambda: SolverConfig(tol=0.0),
        lambda: DataConfig(imbalance="step", num_majority=3, ratio=0.5),
        lambda: RunConfig(seed=-1),
        lambda: RunConfig(data=None),
    ],
)
def test_wrong_types_and_values_are_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ModelConfig(kind="explicit", solver=SolverConfig()),
            "solver does not apply to kind 'explicit'",
        ),
        (lambda: ModelConfig(kind="explicit_flops"), "kind 'explicit_flops' needs num_blocks"),
        (lambda: ModelConfig(name="deq"), "'deq' is a kind of model"),
        (lambda: SolverConfig(method="fixed_point", history=3), "history does not apply"),
        (lambda: GradientConfig(damping=0.5), "damping does not apply to method 'implicit'"),
        (lambda: GradientConfig(method="unrolled"), "needs steps"),
        (lambda: DataConfig(ratio=10.0), "ratio does not apply to imbalance 'balanced'"),
        (lambda: DataConfig(imbalance="step", ratio=10.0), "needs num_majority"),
        (lambda: DataConfig(dataset="folder:some/where"), "resolve_dataset"),
        (lambda: RunConfig(train={"loss": "ldam_drw"}), r"needs ModelConfig\(head='cosine'\)"),
        (
            lambda: RunConfig().replace(model={"kind": "explicit", "unroll": 2}),
            "unroll does not apply",
        ),
    ],
)
def test_options_that_do_not_apply_are_refused(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()


# --- A cell of a user's own -----------------------------------------------------------------------

EXAMPLE = "nclib.papers.neural_collapse.example_cell:ExampleCell"


def test_the_digest_of_the_example_cell_is_that_of_its_stored_runs():
    assert ModelConfig(kind="deq", cell=EXAMPLE).source == "3a77f12f0e7855e7"


def test_another_cell_has_another_source_and_no_name():
    config = ModelConfig(kind="deq", cell=EXAMPLE, name="example")
    assert config.replace(width=8).name == "example"
    ours = config.replace(cell="residual")
    assert (ours.source, ours.name, ours.own_cell) == (None, None, None)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module of a user's own, and its file."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"cells_{tmp_path.name.replace('-', '_')}"
    file = tmp_path / f"{name}.py"
    file.write_text("FACTOR = 0.5\n")
    return name, file


def test_an_edited_module_is_loaded_again_and_has_another_digest(module):
    name, file = module
    assert import_object(f"{name}:FACTOR") == 0.5
    before = ModelConfig(kind="deq", cell=f"{name}:FACTOR")
    file.write_text("FACTOR = 0.25\n")
    assert ModelConfig(kind="deq", cell=f"{name}:FACTOR").source != before.source
    assert import_object(f"{name}:FACTOR") == 0.25
    with pytest.raises(
        ConfigError, match="changed since this run was configured: configure it anew"
    ):
        import_object(before.cell, before.source)


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("no_such_module:Cell", "found no module 'no_such_module' on the Python path"),
        ("__main__:Cell", r"write it to a \.py file"),
        ("my cells", "package.module:Class of your own"),
    ],
)
def test_a_cell_that_is_not_there_is_refused_when_it_is_configured(cell, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ModelConfig(kind="deq", cell=cell)


@pytest.mark.parametrize("text", ["raise KeyError(1)", "def", "OTHER = 1"])
def test_a_module_that_cannot_be_imported_or_has_not_the_name_is_told(module, text):
    name, file = module
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"{name}:FACTOR cannot be imported"):
        import_object(f"{name}:FACTOR")
