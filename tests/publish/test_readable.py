"""Tables as people read them: the claim and its verdict first, and nothing changed."""

import re
from types import SimpleNamespace

import IPython
import pandas as pd
from IPython.core.formatters import DisplayFormatter

from nclib.publish import notes, plotting

TABLE = pd.DataFrame({"metric": ["nc1_pinv", "loss"], "difference": [-0.123456, float("nan")], "half": [1e-7, 2.0]})
COUNTS = {"settings_found": [4, 0], "settings_planned": [9, None], "K_A": pd.array([5.0, None], dtype="Float64")}
CLAIMS = {"claim": ["a < b, DEQ / explicit", "word " * 40 + "end"], "verdict": ["equal", "reported"]}
TABLE = TABLE.assign(**COUNTS, **CLAIMS, remark=["", None], scale="toy", lead=[True, False])


def test_names_are_those_of_readers_sentences_are_whole_and_the_table_itself_stays():
    before = TABLE.copy()
    page, text = notes.readable(TABLE)._repr_html_(), repr(notes.readable(TABLE))
    for shown in (page, text):
        assert "NC1, eq. 12" in shown and "± 95 %" in shown and "nc1_pinv" not in shown and "4 of 9" in shown
        assert "−0.123" in shown and "1e−07" in shown and not re.search(r"nan|none|\bna\b", shown, re.I)
    assert "a &lt; b, DEQ / ResNet-18" in page and "word " * 40 + "end" in page
    pd.testing.assert_frame_equal(TABLE, before)


def test_other_tables_of_a_notebook_have_minus_signs_too(monkeypatch):
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    plotting.use_style()
    page = shell.display_formatter.format(pd.DataFrame({"run": ["deq-s0-7a"], "change": [-1.5e-07]}))[0]["text/html"]
    assert "−1.500000e−07" in page and "deq-s0-7a" in page
