"""The laboratory: what its panels print is what they do, a training can be stopped at any moment, and bad input starts
nothing."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow
from typer.testing import CliRunner

import nclib as nc
from companion.laboratory import background, compute, figures, panels
from companion.laboratory.base import read_number
from companion.laboratory.panels import OverlayPanel, PlaygroundPanel, SimplexPanel, TracePanel, known_runs, run_label
from companion.laboratory.train_panel import OPTIONS, Choices, TrainPanel
from nclib import training
from nclib.cli import app
from nclib.config import ConfigError, ModelConfig, RunConfig, run_id
from nclib.engine import jobs, options
from nclib.engine.profiles import PROFILES
from nclib.engine.reading import dotted
from nclib.engine.store import DamageWarning, RunStore, default_store
from nclib.metrics import simplex_etf
from nclib.models import build_solver
from nclib.solver import fixed_point
from nclib.system import paths

NOTEBOOK = paths.notebooks() / "explore.ipynb"


def _said(widget):
    """What an HTML widget says, without its tags."""
    return re.sub(r"<[^>]+>", "", widget.value).replace("&quot;", '"').replace("&#x27;", "'").strip()


def _type(panel, **values):
    for label, value in values.items():
        (field,) = (field for key, field in panel.fields.items() if key.split(".")[-1] == label)
        field.value = value


class _Reached(Exception):
    pass


def _parsed(command, monkeypatch):
    """The run that this command line would train."""
    asked = []

    def note(configs):
        asked.extend(configs)
        raise _Reached

    monkeypatch.setattr(options, "check_runs", note)  # the last thing before it trains
    program, *arguments = shlex.split(command)
    assert program == "nclib"
    result = CliRunner().invoke(app.app, arguments)
    assert isinstance(result.exception, _Reached), result.output
    return asked[0]


@pytest.fixture(scope="module", autouse=True)
def _spare_process():
    """One is in the making while the first tests need none."""
    background.prepare()
    yield
    for worker in background._spare:
        worker.process.terminate()
        worker.process.join()


@pytest.fixture
def no_process(monkeypatch):
    """Choosing starts a process that waits; here none is wanted."""
    monkeypatch.setattr("companion.laboratory.train_panel.prepare", lambda: None)


@pytest.fixture
def panel(no_process):
    return TrainPanel("smoke")


@pytest.fixture(scope="module")
def _choosing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("companion.laboratory.train_panel.prepare", lambda: None)
        yield TrainPanel("smoke")


@pytest.fixture
def chooser(_choosing):
    """One panel for all tests that only choose, left as it was."""
    fields = [_choosing.size, *_choosing.fields.values()]
    before = [field.value for field in fields]
    yield _choosing
    with _choosing._silently():
        for field, value in zip(fields, before, strict=True):
            field.value = value
    _choosing._changed("model.kind")


# --- what is printed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kind": "explicit", "seed": "3"},
        {"imbalance": "balanced"},
        {"imbalance": "exponential", "ratio": "2.5"},
        {"K_B": "4", "ratio": "20.5"},
        {"tol": "0.00001", "max_steps": "7", "method": "anderson", "cell": "mdeq"},
        {"kind": "explicit_flops", "num_blocks": "3"},
        {"recipe": "paper", "log_every": "2"},
        {"recipe": "paper", "lr": "0.01"},
        {"n_max": "", "test_per_class": "", "batch_size": "16", "width": "4"},
    ],
    ids=str,
)
def test_the_printed_command_line_is_the_same_run(chooser, values, monkeypatch):
    _type(chooser, **values)
    wanted = chooser.config()
    assert run_id(_parsed(_said(chooser.command), monkeypatch)) == run_id(wanted)
    for key in chooser.fields:
        name = key.split(".")[-1]
        if name in values and "_B" not in name and name != "recipe":
            assert str(dotted(wanted.canonical(), key)) == str(read_number(values[name]) if values[name] else None)
    if "K_B" in values:
        assert wanted.data.num_majority == 10 - int(values["K_B"])
    assert wanted.train.schedule == ("constant" if values.get("recipe") == "paper" else "cosine")


@given(
    st.fixed_dictionaries(
        {"data.dataset": st.sampled_from(["digits", "digit_pairs"]), "model.kind": st.just("deq")},
        optional={
            "data.num_majority": st.integers(1, 9),
            "model.width": st.integers(2, 64),
            "train.epochs": st.integers(1, 300),
            "train.lr": st.floats(1e-8, 10),
            "seed": st.integers(0, 2**31),
        },
    ),
    st.sampled_from([None, "paper"]),
    st.sets(st.sampled_from(["model.solver.tol=1e-07", "train.log_every=3", "model.cell=mdeq", "model.start=zeros"])),
)
@settings(max_examples=40, deadline=None)
def test_any_choice_survives_the_command_line(given_, recipe, extras):
    if "data.num_majority" in given_:
        given_["data.ratio"] = 7.25
    choices = Choices(given_, recipe, tuple(sorted(extras)))
    arguments = shlex.split(choices.command())[2:]
    command = app.typer.main.get_command(app.app).commands["train"]
    read = command.make_context("train", arguments).params
    names = {option.opts[0]: option.name for option in command.params}
    again = {key: read[names[option]] for key, option in OPTIONS.items() if read[names[option]] is not None}
    assert Choices(again, read["recipe"], tuple(read["options"] or ())).config() == choices.config()


@pytest.mark.parametrize("profile", ["smoke", *slow(*(each for each in PROFILES if each != "smoke"))])
def test_the_sizes_of_a_profile_are_those_of_its_runs(chooser, profile):
    chooser.size.value = profile
    assert run_id(chooser.config()) == run_id(nc.experiment("controls", profile)[1])


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("num_majority", "12", "K_A must be a whole number from 1 to 9"),
        ("num_majority", "", "K_A is empty"),
        ("num_majority", "three", "K_A: Input should be a valid integer"),
        ("K_B", "0", "K_A must be a whole number from 1 to 9"),
        ("ratio", "0.5", "R: Input should be greater than or equal to 1"),
        ("tol", "-1", "tolerance: Input should be greater than 0"),
        ("tol", "small", "tolerance: Input should be a valid number"),
        ("max_steps", "0", "evaluations: Input should be greater than or equal to 1"),
        ("width", "0", "width: Input should be greater"),
        ("epochs", "2.5", "epochs: Input should be a valid integer"),
        ("lr", "nan", "learning rate: Input should be a finite number"),
        ("seed", "-1", "seed: Input should be greater than or equal to 0"),
        ("dataset", "digit", "Did you mean 'digits'?"),
        ("dataset", "folder:nowhere", "nowhere"),
    ],
)
def test_bad_input_is_answered_and_starts_nothing(chooser, field, text, says):
    before, picture = chooser.command.value, chooser.image.value
    (box,) = (box for key, box in chooser.fields.items() if key.split(".")[-1] == field)
    usual = box.value
    _type(chooser, **{field: text})
    assert says in _said(chooser.message)
    assert chooser.train.disabled and chooser.resume.disabled
    chooser.start()
    assert chooser.training is None and default_store().ids() == []
    assert chooser.image.value == picture, "what was drawn before stays"
    assert box.value == text, "what was typed stays"
    _type(chooser, **{"num_majority": "3"} if field == "K_B" else {field: usual})
    assert (chooser.command.value, _said(chooser.message)) == (before, "")


def test_what_only_training_would_find_is_found_before(chooser):
    _type(chooser, n_max="500")
    chooser.start()
    assert "has" in _said(chooser.message) and "500" in _said(chooser.message)
    assert chooser.training is None


@pytest.mark.parametrize(("field", "text"), [("tol", "0"), ("max_steps", "many"), ("max_steps", "0")])
def test_a_solver_that_cannot_be_is_refused_in_the_panel(field, text):
    panel = PlaygroundPanel()
    before = panel.image.value
    getattr(panel, field).value = text
    assert f"{field} must be" in _said(panel.message)
    assert panel.image.value == before
    for box in panel.methods.values():
        box.value = False
    panel.tol.value, panel.max_steps.value = "1e-6", "30"
    assert "tick at least one" in _said(panel.message)


# --- training -------------------------------------------------------------------------------------------------


def _until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def _epoch(panel):
    found = re.match(r"epoch (\d+) of", _said(panel.status))
    return int(found.group(1)) if found else -1


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_stopped_continued_and_killed_ends_with_the_same_bits(killed, panel, isolated):
    """Stopped by the button and continued, then killed as the system would; each time the store is sound."""
    _type(panel, n_max="10", epochs="24" if killed else "6")
    config, drawn, store = panel.config(), [], default_store()
    run = run_id(config)
    panel.watch(lambda: drawn.append((background.history_so_far(run), bytes(panel.image.value))))

    panel.train.click()
    assert panel.train.disabled and not panel.stop.disabled
    if killed:
        background.prepare()  # for Continue
    _until(lambda: _epoch(panel) >= 1)
    panel.stop.click()
    stopped = re.fullmatch(r"stopped after epoch (\d+) of \d+", _said(panel.status))
    assert 1 <= int(stopped.group(1)) < config.train.epochs
    assert store.ids() == [] and not panel.resume.disabled and panel.stop.disabled

    if killed:
        panel.resume.click()
        _until(lambda: _epoch(panel) > int(stopped.group(1)))
        os.kill(panel.training._process.pid, signal.SIGKILL)
        panel.wait()
        assert "press Continue" in _said(panel.message) and "failed" in _said(panel.status)
        assert store.ids() == [] and not panel.resume.disabled
        sofar = background.history_so_far(run)
        assert sofar.source == "unfinished" and int(stopped.group(1)) < sofar.epoch < 24
        lengths = [len(seen.history) for seen, _ in drawn]
        assert lengths == sorted(lengths) and len(set(lengths)) >= 2, "the curves grow"
        assert len({picture for _, picture in drawn}) >= 2, "and so does the picture"

    undisturbed = RunStore(isolated / "undisturbed")
    for root in (store.root, undisturbed.root):  # the first goes on from the checkpoint
        jobs.train_run(config, RunStore(root), "cpu")
    assert len(nc.load_run(run).provenance["facts"]["continued_from"]) == 1 + killed
    assert store.load(run).history.equals(undisturbed.load(run).history)
    weights = undisturbed.weights(run)
    assert all(torch.equal(value, weights[name]) for name, value in store.weights(run).items())

    panel.start()
    assert _said(panel.status) == f"finished: {run}" and store.is_sound(run)
    _beside_a_stored_run(panel, run)


def _beside_a_stored_run(train, run):
    """The other panels, with the one that has just been trained."""
    compare = OverlayPanel(train, "smoke")
    compare.live.value = True
    assert "live: digits, DEQ" in compare.table.value
    compare.live.value = False
    compare.ticks[run].value = True
    assert compare.ticked() == [run] and _said(compare.command) == f"nclib runs show {run}"
    history = nc.load_run(run).history
    final = figures.values_of(history, "test", "accuracy_balanced").iloc[-1]
    assert f"{final:.4g}" in compare.table.value

    trace = TracePanel()
    trace.run.value = run
    trace.thumbs[5].click()
    assert trace.index.value == 5
    namespace = {}
    *lines, last = _said(trace.command).splitlines()
    exec("\n".join(lines), namespace)
    assert set(eval(last, namespace)) == {"fixed_point", "anderson", "broyden"}
    config, model, split = compute.open_network(run)
    found = compute.image_traces(run, 5, {"own": build_solver(config.model.solver)})
    _, _, loaders = training.reopen(config, default_store().weights(run), torch.device("cpu"))
    with training.arithmetic(config.train, torch.device("cpu")), torch.no_grad():
        images, _ = next(loaders["test"].in_order())
        own = model(images[5:6])
    assert torch.equal(found.solutions["own"].trace, own.solution.trace)
    assert found.predicted["own"] == int(own.logits.argmax()) and found.label == int(split.test_labels[5])

    simplex = SimplexPanel("smoke")
    simplex.run.value = run
    before = simplex.image.value
    simplex.azimuth.value += 90
    assert simplex.image.value != before and "these three classes alone" in _said(simplex.facts)
    simplex.classes[0].value = simplex.classes[1].value
    assert "three different classes" in _said(simplex.message)


def test_what_is_stored_is_shown_and_not_trained_again(panel):
    config = panel.config()
    jobs.train_run(config, default_store(), "cpu")
    again = TrainPanel("smoke")
    assert _said(again.status) == f"finished: {run_id(config)}"
    again.start()
    assert again.training is None and _said(again.status) == f"finished: {run_id(config)}"


def test_an_interrupt_ends_the_answer_and_nothing_else(chooser, monkeypatch):
    """One that left the handler of a widget would end the message loop of the kernel."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(figures, "progress", interrupted)
        try:
            _type(chooser, epochs="7")
        except KeyboardInterrupt:
            pytest.fail("it left the handler")
    assert "interrupted" in _said(chooser.message)
    _type(chooser, epochs="8")
    assert _said(chooser.message) == "" and "--epochs 8" in _said(chooser.command)


