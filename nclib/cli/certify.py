"""The command of ``nclib`` that is about the papers: ``certify``."""

from typing import Annotated

import typer


def certify_statements(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Statements; left out: all.")] = None,
) -> None:
    """Check the verdicts on the papers' statements: exact computations, and instances of the proofs.

    The proofs stand in the source, beside the certificates.

    Without ids it prints one line for each certificate, and at the end the verdicts on the ten statements of Sun & Shi
    (2024). With ids it prints all about each: the statement, how it was read, the verdict, and what was checked. Exits
    with 1 if a certificate fails. Only the standard library is needed.
    """
    from nclib.papers import certify

    results = certify.certify(ids or None)
    typer.echo((certify.as_text if ids else certify.as_lines)(results))
    failed = [result.id for result in results if not result.ok]
    typer.echo(f"{len(results) - len(failed)} of {len(results)} certificates checked")
    if not ids:
        typer.echo("\n" + certify.summary(results))
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
    raise typer.Exit(1 if failed else 0)
