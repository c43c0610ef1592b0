"""Certificates, in exact arithmetic, of what is said about the papers' statements; ``nclib certify`` runs them.

A certificate is a function without required arguments. It returns True when its statement deserves its verdict, and
False, or an exception that names the check, when not. It computes with fractions, or with intervals whose ends are
fractions: no floating-point number decides anything. The numbers it claims are its keyword arguments, so that a test
can change one and see it fail. Where a verdict rests on a proof, the docstring of the function states it in full; the
code checks its computations, and instances of what it says in general.

A verdict "false" needs a second derivation that shares no code with the first (`also`); both must agree.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec

VERDICTS = ("holds", "holds if", "false", "typo", "proof gap", "vacuous", "not shown")
READINGS = ("as printed", "proofs'", "ours")
STATEMENTS = {
    "lemma_b1": "Lemma B.1",
    "remark_b2": "Remark B.2",
    "thm31_nc1": "Theorem 3.1, NC1",
    "thm31_nc2": "Theorem 3.1, NC2",
    "thm31_nc3": "Theorem 3.1, NC3",
    "thm_b3": "Theorem B.3",
    "thm41_nc1": "Theorem 4.1, NC1",
    "thm41_nc2": "Theorem 4.1, NC2",
    "thm41_nc3": "Theorem 4.1, NC3",
    "prop42": "Proposition 4.2",
}
"""What Sun & Shi (2024) state: certificate and name."""
_WIDTH = 100  # of what is printed

_MODULES = (  # in this order `ids` names what they certify
    "neural_collapse.balanced",
    "neural_collapse.imbalanced",
    "neural_collapse.inputs_bounded",
    "neural_collapse.alignment",
    "neural_collapse.steps",
    "neural_collapse.printed_numbers",
    "neural_collapse.second",
    "neural_collapse.symbolic",
    "separation_bias.depth",
    "kernel_equivalence.released_code",
)


class UnknownCertificate(ValueError):
    """The name of a certificate is unknown, or it needs a package that is not installed."""

    exit_code = 2


class NotCertified(Exception):
    """A check of a certificate did not hold."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The outcome of one certificate.

    Attributes
    ----------
    id : name of the statement, as `nclib certify` takes it
    paper : "neural_collapse", "separation_bias" or "kernel_equivalence"
    place : where the paper has the statement
    statement : the statement, quoted
    reading : "as printed" (by its own words; where these allow several readings, the statement names one in brackets),
        "proofs'" (as the proofs use it) or "ours"
    verdict : one of `VERDICTS`; "holds if" is followed by the condition
    certificate : what was checked; after a failure, also why it failed
    ok : whether the certificate supports the verdict, found by running it
    brief : the reason for the verdict in a few words; empty except for `STATEMENTS`
    """

    id: str
    paper: str
    place: str
    statement: str
    reading: str
    verdict: str
    certificate: str
    ok: bool
    brief: str = ""


@dataclasses.dataclass(frozen=True)
class _Entry:
    fields: dict[str, str]
    check: Callable[..., bool]


_ENTRIES: dict[str, _Entry] = {}
_SECOND: dict[str, Callable[..., bool]] = {}
_NEED_SYMPY: set[str] = set()


# --- how a module of certificates registers them ----------------------------------------------------------------


def states(
    place: str, statement: str, verdict: str, certificate: str, reading: str = "as printed", brief: str = ""
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a function as the certificate of a statement; the name of the function is the id."""
    if reading not in READINGS or not verdict.startswith(VERDICTS):
        raise ValueError(f"no such verdict or reading: {verdict!r}, {reading!r}")

    def register(check: Callable[..., bool]) -> Callable[..., bool]:
        name, paper = check.__name__, check.__module__.split(".")[-2]
        texts = {"place": place, "statement": statement, "reading": reading, "verdict": verdict, "brief": brief}
        _ENTRIES[name] = _Entry({"id": name, "paper": paper, **texts, "certificate": certificate}, check)
        return check

    return register


