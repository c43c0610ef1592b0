"""Certificates: each is ok, each can fail, and what the command says."""

import ast
import inspect
import re
import subprocess
import sys
from fractions import Fraction as F
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nclib.cli import app
from nclib.papers import certify
from nclib.papers.exact import identity

PAPERS = Path(certify.__file__).parent
CERTIFICATES = [PAPERS / f"{module.replace('.', '/')}.py" for module in certify._MODULES]
FIRST = list(certify.STATEMENTS)

CLAIMED = [
    (name, claimed)
    for name in certify.ids()
    for claimed in inspect.signature(certify._ENTRIES[name][1]).parameters.values()
]


def others(value):
    """What a claimed number might have been instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [(*value[:at], new, *value[at + 1 :]) for at in range(len(value)) for new in others(value[at])]
    smaller = [value / 2, value / 100] if isinstance(value, F) else []
    return [2 * value, -value, *smaller, value + 1, 10 * value, 100 * value, 0 * value, value**0, -(10**5) * value]


def nclib(*arguments):
    result = CliRunner().invoke(app.app, ["certify", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def all_results():
    return {result.id: result for result in certify.certify()}


@pytest.mark.parametrize("name", certify.ids())
def test_each_certificate_is_ok(name, all_results):
    result = all_results[name]
    assert result.ok, result.certificate


@pytest.mark.parametrize(("name", "claimed"), CLAIMED, ids=lambda part: getattr(part, "name", part))
def test_each_certificate_can_fail_by_each_of_its_numbers(name, claimed):
    results = (certify._run(name, **{claimed.name: value}) for value in others(claimed.default))
    assert any(not r.ok and "FAILED: " in r.certificate and "TypeError" not in r.certificate for r in results)


@pytest.mark.parametrize("matrix", ["W", "W_DEQ", "H0"])
def test_a_matrix_longer_than_its_partner_has_no_certificate(matrix):
    from nclib.papers.neural_collapse import inputs_bounded  # here: the order of imports is that of the certificates

    unit = identity(2)
    own = {name: F(11, 10) * unit if name == matrix else unit for name in ("W", "W_DEQ", "H0")}
    with pytest.raises(certify.NotCertified, match=f"the budget of {matrix}$"):
        inputs_bounded._reaches(own["W"] @ own["H0"], (unit,) * 3, own["W"], unit, own["W_DEQ"], own["H0"])


def test_the_verdicts_on_the_statements(all_results):
    assert certify.ids()[: len(FIRST)] == FIRST and {name for name, _ in CLAIMED} == set(certify.ids())
    assert len(all_results) == 70
    verdicts = [all_results[name].verdict for name in FIRST]
    assert [verdict.split(" √")[0] for verdict in verdicts] == [
        "holds", "typo", "holds", "holds", "holds", "false", "holds", "vacuous", "false", "holds if",
    ]  # fmt: skip


def test_nothing_is_false_without_a_second_derivation(all_results):
    false = {name for name, result in all_results.items() if result.verdict == "false"}
    assert false == set(certify._SECOND)
    assert "thm_b3" in false and "thm41_nc3" in false


def test_second_derivations_share_no_code_with_the_first():
    tree = ast.parse((PAPERS / "neural_collapse/second.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = {(node.module, alias.name) for node in imports if isinstance(node, ast.ImportFrom)
            for alias in node.names if (node.module or "").startswith("nclib")}  # fmt: skip
    assert ours == {("nclib.papers.certify", "also")}


def test_no_floating_point_number_in_a_certificate():
    for path in CERTIFICATES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float"), path


@pytest.fixture(scope="module")
def everything():
    result = nclib()
    assert result.exit_code == 0 and result.stderr == ""
    return result.stdout


def test_one_short_line_a_certificate(everything):
    lines = everything.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) == len(certify.ids()) + 15
    assert [line.split()[1] for line in lines[1 : len(certify.ids()) + 1]] == certify.ids()
    shown = dict(re.findall(r"^checked  (thm_b3|prop42|step_36) +(\S+ \S+)", everything, re.MULTILINE))
    assert shown == {"thm_b3": "proved false", "prop42": "holds if", "step_36": "proved false"}


def test_it_ends_with_the_ten_statements(everything, all_results):
    last = everything.splitlines()[-10:]
    for line, (name, (statement, brief)) in zip(last, certify.STATEMENTS.items(), strict=True):
        verdict = all_results[name].verdict.replace("false", "proved false")
        assert re.split(r" {2,}", line) == [statement, verdict, brief]
    assert "H0 free in each problem and the budget E_H on h" in everything.splitlines()[-12]


def test_false_is_never_said_beside_certified(everything):
    assert "certified" not in everything + nclib("thm_b3").stdout
    assert set(re.findall(r"(\w+) +false\b", everything)) == {"proved"}


def test_a_failure_has_no_verdict(monkeypatch):
    monkeypatch.setitem(certify._SECOND, "thm_b3", lambda: False)
    result = nclib()
    assert result.exit_code == 1 and "failed: thm_b3" in result.stderr
    lines = [line for line in result.stdout.splitlines() if re.search(r"\bthm_b3\b|^Theorem B\.3 ", line)]
    assert [line.split()[0] for line in lines] == ["FAILED", "Theorem"] and lines[1].endswith("FAILED")
    assert not any("false" in line for line in lines)


def test_an_unknown_id_names_the_nearest():
    result = nclib("thm_b4")
    assert result.exit_code == 2 and "unknown certificate 'thm_b4'; the nearest is 'thm_b3'" in result.stderr


def test_only_the_standard_library_is_needed():
    blocked = ("torch", "numpy", "pandas", "scipy", "pydantic", "typer", "sympy")
    code = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"  # an import of None fails
    code += "from nclib.papers import certify\nassert all(result.ok for result in certify.certify())"
    done = subprocess.run([sys.executable, "-c", code], cwd=PAPERS.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
