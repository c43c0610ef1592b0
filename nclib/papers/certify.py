"""Whether the statements of the papers are true: certificates in exact arithmetic.

Whether this installation trains as it should is another question: `nclib.verify`.

``nclib certify`` runs them. A certificate is a function without required arguments. It returns True
where its statement deserves its verdict; otherwise it returns False, or raises an exception that
names the check. It computes with fractions, or with intervals whose ends are fractions: no
floating-point number decides anything. The numbers it claims are its keyword arguments, so that a
test can change one and see it fail. Where a verdict rests on a proof, the docstring of the function
states it in full; the code checks its computations, and instances of its general statements.

The two of the ten statements that are false have a second derivation, which shares no code with the
first (`second_derivation`); both must agree.
"""

import dataclasses
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

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
"""What Sun & Shi (2024) state: certificate, name, and the reason for the verdict in a few words."""

VERDICTS = {
    "holds": "true as stated, with the misprint corrected that its certificate names, or in every "
    "case computed",
    "holds if": "true where the condition named is met, and not in general",
    "false": "refuted by an exact certificate",
    "typo": "a misprint; what was meant stands elsewhere in the paper or follows from it",
    "proof gap": "no case against it, but the paper's proof does not show it",
    "vacuous": "nothing meets its premise",
    "not shown": "neither shown nor refuted here",
}
"""The words of verdicts on statements and proofs. For experiments: `nclib.compare.VERDICTS`."""

WIDTH = 100
"""Of the lines that `as_text` and `as_lines` write."""

_MODULES = ("neural_collapse.statements", "separation_bias.statements")
"""Where certificates stand, in the order in which `ids` names them."""


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
    reading : "as printed" (by its own words; where these allow several readings, the statement
        names one in brackets), "proofs'" (as the proofs use it) or "ours"
    verdict : one of `VERDICTS`; "holds if" is followed by the condition
    certificate : what was checked; after a failure, also why it failed
    ok : whether the certificate supports the verdict, found by running it
    """

    id: str
    paper: str
    place: str
    statement: str
    reading: str
    verdict: str
    certificate: str
    ok: bool = False


Check = Callable[..., bool]

_ENTRIES: dict[str, tuple[Certificate, Check]] = {}
_SECOND: dict[str, Callable[[], bool]] = {}


# --- how a module of certificates registers them --------------------------------------------------


def states(
    place: str, statement: str, verdict: str, certificate: str = "", reading: str = "as printed"
) -> Callable[[Check], Check]:
    """Register a function as the certificate of a statement; the name of the function is the id.

    Parameters
    ----------
    place, statement, verdict, reading : as in `Certificate`
    certificate : what is checked; left out, the first paragraph of the function's docstring
    """

    def register(check: Check) -> Check:
        name = check.__name__
        paper = check.__module__.split(".")[-2]
        checked = certificate
        if not checked:
            first_paragraph, _, _ = inspect.getdoc(check).partition("\n\n")
            checked = " ".join(first_paragraph.split())
        entry = Certificate(name, paper, place, statement, reading, verdict, checked)
        _ENTRIES[name] = (entry, check)
        return check

    return register


def our_reading(place: str, statement: str, verdict: str, certificate: str = "") -> Callable:
    """`states` at a reading that is ours."""
    return states(place, statement, verdict, certificate, reading="ours")


def second_derivation(name: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    """Register a second derivation of a certificate."""

    def register(check: Callable[[], bool]) -> Callable[[], bool]:
        _SECOND[name] = check
        return check

    return register


def require(condition: bool, what: str) -> bool:
    """Stop the certificate, naming the check, unless the condition is true."""
    if not condition:
        raise NotCertified(what)
    return True


# --- running --------------------------------------------------------------------------------------


def ids() -> list[str]:
    """Names of all certificates: the statements of the main paper first, then the rest."""
    for module in _MODULES:
        import_module(f"nclib.papers.{module}")
    others = [name for name in _ENTRIES if name not in STATEMENTS]
    return [*STATEMENTS, *others]


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

    Examples
    --------
    >>> certify(["thm_b3"])[0].verdict
    'false'
    """
    known = ids()
    wanted = known if names is None else list(names)
    for name in wanted:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            raise UnknownCertificate(f"unknown certificate {name!r}; the nearest is {nearest!r}")
    return [_run(name) for name in wanted]


def _run(name: str, **changed: object) -> Certificate:
    """Run one certificate, and its second derivation where it has one; `changed` replaces numbers
    that the first one claims."""
    entry, check = _ENTRIES[name]
    failure = ""
    try:
        if not check(**changed):
            failure = "the check is not true"
        elif name in _SECOND and not _SECOND[name]():
            failure = "the second derivation does not agree"
    except NotCertified as error:
        failure = str(error)
    except Exception as error:  # a certificate that breaks is one that failed, whatever broke
        failure = f"{type(error).__name__}: {error}"
    if failure:
        return dataclasses.replace(entry, certificate=f"{entry.certificate} FAILED: {failure}")
    return dataclasses.replace(entry, ok=True)


# --- showing --------------------------------------------------------------------------------------


def as_text(results: Sequence[Certificate]) -> str:
    """Everything about each certificate, a paragraph each."""
    paragraphs = []
    for result in results:
        lines = [f"{result.id}: {_verdict(result)}"]
        lines += _wrapped("place", result.place)
        lines += _wrapped("statement", f"“{result.statement}”")
        lines += _wrapped("reading", result.reading)
        lines += _wrapped("checked", result.certificate)
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:9}  ", subsequent_indent=" " * 13)


def as_lines(results: Sequence[Certificate]) -> str:
    """One line a certificate, of at most 100 characters."""
    lines = [f"{'':7}  {'certificate':28}  {'verdict':12}  {'reading':10}  place"]
    for result in results:
        outcome = "checked" if result.ok else "FAILED"
        line = f"{outcome:7}  {result.id:28}  {_short(result):12}  {result.reading:10}  "
        lines.append(line + textwrap.shorten(result.place, WIDTH - len(line), placeholder=" …"))
    return "\n".join(lines)


def summary(results: Sequence[Certificate]) -> str:
    """One line for each of `STATEMENTS`: name, verdict and the reason in a few words.

    Parameters
    ----------
    results : of `certify`, with all of `STATEMENTS` among them
    """
    lines = [
        "The ten statements of Sun & Shi (2024), "
        "with H0 free in each problem and the budget E_H on h.",
        "H0 given: the same inputs for both models, as §3.2 says; see nclib certify h0_given.",
    ]
    by_id = {result.id: result for result in results}
    for name, (statement, reason) in STATEMENTS.items():
        result = by_id[name]
        line = f"{statement:16}  {_verdict(result):24}"
        if result.ok:
            line = f"{line}  {reason}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _verdict(result: Certificate) -> str:
    """Its verdict, in words that cannot be taken for those of the check itself."""
    if not result.ok:
        return "FAILED"
    if result.verdict == "false":
        return "proved false"
    return result.verdict


def _short(result: Certificate) -> str:
    """The verdict without its condition; nothing after a failure."""
    if not result.ok:
        return ""
    if result.verdict.startswith("holds if"):
        return "holds if …"
    return _verdict(result)