def also(name: str, sympy: bool = False) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a second derivation of a certificate; `sympy` when it needs that package."""

    def register(check: Callable[..., bool]) -> Callable[..., bool]:
        _SECOND[name] = check
        if sympy:
            _NEED_SYMPY.add(name)
        return check

    return register


def require(condition: bool, what: str) -> bool:
    """Stop the certificate, naming the check, unless the condition is true."""
    if not condition:
        raise NotCertified(what)
    return True


# --- running ------------------------------------------------------------------------------------------------------


def ids() -> list[str]:
    """Names of all certificates: the statements of the main paper first, then its proof steps, then the rest."""
    _load()
    return list(_ENTRIES)


def left_out() -> list[str]:
    """Names of the certificates that cannot run here, because sympy is not installed."""
    _load()
    return [name for name in _ENTRIES if name in _NEED_SYMPY and find_spec("sympy") is None]


def certify(ids: Iterable[str] | None = None) -> list[Certificate]:
    """Run certificates.

    Parameters
    ----------
    ids : names of certificates; None runs every one that can run here (see `left_out`)

    Returns
    -------
    list of Certificate, in the order asked for

    Raises
    ------
    UnknownCertificate
        When a name is not known, with the nearest one, or when it needs sympy, which is not installed.
    """
    cannot = set(left_out())
    names = [name for name in _ENTRIES if name not in cannot] if ids is None else list(ids)
    for name in names:
        if name not in _ENTRIES:
            nearest = difflib.get_close_matches(name, _ENTRIES, n=1, cutoff=0)[0]
            raise UnknownCertificate(f"unknown certificate {name!r}; the nearest is {nearest!r}")
        if name in cannot:
            raise UnknownCertificate(f"{name} needs sympy, which is not installed; type: pip install sympy")
    return [_run(name) for name in names]


def _load() -> None:
    for module in _MODULES:
        import_module(f"companion.{module}")


def _run(name: str, **changed: object) -> Certificate:
    """Run one certificate and its second derivation; `changed` replaces claimed numbers of the first."""
    entry = _ENTRIES[name]
    try:
        ok, why = bool(entry.check(**changed)), "the check is not true"
        if ok and entry.fields["verdict"] == "false":
            ok, why = bool(_SECOND[name]()), "the second derivation does not agree"
    except Exception as error:  # a certificate that breaks is one that failed, whatever broke
        ok, why = False, str(error) if isinstance(error, NotCertified) else f"{type(error).__name__}: {error}"
    said = entry.fields["certificate"] + ("" if ok else f" FAILED: {why}")
    return Certificate(**{**entry.fields, "certificate": said}, ok=ok)


# --- showing ------------------------------------------------------------------------------------------------------


def as_text(results: Sequence[Certificate]) -> str:
    """Everything about each certificate, a paragraph each."""
    return "\n\n".join(map(_paragraph, results))


def as_lines(results: Sequence[Certificate]) -> str:
    """One line a certificate, of at most 100 characters."""
    lines = [f"{'':7}  {'certificate':28}  {'verdict':12}  {'reading':10}  place"]
    for result in results:
        said = f"{'checked' if result.ok else 'FAILED':7}  {result.id:28}  {_short(result):12}  {result.reading:10}  "
        lines.append(said + textwrap.shorten(result.place, _WIDTH - len(said), placeholder=" …"))
    return "\n".join(lines)


def summary(results: Sequence[Certificate]) -> str:
    """One line for each of `STATEMENTS`: name, verdict and the reason in a few words."""
    lines = ["The ten statements of Sun & Shi (2024), with H0 free in each problem and the budget E_H on h."]
    lines += ["H0 given: the same inputs for both models, as §3.2 says; see nclib certify h0_given."]
    found = {result.id: result for result in results}
    for name, statement in STATEMENTS.items():
        said = _said(found[name])
        lines.append(f"{statement:16}  {said:24}  {found[name].brief if found[name].ok else ''}".rstrip())
    return "\n".join(lines)


def _paragraph(result: Certificate) -> str:
    texts = {"place": result.place, "statement": f"“{result.statement}”", "reading": result.reading}
    lines = [f"{result.id}: {_said(result)}"]
    for name, text in (texts | {"checked": result.certificate}).items():
        lines += textwrap.wrap(text, _WIDTH, initial_indent=f"  {name:9}  ", subsequent_indent=" " * 13)
    return "\n".join(lines)


def _said(result: Certificate) -> str:
    """Its verdict, in words that cannot be taken for those of the check itself."""
    if not result.ok:
        return "FAILED"
    return "proved false" if result.verdict == "false" else result.verdict


def _short(result: Certificate) -> str:
    verdict, condition, _ = _said(result).partition(" if ")
    return f"{verdict} if …" if condition else verdict if result.ok else ""


def as_json(results: Sequence[Certificate]) -> str:
    """The same as a list of objects."""
    return json.dumps([dataclasses.asdict(result) for result in results], ensure_ascii=False, indent=1)
