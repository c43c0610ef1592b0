"""Pictures carry their words, and prose is Markdown."""

import base64
import re

import matplotlib.pyplot as plt
import pytest

from nclib.publish.plotting import display


def test_a_picture_is_html_with_its_words_and_can_still_be_saved(tmp_path):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([1, 2])
    shown = display.picture(fig, 'Rising line, "steep" <b>\n  and straight.')
    page = shown._repr_html_()
    assert 'alt="Rising line, &quot;steep&quot; &lt;b&gt; and straight."' in page and "\n" not in page
    assert base64.b64decode(re.search(r"base64,([^\"]+)", page).group(1)).startswith(b"\x89PNG")
    assert shown.width == 288 and "PNG" not in repr(shown)
    assert fig.number not in plt.get_fignums()
    fig.savefig(tmp_path / "later.png")
    with pytest.raises(ValueError, match="alt is empty"):
        display.picture(fig, " ")
