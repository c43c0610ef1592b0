"""The names at the top of nclib and of each paper: few, lazy, and the same for Python and for type checkers."""

import ast
import doctest
import enum
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import nclib

PACKAGE = Path(nclib.__file__).parent
ROOT = PACKAGE.parent
STUBS = [stub for package in ("nclib",) for stub in (ROOT / package).rglob("__init__.pyi")]
LAZY = sorted(".".join(stub.parent.relative_to(ROOT).parts) for stub in STUBS)
PUBLIC = [name for name in nclib.__all__ if not inspect.ismodule(getattr(nclib, name))]
PAPERS = [f"nclib.papers.{name}" for name in ("kernel_equivalence", "neural_collapse", "separation_bias")]


def test_every_paper_is_lazy():
    assert {"nclib", *PAPERS} <= set(LAZY)


@pytest.mark.parametrize("package", LAZY)
def test_a_stub_is_what_its_package_offers(package):
    """What type checkers read is the module a name is defined in, or a package that offers it."""
    module = import_module(package)
    names = []
    for node in ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            assert alias.asname == alias.name, "only `as` makes a name of a stub public"
            home = import_module(f"{package}.{node.module or alias.name}")
            assert getattr(module, alias.name) is (getattr(home, alias.name) if node.module else home)
            names.append(alias.name)
    assert sorted(names) == module.__all__ == dir(module)


def test_names_cost_nothing_until_they_are_used():
    code = f"import sys, nclib, {', '.join(PAPERS)}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "numpy", "pandas", "matplotlib", "pydantic"} & set(done.stdout.split())


def _sections(text):
    """What stands below each numpydoc heading of a docstring."""
    return dict(re.findall(r"^(\w+)\n---+\n(.*?)(?=\n\n\w+\n---|\Z)", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", PUBLIC)
def test_the_numpydoc_of_a_name_tells_every_parameter_and_what_comes_back(name):
    thing = getattr(nclib, name)
    text = inspect.getdoc(thing)
    if inspect.isclass(thing) and issubclass(thing, (Exception, enum.Enum)):
        return  # they take nothing
    sections, signature = _sections(text), inspect.signature(thing)
    told = sections.get("Parameters") or sections.get("Attributes", "")
    names = ", ".join(re.findall(r"^(\w[\w, ]*) :", told, flags=re.MULTILINE))
    assert set(signature.parameters) <= set(names.split(", ")) | {""}
    assert "Returns" in sections or inspect.isclass(thing) or signature.return_annotation == "None"
    assert not re.search(r"^(Args|Arguments|Parameters|Returns|Raises)[: ]", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("NCLIB_RESULTS", str(tmp_path))
    text = inspect.getdoc(getattr(nclib, name))
    assert ">>> " in _sections(text)["Examples"]
    test = doctest.DocTestParser().get_doctest(text, {name: getattr(nclib, name) for name in PUBLIC}, name, None, 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert not said, "".join(said)
