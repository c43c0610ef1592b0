"""Certificates, in exact arithmetic, of what is said about the papers' statements; ``nclib certify`` runs them.

A certificate is a function without required arguments. It returns True when its statement deserves its verdict, and
False, or an exception that names the check, when not. It computes with fractions, or with intervals whose ends are
fractions: no floating-point number decides anything. The numbers it claims are its keyword arguments, so that a test
can change one and see it fail. Where a verdict rests on a proof, the docstring of the function states it in full; the
code checks its computations, and instances of its general statements.

A verdict "false" needs a second derivation that shares no code with the first (`also`); both must agree.
"""

import dataclasses
import difflib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

# What Sun & Shi (2024) state: certificate, name, and the reason for the verdict in a few words.
STATEMENTS = {
    "lemma_b1": ("Lemma B.1", "the misprint of (15) corrected, as (17) does; has no H0"),
    "remark_b2": ("Remark B.2", "ratio inverted, in its proof (18) too; (24) has it right"),
    "thm31_nc1": ("Theorem 3.1, NC1", "h0_k is the mean, in the paper a sum; H0 given: it fails"),
    "thm31_nc2": ("Theorem 3.1, NC2", "1_K is the identity; H0 given: it fails"),
    "thm31_nc3": ("Theorem 3.1, NC3", "H0 given: its DEQ half fails"),
    "thm_b3": ("Theorem B.3", "the infima are equal; H0 given within E_H: order right"),
    "thm41_nc1": ("Theorem 4.1, NC1", "h0_k is the mean, in the paper a sum; H0 given: it fails"),
    "thm41_nc2": ("Theorem 4.1, NC2", "for all i, j no H0, free or given, meets its premise"),
    "thm41_nc3": ("Theorem 4.1, NC3", "the ratio is exactly 1; H0 given: it can be below 3/4"),
    "prop42": ("Proposition 4.2", "the paper's 0.01 is below E0; H0 given: DEQ half fails"),
}
_WIDTH = 100  # of the lines that are written

_MAIN = ("balanced", "imbalanced", "inputs_bounded", "steps", "printed_numbers", "second")
# In this order `ids` names what they certify.
_MODULES = (*(f"neural_collapse.{name}" for name in _MAIN), "separation_bias.depth")


class UnknownCertificate(ValueError):
    """The name of a certificate is unknown."""

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
    verdict : one of `nclib.system.words.STATEMENTS`; "holds if" is followed by the condition
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


_ENTRIES: dict[str, tuple[Certificate, Callable[..., bool]]] = {}
_SECOND: dict[str, Callable[[], bool]] = {}


# --- how a module of certificates registers them ----------------------------------------------------------------


def states(
    place: str, statement: str, verdict: str, certificate: str = "", reading: str = "as printed"
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a function as the certificate of a statement; the name of the function is the id.

    certificate : what is checked; left out, the first paragraph of the function's docstring, before its proof
    """

    def register(check: Callable[..., bool]) -> Callable[..., bool]:
        name, paper = check.__name__, check.__module__.split(".")[-2]
        said = certificate or " ".join(inspect.getdoc(check).partition("\n\n")[0].split())
        brief = STATEMENTS.get(name, ("", ""))[1]
        _ENTRIES[name] = Certificate(name, paper, place, statement, reading, verdict, said, False, brief), check
        return check

    return register


# What states the same by how the proofs use it, and by a choice of ours.
proofs_reading, our_reading = (functools.partial(states, reading=reading) for reading in ("proofs'", "ours"))


def also(name: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    """Register a second derivation of a certificate."""
    return lambda check: _SECOND.setdefault(name, check)


def require(condition: bool, what: str) -> bool:
    """Stop the certificate, naming the check, unless the condition is true."""
    if not condition:
        raise NotCertified(what)
    return True


# --- running ------------------------------------------------------------------------------------------------------


def ids() -> list[str]:
    """Names of all certificates: the statements of the main paper first, then its proof steps, then the rest."""
    for module in _MODULES:
        import_module(f"nclib.papers.{module}")
    return list(_ENTRIES)


def certify(names: Iterable[str] | None = None) -> list[Certificate]:
    """Run certificates.

    Parameters
    ----------
    names : of certificates; None runs every one

    Returns
    -------
    list of Certificate, in the order asked for

    Raises
    ------
    UnknownCertificate
        When no certificate has this name; the message names the closest one.
    """
    known = ids()
    names = known if names is None else list(names)
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            raise UnknownCertificate(f"unknown certificate {name!r}; the nearest is {nearest!r}")
    return [_run(name) for name in names]


def _run(name: str, **changed: object) -> Certificate:
    """Run one certificate and its second derivation; `changed` replaces claimed numbers of the first."""
    said, check = _ENTRIES[name]
    try:
        ok, why = bool(check(**changed)), "the check is not true"
        if ok and said.verdict == "false":
            ok, why = bool(_SECOND[name]()), "the second derivation does not agree"
    except Exception as error:  # a certificate that breaks is one that failed, whatever broke
        ok, why = False, str(error) if isinstance(error, NotCertified) else f"{type(error).__name__}: {error}"
    return dataclasses.replace(said, ok=ok, certificate=said.certificate + ("" if ok else f" FAILED: {why}"))


# --- showing ------------------------------------------------------------------------------------------------------


def as_text(results: Sequence[Certificate]) -> str:
    """Everything about each certificate, a paragraph each."""
    paragraphs = []
    for result in results:
        lines = [f"{result.id}: {_said(result)}"]
        texts = {"place": result.place, "statement": f"“{result.statement}”", "reading": result.reading}
        for name, text in (texts | {"checked": result.certificate}).items():
            lines += textwrap.wrap(text, _WIDTH, initial_indent=f"  {name:9}  ", subsequent_indent=" " * 13)
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


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
    for name, (statement, brief) in STATEMENTS.items():
        lines.append(f"{statement:16}  {_said(found[name]):24}  {brief if found[name].ok else ''}".rstrip())
    return "\n".join(lines)


def _said(result: Certificate) -> str:
    """Its verdict, in words that cannot be taken for those of the check itself."""
    return "FAILED" if not result.ok else "proved false" if result.verdict == "false" else result.verdict


def _short(result: Certificate) -> str:
    verdict, condition, _ = _said(result).partition(" if ")
    return f"{verdict} if …" if condition else verdict if result.ok else ""
