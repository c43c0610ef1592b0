"""Certificates: each is ok, each can fail, and what the command says."""

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
import time
from fractions import Fraction as F
from pathlib import Path

import pytest
from typer.testing import CliRunner

from companion import certify
from nclib.cli import app

PAPERS = Path(certify.__file__).parent
CERTIFICATES = [PAPERS / f"{module.replace('.', '/')}.py" for module in certify._MODULES]
FIRST = list(certify.STATEMENTS)
FIELDS = ["id", "paper", "place", "statement", "reading", "verdict", "certificate", "ok", "brief"]

WRONG = {  # a claimed number of each certificate, changed: it must fail
    "lemma_b1": {"equality": F(99, 100)},
    "remark_b2": {"printed": F(1, 4)},
    "thm31_nc1": {"share": F(9, 10)},
    "thm31_nc2": {"scale": F(2)},
    "thm31_nc3": {"trace": F(9, 10)},
    "thm_b3": {"scale": F(2)},
    "thm41_nc1": {"share": F(2)},
    "thm41_nc2": {"least": F(-1000), "square": F(-1), "share": F(-1), "given": F(2), "budget": F(1, 4)},
    "thm41_nc3": {"ceiling": F(1, 2), "same": F(2), "spent": F(2), "most": F(7, 10)},
    "prop42": {"e0": (F(472, 1000), F(17627, 10**4), F(43628, 10**4))},
    "thm41_nc3_eq14": {"ratio": 1},
    "b3_same_inputs_series_from_1": {"scale": F(2)},
    "b3_same_inputs_series_from_0": {"length": F(1), "gain": F(1, 2), "most": F(102, 10**4), "outer": F(2)},
    "h0_given": {"length": F(1, 4), "second": F(1), "opposite": F(-1)},
    "b3_both_budgets": {"scale": F(2)},
    "b3_v2_order": {"scale": F(2)},
    "residual_order": {"scale": F(2), "gain": F(2)},
    "b3_v2_gap": {"share": F(1, 1000), "from_1": F(2, 10**6)},
    "b3_v2_values": {"budget": F(1), "twice": F(1), "both": (F(9, 10), F(937, 1000))},
    "nc31_proofs_reading": {"root": F(1)},
    "nc31_nc3_proofs_reading": {"mu": (F(1, 2), F(0))},
    "after_54": {"factor": F(50)},
    "prop42_proofs_reading": {"most": F(2)},
    "step_15": {"own": F(1, 10)},
    "step_19": {"sign": -1},
    "after_19": {"classes": 1},
    "step_20": {"worst": F(1, 2)},
    "step_20_equality": {"x": F(1, 50)},
    "step_21_equality": {"e_h": F(1)},
    "step_22_33": {"sign": -1},
    "step_23": {"ratio": F(4)},
    "step_25": {"divisor": 59},
    "step_27": {"w": F(1, 2)},
    "step_28": {"sign": 1},
    "step_29": {"g": F(-1, 10)},
    "step_30_31": {"limit": F(29, 100)},
    "step_32": {"power": 2},
    "step_36": {"x": F(0)},
    "step_10_38": {"power": 0},
    "step_39": {"inside": True},
    "step_40": {"c0": F(1)},
    "step_42": {"sign": 1},
    "step_43": {"part": F(1, 200)},
    "step_44": {"majority": 1},
    "step_44_order": {"limit": F(2)},
    "step_45": {"first": 1},
    "step_46": {"half": F(1)},
    "step_47": {"exchanged": False},
    "step_49": {"times": 1},
    "step_50": {"factor": F(2, 3)},
    "step_51": {"c4": F(1, 2)},
    "after_51": {"exponent": -1},
    "loss_imbalance": {"scale": F(2)},
    "step_55_57": {"d": 1},
    "step_58_59": {"y": F(3, 4)},
    "step_60_62": {"e_h": F(50)},
    "eq13": {"printed": F(1, 3)},
    "audit_overall": {"balanced": 36},
    "audit_overall_std": {"impossible": 12},
    "audit_part_std": {"impossible": 4},
    "audit_effects": {"beyond": 18},
    "audit_floor": {"reached": F(226, 100)},
    "audit_collapse": {"smallest": (F(1), F(1), F(1))},
    "audit_recipe": {"epochs": 350},
    "audit_symbols": {"tenfold": 1},
    "wu_prop1": {"shift": F(1, 2)},
    "wu_thm1_iterations": {"fewer": 1},
    "wu_thm2": {"epsilon": F(1, 5)},
    "wu_thm3_sign": {"right": -1},
    "wu_gotu": {"f": F(-2)},
    "ling_centred_t": {"least": F(2)},
    "ling_ntk_fixed_point": {"factor": F(2)},
}


