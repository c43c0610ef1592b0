"""The names at the top of nclib: few, lazy, documented, and with examples that run."""

import ast
import doctest
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import nclib

PAPERS = [
    f"nclib.papers.{name}" for name in ("kernel_equivalence", "neural_collapse", "separation_bias")
]
PUBLIC = [name for name in nclib.__all__ if not inspect.ismodule(getattr(nclib, name))]
MODULES = sorted(module.name for module in pkgutil.walk_packages(nclib.__path__, "nclib."))


def test_the_stub_is_what_the_package_offers():
    """What type checkers read is the module in which a name is defined."""
    names = []
    stub = Path(nclib.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    for node in ast.parse(stub).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            assert alias.asname == alias.name, "only `as` makes a name of a stub public"
            if node.module:
                home = import_module(f"nclib.{node.module}")
                assert getattr(nclib, alias.name) is getattr(home, alias.name)
            names.append(alias.name)
    assert sorted(names) == nclib.__all__ == dir(nclib)


def test_names_cost_nothing_until_they_are_used():
    code = f"import sys, nclib, {', '.join(PAPERS)}; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "numpy", "pandas", "matplotlib", "pydantic"} & set(done.stdout.split())


def _sections(text):
    """What stands below each numpydoc heading of a docstring."""
    heading = r"^(\w+)\n---+\n(.*?)(?=\n\n\w+\n---|\Z)"
    return dict(re.findall(heading, text, flags=re.MULTILINE | re.DOTALL))


def test_the_docstring_of_a_name_has_every_parameter_what_comes_back_and_an_example():
    for name in PUBLIC:
        thing = getattr(nclib, name)
        sections = _sections(inspect.getdoc(thing))
        signature = inspect.signature(thing)
        described = sections.get("Parameters") or sections.get("Attributes", "")
        names = ", ".join(re.findall(r"^(\w[\w, ]*) :", described, flags=re.MULTILINE))
        assert set(signature.parameters) <= {*names.split(", "), ""}, name
        returns = "Returns" in sections or signature.return_annotation == "None"
        assert inspect.isclass(thing) or returns, name
        assert ">>> " in sections["Examples"], name


def test_the_examples_run():
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    for name in MODULES:
        outcome = doctest.testmod(import_module(name), optionflags=flags)
        assert outcome.failed == 0, name
