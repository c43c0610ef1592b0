"""Certificates: each is ok, each can fail, and what the command says."""

import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from fractions import Fraction as F
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from nclib import cli, paths
from nclib.papers import certify
from nclib.papers.exact import identity

PAPERS = Path(certify.__file__).parent
CERTIFICATES = [PAPERS / f"{module.replace('.', '/')}.py" for module in certify._MODULES]
FIRST = list(certify.STATEMENTS)
VERDICTS = {
    "lemma_b1": "holds",
    "remark_b2": "typo",
    "thm31_nc1": "holds",
    "thm31_nc2": "holds",
    "thm31_nc3": "holds",
    "thm_b3": "false",
    "thm41_nc1": "holds",
    "thm41_nc2": "vacuous",
    "thm41_nc3": "false",
    "prop42": "holds if √(E_W E_H) ≤ E0",
}

CLAIMED = []
for _name in certify.ids():
    _, _check = certify._ENTRIES[_name]
    for _number in inspect.signature(_check).parameters.values():
        CLAIMED.append((_name, _number))


def others(value):
    """What a claimed number might have been instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        changed = []
        for place, part in enumerate(value):
            changed += [(*value[:place], new, *value[place + 1 :]) for new in others(part)]
        return changed
    instead = [2 * value, -value, value + 1, 10 * value, 100 * value, 0 * value, value**0]
    instead.append(-(10**5) * value)
    if isinstance(value, F):
        instead += [value / 2, value / 100]
    return instead


def nclib(*arguments):
    result = CliRunner().invoke(cli.app, ["certify", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def all_results():
    return {result.id: result for result in certify.certify()}


# --- the certificates -----------------------------------------------------------------------------


def test_each_certificate_is_ok(all_results):
    for result in all_results.values():
        assert result.ok, result.certificate


@pytest.mark.slow
def test_each_certificate_can_fail_by_each_of_its_numbers():
    for name, claimed in CLAIMED:
        failures = []
        for value in others(claimed.default):
            result = certify._run(name, **{claimed.name: value})
            if not result.ok and "TypeError" not in result.certificate:
                failures.append(result.certificate)
                break
        assert failures, f"{name} is ok whatever {claimed.name} is"
        assert "FAILED: " in failures[0], name


def test_each_certificate_claims_a_number():
    assert {name for name, _ in CLAIMED} == set(certify.ids())


@pytest.mark.parametrize("matrix", ["W", "W_DEQ", "H0"])
def test_a_matrix_longer_than_its_partner_has_no_certificate(matrix):
    from nclib.papers.neural_collapse import statements

    unit = identity(2)
    point = {"W": unit, "W_DEQ": unit, "H0": unit}
    point[matrix] = F(11, 10) * unit
    logits = point["W"] @ point["H0"]
    limits = (unit, unit, unit)
    with pytest.raises(certify.NotCertified, match=f"the budget of {matrix}$"):
        statements._reaches(logits, limits, point["W"], unit, point["W_DEQ"], point["H0"])


def test_the_verdicts_on_the_ten_statements(all_results):
    assert certify.ids()[: len(FIRST)] == FIRST
    assert {name: all_results[name].verdict for name in FIRST} == VERDICTS
    assert all(all_results[name].reading == "as printed" for name in FIRST)


def test_the_two_false_statements_have_a_second_derivation():
    false = {name for name, verdict in VERDICTS.items() if verdict == "false"}
    assert set(certify._SECOND) == false


def test_second_derivations_share_no_code_with_the_first():
    """They use nothing of `exact`, and none of the functions above them."""
    source = (PAPERS / "neural_collapse/statements.py").read_text(encoding="utf-8")
    first, second = re.split(r"^# --- second derivations.*$", source, flags=re.MULTILINE)
    defined = {node.name for node in ast.parse(first).body if isinstance(node, ast.FunctionDef)}
    imported = set()
    for node in ast.parse(first).body:
        if isinstance(node, ast.ImportFrom) and node.module == "nclib.papers.exact":
            imported.update(alias.name for alias in node.names)
    assert "etf_loss" in imported and "thm_b3" in defined
    used = {node.id for node in ast.walk(ast.parse(second)) if isinstance(node, ast.Name)}
    assert "infima_by_duality" in second and not used & (defined | imported)


def test_no_floating_point_number_in_a_certificate():
    for path in CERTIFICATES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            constant = isinstance(node, ast.Constant) and isinstance(node.value, float)
            call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float"
            assert not (constant or call), f"{path}:{node.lineno}"


def test_only_the_standard_library_is_needed_and_no_file_of_a_clone():
    blocked = ("torch", "numpy", "pandas", "scipy", "pydantic", "typer", "sympy", "nclib.paths")
    lines = [
        "import sys",
        f"sys.modules.update(dict.fromkeys({blocked!r}))",  # an import of None fails
        "from nclib.papers import certify",
        "assert all(result.ok for result in certify.certify())",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=PAPERS.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything():
    result = nclib()
    assert result.exit_code == 0 and result.stderr == ""
    return result.stdout


def test_one_short_line_a_certificate(everything):
    lines = everything.splitlines()
    known = certify.ids()
    assert max(map(len, lines)) <= 100 and len(lines) == len(known) + 15
    assert [line.split()[1] for line in lines[1 : len(known) + 1]] == known
    pattern = r"^checked  (thm_b3|prop42|h0_given) +(\S+ \S+)"
    shown = dict(re.findall(pattern, everything, re.MULTILINE))
    assert shown == {"thm_b3": "proved false", "prop42": "holds if", "h0_given": "proved false"}


def test_it_ends_with_the_ten_statements(everything, all_results):
    last = everything.splitlines()[-10:]
    for line, (name, (statement, reason)) in zip(last, certify.STATEMENTS.items(), strict=True):
        verdict = all_results[name].verdict.replace("false", "proved false")
        assert re.split(r" {2,}", line) == [statement, verdict, reason]
    assert "H0 free in each problem and the budget E_H on h" in everything.splitlines()[-12]


def test_false_is_never_said_beside_certified(everything):
    assert "certified" not in everything + nclib("thm_b3").stdout
    assert set(re.findall(r"(\w+) +false\b", everything)) == {"proved"}


def test_a_failure_has_no_verdict(monkeypatch):
    monkeypatch.setitem(certify._SECOND, "thm_b3", lambda: False)
    result = nclib()
    assert result.exit_code == 1 and "failed: thm_b3" in result.stderr
    pattern = r"\bthm_b3\b|^Theorem B\.3 "
    lines = [line for line in result.stdout.splitlines() if re.search(pattern, line)]
    assert [line.split()[0] for line in lines] == ["FAILED", "Theorem"]
    assert lines[1].endswith("FAILED")
    assert not any("false" in line for line in lines)


def test_an_unknown_id_names_the_nearest():
    result = nclib("thm_b4")
    assert result.exit_code == 2
    assert "unknown certificate 'thm_b4'; the nearest is 'thm_b3'" in result.stderr


CODE_OF_STEPS = "a5222b616b9aeac59746e42c73f4bfff52ce397c"
"""The commit of the tag certificates-0.2, which still checks each step of the paper's proofs."""

CHECK_STEPS = """
import json
from companion.certify import certify, ids

results = [(result.id, result.verdict, result.ok) for result in certify(ids())]
print(json.dumps(results))
"""


@pytest.mark.slow
def test_each_step_in_the_published_table_is_certified_by_the_archived_code(tmp_path):
    archive = subprocess.run(
        ["git", "archive", CODE_OF_STEPS, "nclib", "companion"],
        cwd=paths.root(),
        capture_output=True,
    )
    if archive.returncode:
        pytest.skip(f"the history without {CODE_OF_STEPS[:8]}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path, filter="data")
    checked = subprocess.run(
        [sys.executable, "-c", CHECK_STEPS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = {name: verdict for name, verdict, ok in json.loads(checked.stdout) if ok}
    steps = pd.read_csv(paths.published() / "sun_shi_2024_steps.csv").set_index("id")["verdict"]
    assert len(steps) == 34
    for name, verdict in steps.items():
        assert verdicts[name] == verdict, name
