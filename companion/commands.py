"""The commands of ``nclib`` that are about the papers: ``certify`` and ``numbers``."""

from typing import Annotated

import typer

from nclib.cli.output import say_error


def certify_statements(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Statements; left out: all.")] = None,
) -> None:
    """Check the verdicts on the papers' statements: exact computations, and instances of the proofs.

    The proofs stand in the source, beside the certificates.

    Without ids it prints one line for each certificate, and at the end the verdicts on the ten statements of Sun & Shi
    (2024). With ids it prints all about each: the statement, how it was read, the verdict, and what was checked. Exits
    with 1 if a certificate fails. Only the standard library is needed.
    """
    from companion import certify

    results = certify.certify(ids or None)
    typer.echo((certify.as_text if ids else certify.as_lines)(results))
    failed = [result.id for result in results if not result.ok]
    typer.echo(f"{len(results) - len(failed)} of {len(results)} certificates checked")
    if not ids:
        typer.echo("\n" + certify.summary(results))
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
    raise typer.Exit(1 if failed else 0)


def numbers(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where a number differs.")] = False,
) -> None:
    """Write the numbers of the tracked runs into docs/*.md, between the marks that name them."""
    from companion.docs_tables import numbers as measured
    from nclib.publish.numbers import fill_pages

    changed = fill_pages(measured(), write=not check)
    for span in changed:
        typer.echo(span)
    if check and changed:
        say_error(f"{len(changed)} numbers differ from the tracked runs; to write them: nclib numbers")
        raise typer.Exit(1)
    typer.echo(f"{len(changed)} numbers written" if changed else "every number is the one of the tracked runs")
