"""Executed notebooks with their figures and tables, as `nclib reproduce` leaves them."""

import base64
import importlib.util
import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from nclib import figures, paths
from nclib.site import build

needs_sphinx = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in build.NEEDED),
    reason='the web site is made by Sphinx: pip install ".[docs]"',
)


def cell(kind, source, tags=(), outputs=()):
    metadata = {"tags": list(tags)}
    if kind == "markdown":
        return {"cell_type": kind, "id": f"c{abs(hash(source))}", "metadata": metadata, "source": source}
    code = {"execution_count": 1, "outputs": list(outputs)}
    return {"cell_type": kind, "id": f"c{abs(hash(source))}", "metadata": metadata, "source": source, **code}


PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

FORMULAS = r"""Inline $\lVert G\rVert_F$ and $\arg\max_k z_k$ and $\mathbb E[x]$ and $\Bigl(x\Bigr)^{-1}$, displayed

$$\mathrm{NC1} = \tfrac1K \operatorname{tr}(\Sigma_W \Sigma_B^\dagger)$$

In the middle of a paragraph
$$z = f(z, x),$$
and $x$ after it.

| quantity | ideal |
|---|---|
| $\bar h_k$ | 0 |
"""


def write_notebook(name, cells, profile="smoke", **execution):
    noted = {"parameters": {"profile": profile}, "duration": 7.4, "end_time": "2026-03-04T05:06:07.8+00:00"} | execution
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "papermill": noted},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = paths.results(profile) / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def fill(profile="smoke"):
    """Two executed notebooks, two figures, the claims that the scorecard reads, and training records of one run."""
    output = {"output_type": "display_data", "metadata": {}, "data": {"image/png": PICTURE, "text/plain": "Figure"}}
    parameters = 'profile: str = "quick"  # smoke or quick\nepochs: int = 0  # 0 for the profile\'s'
    write_notebook(
        "neural_collapse/fig3",
        [
            cell(
                "markdown", "# Figure 3 · Does it collapse?\n\nA zygomorphic claim.\n\n![Its picture](images/fig3.png)"
            ),
            cell("code", parameters, ["parameters"]),
            cell("code", 'profile = "smoke"', ["injected-parameters"]),
            cell("markdown", f"## What is measured\n\n{FORMULAS}"),
            cell("code", "draw_it()", outputs=[output]),
            cell("markdown", "Next: `fig4` for more, `table9` one day."),
        ],
    )
    picture = paths.results(profile) / "notebooks/neural_collapse/images/fig3.png"
    picture.parent.mkdir()
    picture.write_bytes(base64.b64decode(PICTURE))
    write_notebook("neural_collapse/fig4", [cell("markdown", "# Figure 4's twin · And now?"), cell("code", "1 + 1")])
    fig, _ = plt.subplots(figsize=(2, 1))
    data = pd.DataFrame({"epoch": [1, 2], "value": [0.5, 0.25]})
    caption = "Values <b>at once</b> for K_A=3 | R=10. Profile smoke, 3 seeds, mean * standard deviation."
    figures.save_figure(fig, "neural_collapse/fig3", caption, ["run-1"], profile, data)
    figures.save_figure(fig, "neural_collapse/by_hand", "Profile smoke, drawn by hand.", [], profile)
    claims = {
        "metric": ["nc1_pinv", "nc2_equiangular"],
        "printed": ["DEQ lower", "DEQ equal"],
        "panel": "",
        "difference": [-0.5, 0.25],
    }
    more = {"half": [0.1, 0.5], "detectable": [0.13, 0.66], "seeds": [3, 3]}
    more |= {"verdict": ["as claimed here", "not significant"], "scale": "toy", "remark": [None, "by hand"]}
    figures.save_table(
        pd.DataFrame(claims | more), "neural_collapse/fig3_claims", "Claims, smoke.", ["run-1"], profile
    )
    run = paths.runs() / "run-1" / "provenance.json"
    run.parent.mkdir(parents=True)
    run.write_text(json.dumps({"cost": {"cpu_seconds": 90.0}}))
    return paths.results(profile)


def fill_larger(scale="reduced"):
    """Figure 3 of profile smoke also at a larger scale, and Figure 9 at that scale alone."""
    images = "CIFAR-10, all images"
    with paths.results_with("seeds=2"):
        outputs = [{"output_type": "stream", "name": "stdout", "text": "drawn larger"}]
        parameters = {"parameters": {"profile": "full", "seeds": 2}}
        for name in ("fig3", "fig9"):
            cells = [cell("markdown", f"# Figure {name[3:]} · Larger?"), cell("markdown", "## What is measured")]
            cells.append(cell("code", "draw()", (), outputs))
            write_notebook(f"neural_collapse/{name}", cells, "full", **parameters)
        fig, _ = plt.subplots(figsize=(2, 1.5))
        figures.save_figure(fig, "neural_collapse/fig3", "Larger, profile full.", ["run-2"], "full")
        rows = {"metric": ["nc1_pinv"], "panel": "", "printed": ["DEQ lower"], "difference": [-0.75], "half": [0.2]}
        more = {"detectable": [0.2], "seeds": [2], "verdict": ["supported"], "scale": [scale], "remark": [None]}
        figures.save_table(pd.DataFrame(rows | more), "neural_collapse/fig3_claims", "Full.", ["run-2"], "full")
    said = {"profile": "full", "parameters": {"seeds": 2}, "folder": "full/with/seeds=2"}
    said |= {"scale": scale, "images": images}
    listing = {f"neural_collapse/{name}": said for name in ("fig3", "fig9", "not_drawn")}
    (paths.results("smoke") / "largest.json").write_text(json.dumps(listing))