def test_a_run_that_fails_says_why(panel):
    _type(panel, lr="1e30", epochs="3", kind="explicit")
    panel.start()
    panel.wait()
    assert "TrainingDiverged" in _said(panel.message) and "se a lower learning rate" in _said(panel.message)
    assert _said(panel.status) == "failed: see above" and not panel.train.disabled


@pytest.mark.slow
def test_a_killed_session_leaves_no_process(isolated):
    code = """
import os, signal
from companion.laboratory import background
background.prepare()
print(background._spare[0].process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    pid = int(done.stdout)

    def ended():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]  # ended, and nobody has asked how

    _until(ended)


# --- without and with runs ------------------------------------------------------------------------------------


def test_panels_stand_without_any_run(no_process, isolated, monkeypatch):
    monkeypatch.setenv("NCLIB_ROOT", str(isolated))  # no reference results either
    train = TrainPanel("smoke")
    panels = [train, OverlayPanel(train), TracePanel(train), SimplexPanel(), PlaygroundPanel()]
    for panel in panels[:3] + panels[4:]:
        assert _said(panel.message) == "" and bytes(panel.image.value).startswith(b"\x89PNG")
    assert "no run with features is stored" in _said(panels[3].message)
    assert _said(train.status) == "not trained yet: press Train"


def test_a_panel_is_a_widget_with_a_picture_for_places_without_a_kernel():
    panel = PlaygroundPanel()
    shown = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert shown["text/html"].startswith("<img src=") and f'alt="{panel.alt}"' in shown["text/html"]


def test_reference_runs_can_be_ticked_and_found():
    panel = OverlayPanel()
    first = [run_id(config) for config in nc.experiment("fig2", "quick")[:2]]
    assert panel.ticked() == first
    panel.filter.value = "digits exponential seed=2"
    shown = [tick.description for tick in panel.list.children]
    assert len(shown) > 2 and all("exponential" in text and "seed=2" in text for text in shown[2:])
    panel.clear.click()
    assert panel.ticked() == [] and "tick a run" in _said(panel.command)
    panel.metrics.value = ()
    assert "at least one quantity" in _said(panel.message)


def test_every_known_run_has_a_label_of_its_own():
    labels = {run_label(run, config) for run, config in known_runs().items()}
    assert len(labels) == len(known_runs()) > 100


def test_a_damaged_run_is_named_and_does_not_close_the_laboratory():
    folder = paths.runs() / "digits-balanced-deq-s0-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "DONE").write_text("{}")
    (folder / "config.json").write_text("junk")
    for look in (known_runs, panels._deq_runs):
        with pytest.warns(DamageWarning, match=f"{folder.name}.*left out"):
            assert folder.name not in str(look())


def test_a_network_of_ones_own_is_listed(monkeypatch):
    config = RunConfig(model=ModelConfig(kind="network", network="mynet:small", source="0" * 16)).canonical()
    assert "mynet:small" in run_label("own-0123456789ab", config)


# --- playground -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", compute.MAPS)
@pytest.mark.parametrize("method", ["fixed_point", "anderson", "broyden"])
def test_a_walk_is_what_the_solver_does(name, method):
    f, solver = compute.plane_map(name, 0.7), compute.solver_methods(1e-8, 40)[method]
    start = torch.tensor([[-1.5, 0.8]], dtype=torch.float64)
    walk = compute.solver_walk(f, solver, (-1.5, 0.8))
    assert torch.equal(walk.solution.trace, fixed_point(f, solver, start).trace)
    assert walk.points.shape == (walk.solution.num_evals, 2)
    z = torch.from_numpy(walk.points)
    residual = (f(z) - z).norm(dim=1) / (f(z).norm(dim=1) + 1e-8)
    assert torch.allclose(residual, walk.solution.trace[:, 0], rtol=1e-12, atol=1e-15)


def test_linear_maps_have_the_eigenvalues_they_say():
    for name, wanted in {"symmetric": [0.8, -0.4], "rotation": [0.8j, -0.8j], "shear": [0.8, 0.8]}.items():
        f = compute.plane_map(name, 0.8)
        at = torch.zeros(1, 2, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda z, f=f: f(z)[0], at)[:, 0]
        found = np.sort_complex(np.linalg.eigvals(jacobian.numpy()))
        assert np.allclose(found, np.sort_complex(np.array(wanted, dtype=complex)), atol=1e-6)
        assert torch.allclose(f(torch.tensor([[1.0, 0.5]]).double()), torch.tensor([[1.0, 0.5]]).double())


def test_the_field_is_the_residual_at_each_point_of_the_grid():
    xs, ys = np.array([0.0, 3.0]), np.array([0.0, 4.0, 8.0])
    field = compute.residual_field(lambda z: 0.25 * z, xs, ys)
    np.testing.assert_allclose(field, [[0, 2.25], [3, 3.75], [6, 0.75 * 73**0.5]])


def test_the_printed_lines_of_the_playground_give_what_is_drawn():
    panel = PlaygroundPanel()
    panel.map.value, panel.strength.value, panel.start[0].value = "tanh", 1.75, 0.3
    namespace = {}
    *lines, last = _said(panel.command).splitlines()
    exec("\n".join(lines), namespace)
    points = eval(last, namespace)
    assert all(np.array_equal(points[name], walk.points) for name, walk in panel.walks.items())
    before = panel.image.value
    panel.step.value = 2
    assert panel.image.value != before


def test_three_classes_at_a_simplex_are_the_ideal_triangle():
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    means = simplex_etf(3, 6).numpy() @ turned
    labels = np.repeat([4, 7, 9], 5)
    rows = np.zeros((10, 6))
    rows[[4, 7, 9]] = 3 * means
    features = means[np.repeat(range(3), 5)] + 5.0
    seen = compute.class_triangle(features, labels, rows, [4, 7, 9])
    assert np.allclose(seen.means, seen.ideal, atol=1e-12) and np.allclose(seen.weights, seen.means, atol=1e-12)
    assert all(value < 1e-7 for value in seen.facts.values())
    spread = features + np.random.default_rng(1).normal(size=features.shape) * 0.1
    seen = compute.class_triangle(spread, labels, rows, [4, 7, 9])
    distances = np.linalg.norm(seen.means[:, None] - seen.means[None], axis=2)
    raw = np.stack([spread[labels == k].mean(0) for k in (4, 7, 9)])
    apart = np.linalg.norm(raw[:, None] - raw[None], axis=2)
    assert np.allclose(distances / distances.max(), apart / apart.max()), "no length in the plane is lost"
    with pytest.raises(ConfigError, match="three different classes"):
        compute.class_triangle(features, labels, rows, [4, 4, 9])


def test_an_image_that_is_not_there_is_refused():
    config = nc.experiment("fig2", "smoke")[1]
    with pytest.raises(ConfigError, match="type a number from 0 to 99"):
        compute.image_traces(config, 100, compute.solver_methods(1e-3, 5))
    with pytest.raises(ConfigError, match="choose a run of kind 'deq'"):
        compute.image_traces(nc.experiment("fig2", "smoke")[0], 0, compute.solver_methods(1e-3, 5))


# --- the notebook ---------------------------------------------------------------------------------------------


def _code():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_stored_without_outputs_and_calls_public_names_only():
    for cell in _code():
        assert cell["outputs"] == [] and cell["execution_count"] is None
        text = "".join(cell["source"])
        assert not re.search(r"^\s*[%!]", text, re.MULTILINE)
        for node in ast.walk(ast.parse(text)):
            assert not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nc":
                assert node.attr in (*nc.__all__, "laboratory")


def test_the_notebook_runs_in_smoke_size(no_process, monkeypatch):
    namespace = {}
    for cell in _code():
        exec(compile("".join(cell["source"]), "explore", "exec"), namespace)
        if "parameters" in cell["metadata"].get("tags", []):
            namespace["profile"] = "smoke"
    plt.close("all")
    assert isinstance(namespace["training"].config(), RunConfig)
    for name in ("training", "comparison", "image", "triangle", "playground"):
        assert namespace[name].picture().alt


@pytest.mark.slow
def test_the_notebook_runs_headless_and_keeps_pictures(isolated):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(isolated)}}
    ).execute()
    pictures = [out["data"]["text/html"] for cell in notebook.cells for out in cell.get("outputs", ()) if "data" in out]
    assert len(pictures) == 5 and all(picture.startswith("<img") for picture in pictures)
