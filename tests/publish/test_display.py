"""Pictures carry their words."""

import base64
import re

import matplotlib.pyplot as plt

from nclib.publish.plotting import display


def test_a_picture_is_html_with_its_words_and_can_still_be_saved(tmp_path):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([1, 2])
    page = display.picture(fig, 'Rising line, "steep" <b>\n  and straight.').data
    assert 'alt="Rising line, &quot;steep&quot; &lt;b&gt; and straight." width="288"' in page and "\n" not in page
    assert base64.b64decode(re.search(r"base64,([^\"]+)", page).group(1)).startswith(b"\x89PNG")
    assert fig.number not in plt.get_fignums()
    fig.savefig(tmp_path / "later.png")
