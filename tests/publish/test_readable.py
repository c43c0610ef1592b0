"""Tables as people read them: the claim and its verdict first, nothing lost and nothing changed."""

import re

import pandas as pd

from nclib.publish.readable import claim_first, readable

TABLE = pd.DataFrame(
    {
        "metric": ["nc1_pinv", "loss"],
        "difference": [0.123456, float("nan")],
        "half": [1e-7, 2.0],
        "seeds": [3, 3],
        "K_A": pd.array([5.0, None], dtype="Float64"),
        "claim": ["DEQ lower", "a < b"],
        "verdict": ["equal", "reported"],
        "remark": ["", None],
        "scale": ["toy", "toy"],
        "panel": ["a", "b"],
    }
)


def test_panel_claim_and_verdict_come_first_and_remarks_last():
    shown = list(claim_first(TABLE))
    assert shown == ["panel", "K_A", "claim", "metric", "verdict", "scale", "difference", "half", "seeds", "remark"]


def test_names_are_those_of_readers_and_the_table_itself_stays():
    before = TABLE.copy()
    page, text = readable(TABLE)._repr_html_(), repr(readable(TABLE))
    for shown in (page, text):
        assert "NC1, eq. 12" in shown and "± 95 %" in shown and "nc1_pinv" not in shown and "loss" in shown
        assert "0.123" in shown and "1e-07" in shown and not re.search(r"nan|none|\bna\b", shown, re.I)
    assert "a &lt; b" in page
    pd.testing.assert_frame_equal(TABLE, before)


def test_long_sentences_are_whole():
    assert "word " * 40 + "end" in readable(pd.DataFrame({"claim": ["word " * 40 + "end"]}))._repr_html_()
