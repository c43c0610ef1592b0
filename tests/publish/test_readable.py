"""Tables as people read them: the claim and its verdict first, and nothing changed."""

import re

import pandas as pd

from nclib.publish.readable import readable

TABLE = pd.DataFrame(
    {
        "metric": ["nc1_pinv", "loss"],
        "difference": [0.123456, float("nan")],
        "half": [1e-7, 2.0],
        "settings_found": [4, None],
        "settings_planned": [9, None],
        "K_A": pd.array([5.0, None], dtype="Float64"),
        "claim": ["a < b", "word " * 40 + "end"],
        "verdict": ["equal", "reported"],
        "remark": ["", None],
        "scale": ["toy", "toy"],
        "lead": [True, False],
    }
)


def test_names_are_those_of_readers_sentences_are_whole_and_the_table_itself_stays():
    before = TABLE.copy()
    page, text = readable(TABLE)._repr_html_(), repr(readable(TABLE))
    for shown in (page, text):
        assert "NC1, eq. 12" in shown and "± 95 %" in shown and "nc1_pinv" not in shown and "4 of 9" in shown
        assert "0.123" in shown and "1e-07" in shown and not re.search(r"nan|none|\bna\b", shown, re.I)
    assert "a &lt; b" in page and "word " * 40 + "end" in page
    pd.testing.assert_frame_equal(TABLE, before)