def nclib(*arguments):
    result = CliRunner().invoke(app.app, ["certify", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def all_results():
    begin = time.perf_counter()
    results = {result.id: result for result in certify.certify()}
    return results, time.perf_counter() - begin


@pytest.mark.parametrize("name", certify.ids())
def test_each_certificate_is_ok(name, all_results):
    result = all_results[0][name]
    assert result.ok, result.certificate


@pytest.mark.parametrize(("name", "claimed"), [(name, claimed) for name in WRONG for claimed in WRONG[name]])
def test_each_certificate_can_fail_by_each_of_its_numbers(name, claimed):
    result = certify._run(name, **{claimed: WRONG[name][claimed]})
    assert not result.ok and "FAILED: " in result.certificate
    assert "TypeError" not in result.certificate


def fractions_in(check):
    """The fractions that stand in the code of a certificate, and in the constants of its module that it names."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(check))).body
    found = set()
    for node in (node for part in (function.args, *function.body) for node in ast.walk(part)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "F"
            and not any(isinstance(inner, ast.Name) and inner.id != "F" for inner in ast.walk(node))
        ):
            found.add(eval(compile(ast.Expression(node), "", "eval"), {"F": F}))
        elif isinstance(node, ast.Name) and isinstance(check.__globals__.get(node.id), F):
            found.add(check.__globals__[node.id])
    return found


@pytest.mark.parametrize("name", certify.ids())
def test_each_decimal_that_a_certificate_says_is_a_number_of_its_code(name):
    fields = certify._ENTRIES[name].fields
    text = f"{fields['verdict']} {fields['certificate']} {fields['brief']}"
    said = re.sub(r"(§|Definition |Theorem |Proposition )\d\.\d", "", text)  # places in the paper
    cited = [other for other in certify._ENTRIES if re.search(rf"\b{other}\b", said)]
    known = set().union(*(fractions_in(certify._ENTRIES[other].check) for other in (name, *cited)))
    assert [number for number in re.findall(r"\d+\.\d+(?:e-\d+)?", said) if F(number) not in known] == []


def test_the_whole_run_takes_less_than_20_seconds(all_results):
    assert all_results[1] < 20


def test_the_verdicts_on_the_statements(all_results):
    assert certify.ids()[: len(FIRST)] == FIRST and set(WRONG) == set(certify.ids())
    verdicts = [all_results[0][name].verdict for name in FIRST]
    assert [verdict.split(" √")[0] for verdict in verdicts] == [
        "holds", "typo", "holds", "holds", "holds", "false", "holds", "vacuous", "false", "holds if",
    ]  # fmt: skip


def test_nothing_is_false_without_a_second_derivation(all_results):
    false = {name for name, result in all_results[0].items() if result.verdict == "false"}
    assert false == set(certify._SECOND)
    assert "thm_b3" in false and "thm41_nc3" in false


def test_a_second_derivation_that_disagrees_fails(monkeypatch):
    monkeypatch.setitem(certify._SECOND, "thm_b3", lambda: False)
    result = certify.certify(["thm_b3"])[0]
    assert not result.ok and "second derivation" in result.certificate


@pytest.mark.parametrize("name", ["second", "symbolic"])
def test_second_derivations_share_no_code_with_the_first(name):
    tree = ast.parse((PAPERS / f"neural_collapse/{name}.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = {(node.module, alias.name) for node in imports if isinstance(node, ast.ImportFrom)
            for alias in node.names if (node.module or "").startswith("companion")}  # fmt: skip
    assert ours == {("companion.certify", "also")}


def test_no_floating_point_number_in_a_certificate():
    for path in CERTIFICATES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float"), path


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything():
    result = nclib()
    assert result.exit_code == 0 and result.stderr == ""
    return result.stdout


def test_one_short_line_a_certificate(everything):
    lines = everything.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) == len(certify.ids()) + 15
    assert [line.split()[1] for line in lines[1 : len(certify.ids()) + 1]] == certify.ids()
    shown = dict(re.findall(r"^checked  (thm_b3|prop42|step_29) +(\S+ \S+)", everything, re.MULTILINE))
    assert shown == {"thm_b3": "proved false", "prop42": "holds if", "step_29": "proved false"}


def test_it_ends_with_the_ten_statements(everything, all_results):
    last = everything.splitlines()[-10:]
    for line, (name, statement) in zip(last, certify.STATEMENTS.items(), strict=True):
        record = all_results[0][name]
        verdict = record.verdict.replace("false", "proved false")
        assert re.split(r" {2,}", line) == [statement, verdict, record.brief] and record.brief, line
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


def test_json_is_a_list_of_objects():
    result = nclib("prop42", "--json")
    (found,) = json.loads(result.stdout)
    assert list(found) == FIELDS and found["ok"] is True and found["verdict"] == "holds if √(E_W E_H) ≤ E0"


def test_an_unknown_id_names_the_nearest():
    result = nclib("thm_b4")
    assert result.exit_code == 2 and "there is no certificate 'thm_b4'; the nearest is 'thm_b3'" in result.stderr


def _python(code, *blocked):
    block = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"  # an import of None fails
    return subprocess.run(
        [sys.executable, "-c", block + code], cwd=PAPERS.parent, capture_output=True, text=True, timeout=120
    )


def test_only_the_standard_library_is_needed():
    done = _python(
        "from companion import certify\nassert all(r.ok for r in certify.certify()) and certify.left_out()\n"
        "from fractions import Fraction",
        "torch", "numpy", "pandas", "scipy", "pydantic", "typer", "sympy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_sympy_the_command_says_what_it_left_out():
    done = _python("sys.argv = ['nclib', 'certify']\nfrom nclib.cli.app import main\nmain()", "sympy", "torch")
    assert done.returncode == 0, done.stderr
    assert "left out, because sympy is not installed" in done.stderr and "step_29" in done.stderr
    assert all(f"checked  {name} " in done.stdout for name in FIRST) and "step_29" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Proposition 4.2 ")


def test_the_letter_names_certificates_and_is_not_sent():
    letter = (PAPERS.parent / "book/letter.md").read_text(encoding="utf-8")
    named = {name for command in re.findall(r"`nclib certify ([^`]+)`", letter) for name in command.split()}
    assert named <= set(certify.ids()) and set(FIRST) <= named
    assert "Not sent: needs a person" in letter
