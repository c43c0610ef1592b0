"""Notebooks drawn while runs are trained: what comes first, what is said when."""

import threading
import time

import pytest
from reproduction import figure, run_of, runs_of_seeds, write_notebook

from nclib.config import ConfigError
from nclib.engine import experiments, jobs, profiles
from nclib.reproduce import drawing, execute
from nclib.system import paths


@pytest.fixture
def drawn(bench, monkeypatch):
    """An event for each notebook, set when it has been executed."""
    events = {}

    def note(name, *rest):
        try:
            return bench.execute(name, *rest)
        finally:
            events[name].set()

    for name in ("neural_collapse/fig1", "neural_collapse/fig2", "walkthrough/01"):
        figure(name)
        events[name] = threading.Event()
    monkeypatch.setattr(drawing, "execute", note)
    return events


def test_a_notebook_is_drawn_and_said_while_the_runs_of_others_are_trained(bench, drawn, monkeypatch):
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2",))  # seeds 1 and 2; fig1 has 0 and 1
    begun = []

    def train(config, store, device, progress, log=None):
        begun.append(config.seed)
        limit = time.monotonic() + 60
        while config.seed == 0 and not any(line.startswith("neural_collapse/fig2: executed") for line in bench.said):
            assert time.monotonic() < limit
            time.sleep(0.01)
            progress(0, 1)  # an epoch
        bench.train(config, store, device, progress)

    monkeypatch.setattr(jobs, "make", train)
    assert bench.reproduce().ok
    assert begun[-1] == 0 and len(begun) == 3


def test_what_comes_first_is_drawn_in_its_own_order(bench, drawn, monkeypatch):
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2", "neural_collapse/fig1"))
    order, noted = [], drawing.execute
    monkeypatch.setattr(drawing, "execute", lambda name, *rest: order.append(name) or noted(name, *rest))
    bench.reproduce("walkthrough", "fig1", "fig2")
    bench.reproduce("walkthrough", "fig1", "fig2", force=True)  # all runs are there from the beginning
    bench.reproduce("walkthrough", "fig1", "fig2", force=True, train="never")
    assert order == [*drawing.FIRST, "walkthrough/01"] * 3


def test_what_needs_no_runs_waits_for_what_comes_first(bench, drawn, monkeypatch):
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2",))
    order = []
    noted = drawing.execute
    monkeypatch.setattr(drawing, "execute", lambda name, *rest: order.append(name) or noted(name, *rest))
    bench.reproduce("walkthrough", "fig2", workers=2)
    assert order == ["neural_collapse/fig2", "walkthrough/01"]


def test_what_needs_no_runs_is_drawn_although_what_comes_first_fails(bench, drawn, monkeypatch):
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2",))
    bench.broken[run_of(2)] = RuntimeError("on purpose")
    rows = {row.notebook: row.status for row in bench.reproduce().rows}
    assert rows == {"neural_collapse/fig2": "failed", "neural_collapse/fig1": "executed", "walkthrough/01": "executed"}


def test_runs_that_several_need_have_the_rank_of_the_first(bench, monkeypatch):
    monkeypatch.setattr(drawing, "FIRST", ("neural_collapse/fig2", "neural_collapse/fig1"))
    for name in drawing.FIRST:
        figure(name)
    tasks = [drawing.Task(name, {}, {}, runs) for name, runs in ((drawing.FIRST[0], "ab"), (drawing.FIRST[1], "bc"))]
    ranks = drawing.Drawing(tasks, "smoke", 1, False, False, print).urgent_runs()
    assert ranks == {"a": 0, "b": 0, "c": 1}


PICTURE = """
import matplotlib.pyplot as plt
from nclib.publish.artefacts import save_figure
fig, ax = plt.subplots()
save_figure(fig, "neural_collapse/fig1", f"profile {profile}", [], profile, pd.DataFrame({"x": [1.0]}))
"""


def test_the_path_of_a_picture_is_said_when_it_is_there(bench):
    write_notebook("neural_collapse/fig1", "import pandas as pd", PICTURE)
    assert bench.reproduce().ok
    said = bench.said.index(f"  {paths.results('smoke')}/figures/neural_collapse/fig1.png")
    assert bench.said[said - 1].startswith("neural_collapse/fig1: executed")
    assert any(line.startswith("trained 2 runs") for line in bench.said)


def test_the_site_is_made_with_the_first_page_and_once(bench, drawn, monkeypatch):
    made = []
    monkeypatch.setattr(drawing, "first_site", lambda profile: made.append(profile) or f"/{profile}/index.html")
    assert bench.reproduce(site=True).ok
    assert made == ["smoke"] and "the web site, with what is drawn so far: /smoke/index.html" in bench.said
    bench.reproduce(force=True)
    assert made == ["smoke"]


def test_a_site_that_cannot_be_made_stops_nothing():
    assert execute.first_site("smoke") == ""  # nothing has been executed


def test_nothing_is_drawn_before_what_can_be_refused_was_refused(bench, drawn, monkeypatch):
    narrow = profiles.override(profiles.get_profile("smoke"), width=1)
    monkeypatch.setitem(experiments.known(), "neural_collapse/fig1", lambda profile: runs_of_seeds([0])(narrow))
    with pytest.raises(ConfigError, match="width=2"):
        bench.reproduce()
    assert not bench.executed  # walkthrough/01 needs no runs


def test_one_line_a_notebook_where_nothing_is_to_be_done(bench, drawn):
    bench.reproduce()
    bench.said.clear()
    bench.reproduce()
    table = next(line for line in bench.said if "unchanged" in line).strip().splitlines()
    assert sum("unchanged" in line for line in table) == 3 and len(table) == 5  # with head and rule
    assert len(bench.said) == 3  # the plan, the table, how long it took
