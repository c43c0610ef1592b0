"""The three sentences of the front page: computed from the tables, and about what is there alone."""

import json

import pandas as pd
import pytest
from executed import cell, write_notebook

from companion.site.amounts import sentences
from companion.site.landing import landing_page
from companion.site.sources import collect
from nclib.publish import artefacts
from nclib.system import other_parameters, paths


def save(name, added, rows, profile="smoke"):
    write_notebook(name, [cell("markdown", f"# {name}")], profile)
    artefacts.save_table(pd.DataFrame(rows), f"{name}{added}", f"Rows, {profile}.", ["run-1"], profile)


def theory(*verdicts):
    rows = [{"claim": f"Theorem {number}", "verdict": verdict} for number, verdict in enumerate(verdicts, 1)]
    save("neural_collapse/theory_layer_peeled", "_statements", rows)


def said():
    return sentences(collect("smoke"))


def test_theorems_are_counted_and_those_that_fall_are_named():
    theory("holds", "false", "vacuous", "holds if E < 1", "false", "typo")
    (sentence,) = said()
    assert sentence.startswith("Of the six theoretical statements of Sun &amp; Shi two hold, Theorem 4 if E &lt; 1 · ")
    assert "two are <b>false</b> (Theorem 2; Theorem 5) · one is a <b>typo</b> (Theorem 6) · one is" in sentence
    theory("holds", "holds")
    assert said()[0].startswith("Of the two theoretical statements of Sun &amp; Shi two hold (")


POOLED = {"change": [6.06, 3.28], "low": [3.63, 1.44], "high": [8.54, 5.15], "seeds": 3}
POOLED |= {"settings_found": 11, "settings_planned": 11}
SETTING = {"explicit": [1.136, 0.97], "deq": [1.116, 0.839], "difference": [-0.02, -0.131], "seeds": 1}
METRICS = {"metric": ["paper_eq13_uncentred", "paper_eq14_uncentred"]}


@pytest.fixture
def experiments():
    save("neural_collapse/collapse", "_pooled", METRICS | POOLED | {"verdict": ["opposite here", "not significant"]})
    more = {"setting": "K_A = 5, R = 100", "printed": "DEQ lower", "verdict": "reported"}
    with other_parameters.results_with("seeds=2"):
        save("neural_collapse/collapse", "_settings", METRICS | SETTING | more, "full")
    listed = {"scale": "reduced", "images": "CIFAR-10, all images", "folder": "full/with/seeds=2"}
    (paths.results("smoke") / "largest.json").write_text(json.dumps({"neural_collapse/collapse": listed}))


def test_the_experiments_are_told_at_each_scale_the_largest_first(experiments):
    (sentence,) = said()
    larger, own = sentence.split("; ")
    assert "on CIFAR-10, all images (reduced scale), in the one setting that is there (one seed)" in larger
    assert "NC2 1.116 against 1.136, <b>reported</b>, and NC3 0.839 against 0.970, <b>reported</b>" in larger
    assert "on digits (toy scale), pooled over 11 of 11 settings with 3 seeds, NC2 +6.1 % (3.6 to 8.5)" in own
    assert "<b>opposite here</b>, and NC3 +3.3 % (1.4 to 5.2), <b>not significant</b> " in own


def test_several_settings_are_counted(experiments):
    rows = {name: values * 2 if isinstance(values, list) else values for name, values in (METRICS | SETTING).items()}
    rows |= {"setting": ["a", "a", "b", "b"], "difference": [-1, 1, -1, -1]}
    rows |= {"printed": "DEQ lower", "verdict": "reported"}
    with other_parameters.results_with("seeds=2"):
        save("neural_collapse/collapse", "_settings", rows, "full")
    assert "NC2 lower in two of two settings and NC3 lower in one of two settings, reported;" in said()[0]


def test_accuracy_stands_beside_them():
    rows = {"metric": "accuracy_balanced", "step": ["cell − explicit", "DEQ − explicit"], "difference": [1.0, -0.1836]}
    save("neural_collapse/equilibrium_or_cell", "_accuracy", rows | {"half": 1.0408, "verdict": "not significant"})
    assert "its accuracy differs by -0.18 ± 1.04 points, <b>not significant</b>" in said()[0]


def test_what_the_sister_papers_state_is_counted_and_what_is_beyond_them_is_not():
    rows = {"claim": ["a", "b", "c"], "part": ["statement", "statement", "beyond the paper"]}
    save("separation_bias/verdicts", "_table", rows | {"verdict": ["holds", "holds", "higher"]})
    save("separation_bias/fig1", "_ledger", {"claim": ["a"], "verdict": ["false"]})
    save("kernel_equivalence/ntk", "_checks", {"claim": ["a", "b"], "verdict": ["supported", "lower"]})
    assert said() == ["Of what the two sister papers state, row by row: Ling et al.: 1 supported; Wu et al.: 2 holds."]


def test_a_table_changed_by_hand_says_nothing_and_the_front_page_leads_with_the_sentences():
    theory("holds")
    front = landing_page(collect("smoke"), [], print)
    assert front.index("nc-amounts") < front.index("This is the companion")
    (paths.results("smoke") / "tables/neural_collapse/theory_layer_peeled_statements.csv").write_text("claim,verdict\n")
    assert said() == [] and "nc-amounts" not in landing_page(collect("smoke"), [], print)
