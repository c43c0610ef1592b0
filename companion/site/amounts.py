"""What it all amounts to: three sentences for the front page, each computed from the tables of the notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from companion.site.fragments import plain
from companion.site.sources import Page, Sources
from nclib.publish import scorecard
from nclib.publish.notebooks import PARTS
from nclib.publish.scorecard import METRICS
from nclib.system import words

THEORY, COLLAPSE, CONTROL = (f"neural_collapse/{n}" for n in ("theory_layer_peeled", "collapse", "equilibrium_or_cell"))
CLAIMED = ("paper_eq13_uncentred", "paper_eq14_uncentred")
"""The metrics that the paper claims to be lower under imbalance, by its own definitions."""
_VERBS = {"typo": ("is a", "are each a"), "proof gap": ("has a", "have a")}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def sentences(sources: Sources) -> list[str]:
    """On the theory, on the experiments at each scale, the largest first, and on the sister papers, as HTML. A sentence
    whose notebooks have not been drawn is left out, and so is one whose table was changed by hand."""
    found = []
    for about in (_theory, _experiments, _sisters):
        try:
            found += [said for said in [about(sources)] if said]
        except scorecard.StaleTable:  # the scorecard says it
            continue
    return found


def _theory(sources: Sources) -> str:
    """Theorem by theorem, where one falls."""
    for _, read in _drawings(sources, THEORY):
        table = read("_statements")
        if table is None:
            continue
        named = table.groupby("verdict", sort=False)["claim"].agg(list).to_dict()
        conditions = [verdict for verdict in named if verdict.startswith("holds if")]
        number = sum(len(names) for verdict, names in named.items() if verdict.startswith("holds"))
        holds = f"{_number(number)} hold" + "".join(
            f", {'; '.join(named[verdict])} {verdict.removeprefix('holds ')}" for verdict in conditions
        )
        fallen = []
        for verdict in words.STATEMENTS:
            if verdict in named and verdict != "holds":
                one, several = _VERBS.get(verdict, ("is", "are"))
                names = named[verdict]
                said = f"{_number(len(names))} {one if len(names) == 1 else several} <b>{verdict}</b>"
                fallen.append(f"{said} ({plain('; '.join(names))})")
        of = f"Of the {_number(len(table))} theoretical statements of Sun &amp; Shi"
        return f"{of} {' · '.join([plain(holds), *fallen])} {_link(THEORY, 'certificates')}."
    return ""


def _experiments(sources: Sources) -> str:
    """The claim that the paper's title makes, at each scale there is."""
    said = [text for page, read in _drawings(sources, COLLAPSE) if (text := _collapse(page, read))]
    for page, read in _drawings(sources, CONTROL):
        table = read("_accuracy")
        if table is not None:
            chosen = table[(table["metric"] == "accuracy_balanced") & (table["step"] == "DEQ − explicit")]
            said += [
                f"its accuracy{_on(page)} differs by {row.difference:+.2f} ± {row.half:.2f} points, {_verdict(row)}"
                for row in chosen.itertuples()
            ]
    start = "Under imbalance the paper claims lower NC2 and NC3 for the DEQ than for ResNet-18"
    return f"{start}: {'; '.join(said)} {_link(COLLAPSE, 'all settings')}." if said else ""


def _collapse(page: Page, read: Callable[[str], Any]) -> str:
    """One scale: pooled where three seeds are there, otherwise the settings that are there."""
    pooled, each = read("_pooled"), read("_settings")
    if pooled is not None:
        rows = [row for row in pooled.itertuples() if row.metric in CLAIMED]
        numbers = [f"{row.change:+.1f} % ({row.low:.1f} to {row.high:.1f})" for row in rows]
        found = [f"{_short(row)} {number}, {_verdict(row)}" for row, number in zip(rows, numbers, strict=True)]
        settings = f"{rows[0].settings_found} of {rows[0].settings_planned} settings"
        return f"{_at(page)}, pooled over {settings} with {rows[0].seeds} seeds, {', and '.join(found)}"
    rows = [] if each is None else [row for row in each.itertuples() if row.printed == "DEQ lower"]
    rows = [row for row in rows if row.metric in CLAIMED]
    if not rows:
        return ""
    settings = list(dict.fromkeys(row.setting for row in rows))
    if len(settings) == 1:
        seeds = f"{_number(rows[0].seeds)} seed{'s' * (rows[0].seeds > 1)}"
        found = [f"{_short(row)} {row.deq:.3f} against {row.explicit:.3f}, {_verdict(row)}" for row in rows]
        return f"{_at(page)}, in the one setting that is there ({seeds}), {', and '.join(found)}"
    found = []
    for metric in CLAIMED:
        mine = [row for row in rows if row.metric == metric]
        lower = sum(row.difference < 0 for row in mine)
        found.append(f"{_short(mine[0])} lower in {_number(lower)} of {_number(len(mine))} settings")
    return f"{_at(page)}, {' and '.join(found)}, {plain(', '.join(dict.fromkeys(row.verdict for row in rows)))}"


def _sisters(sources: Sources) -> str:
    """How often each verdict was given on what the two other papers state."""
    said = []
    for part in ("kernel_equivalence", "separation_bias"):
        pages = [page for page in sources.pages if page.name.startswith(f"{part}/")]
        pages = [page for page in pages if page.name.endswith("/verdicts")] or pages
        counted: Counter[str] = Counter()
        for page in pages:
            for drawing, read in _drawings(sources, page.name):
                for table in (read(name.removeprefix(page.name)) for name in _tables(drawing)):
                    column = next((name for name in scorecard.VERDICT_COLUMNS if name in table), None)
                    if column:
                        kept = table[table["part"] != "beyond the paper"] if "part" in table else table
                        counted.update(verdict for verdict in kept[column] if verdict not in words.COMPARISONS)
        if counted:
            listed = ", ".join(f"{count} {plain(verdict)}" for verdict, count in counted.most_common())
            said.append(f"{plain(PARTS[part].split(':')[0])}: {listed}")
    return f"Of what the two sister papers state, row by row: {'; '.join(said)}." if said else ""


def _tables(page: Page) -> list[str]:
    return [artefact.name for artefact in page.artefacts if artefact.kind == "tables"]


def _drawings(sources: Sources, name: str) -> Iterator[tuple[Page, Callable[[str], Any]]]:
    """Each drawing of a notebook with what reads its tables, by what their names add to its own."""
    for page in sources.drawings:
        if page.name == name:

            def read(added: str, page: Page = page) -> Any:
                with page.drawn.results(sources.profile):
                    found = scorecard.read_table(f"{page.name}{added}", page.drawn.profile or sources.profile)
                return found[0] if found and f"{page.name}{added}" in _tables(page) else None

            yield page, read


def _at(page: Page) -> str:
    return f"on {plain(page.drawn.images)} ({page.drawn.scale} scale)" if page.drawn.images else "here"


def _on(page: Page) -> str:
    return f" {_at(page)}" if page.drawn.images else ""


def _short(row: Any) -> str:
    return plain(METRICS[row.metric].partition(",")[0])


def _verdict(row: Any) -> str:
    return f"<b>{plain(row.verdict)}</b>"


def _number(number: int) -> str:
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)


def _link(name: str, text: str) -> str:
    return f'(<a href="{name}.html">{text}</a>)'
