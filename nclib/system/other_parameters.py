"""Results of parameters that are not the profile's own: the folder they lie in."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nclib.system import processes

SET_BY_THE_COMMAND = ("profile", "train")
"""Parameters that ``nclib reproduce`` sets itself in the notebooks that declare them."""


@contextlib.contextmanager
def results_with(name: str) -> Iterator[None]:
    """Within the block, and in processes started there, the results of a profile are those of other parameters:
    ``results/<profile>/with/<name>/``; of the profile's own where the name is "". Names are made by `folder_name`."""
    with processes.environment_restored(["NCLIB_WITH"]):
        os.environ["NCLIB_WITH"] = name
        yield


def folder_name(values: Mapping[str, Any]) -> str:
    """Parameters as the name of a folder, "epochs=3,seeds=5"; "" for none. Where letters must be replaced, or the name
    would be too long, a digest makes it unique."""
    text = ",".join(f"{name}={value}" for name, value in sorted(values.items()))
    name = re.sub(r"[^a-z0-9_.=@,+-]", "-", text)
    if name == text and len(name) <= 120:
        return name
    return f"{name[:110]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
