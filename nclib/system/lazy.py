"""Packages whose names are imported when they are first used: those that the stub beside each, ``__init__.pyi``, lists.
And one sentence for what is not installed."""

import lazy_loader

attach = lazy_loader.attach_stub


def install(extra: str) -> str:
    """How to install an extra of pyproject.toml: from a clone, as ``nclib`` on the package index is another project."""
    return f'in the clone, type: pip install ".[{extra}]"'
