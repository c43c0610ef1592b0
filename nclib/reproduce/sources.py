"""Which sources a notebook depends on: those of nclib, and those of the packages that add papers to it but for the
folders of other papers."""

from __future__ import annotations

import functools

from nclib.system import paths, plugins, provenance


class Library:
    """The sources as they are now; made once for each call, since files may change between two."""

    def digests(self, name: str) -> dict[str, str]:
        """Digests by what they are of.

        Parameters
        ----------
        name : "paper/notebook"
        """
        paper, added = name.split("/")[0], plugins.added("experiments")
        others = {point.module.split(".")[1] for other, point in added.items() if other != paper}
        printed = provenance.digest(sorted(paths.published().glob("**/*.csv")))
        return {"the printed numbers": printed} | {
            package: self._digest(package, frozenset(others)) for package in ("nclib", *provenance.packages())
        }

    @functools.cache  # noqa: B019 — lives as long as one call
    def _digest(self, package: str, but: frozenset[str]) -> str:
        folder = provenance.folder(package)
        files = sorted(folder.rglob("*.py"))
        return provenance.digest(path for path in files if path.relative_to(folder).parts[0] not in but)
