"""Links that run a notebook without installing anything: Binder, Colab and Codespaces."""

from __future__ import annotations

import re

from nclib.system import provenance

BRANCH = "main"
"""Where Colab finds the notebooks."""

COLAB = """\
!git clone -q --depth 1 {address} nclib
%cd nclib
%pip install -q ".[companion,notebooks]\""""
"""The first cell on Colab, which has only the notebook: the project, its folder as the working one, its packages."""


def github_repository() -> str | None:
    """``owner/name`` of the repository on GitHub that this one was cloned from: Binder and Colab read from there."""
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", provenance.git_origin() or "")
    return found[1] if found else None


def elsewhere_links(name: str) -> list[str]:
    """Links that open a notebook on Binder and Colab; none where the repository has no address there."""
    repository = github_repository()
    if not repository:
        return []
    return [f'<a href="{link}">open in {service}</a>' for service, link in services(repository, name).items()]


def services(repository: str, name: str) -> dict[str, str]:
    file = f"notebooks/{name}.ipynb"
    return {
        "Binder": f"https://mybinder.org/v2/gh/{repository}/HEAD?urlpath=lab/tree/{file}",
        "Colab": f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{file}",
    }


def in_a_browser() -> list[str]:
    """The section of the landing page for readers who have installed nothing."""
    repository = github_repository()
    if not repository:
        return []
    return [
        "## In a browser, with nothing installed",
        "Each page has links that open its notebook, to be run and changed, on Binder and Colab; "
        f"[GitHub Codespaces](https://codespaces.new/{repository}) opens the whole project. On Binder and in a "
        "codespace everything is installed. On Colab this comes first, as a cell of its own:",
        f"```\n{COLAB.format(address=f'https://github.com/{repository}')}\n```",
    ]
