"""The front page of the site: the scorecard, all notebooks, all figures."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from companion.site.amounts import sentences
from companion.site.elsewhere import in_a_browser
from companion.site.fragments import as_markdown, date_text, download_link, link_list, plain, scale_line, table_rows
from companion.site.sources import OPEN_CODE, Artefact, Drawn, Page, Sources
from nclib.publish.notebooks import PARTS
from nclib.publish.readable import NAMES, claim_first
from nclib.system import words

WITHOUT_IMAGES = ("theory", "audit")
"""Parts of the scorecard that no run stands behind."""


TITLE = "Deep equilibrium models and neural collapse"


def landing_page(
    sources: Sources, notes: Sequence[str], echo: Callable[[str], None], reference: Sequence[str] = ()
) -> str:
    dates = sorted(page.execution["end_time"] for page in sources.pages if page.execution.get("end_time"))
    span = f", executed between {date_text(dates[0])} and {date_text(dates[-1])}" if dates else ""
    about = (
        "This is the companion of three papers on what deep equilibrium models learn, made from "
        f"{len(sources.pages)} notebooks of profile <b>{as_markdown(sources.title)}</b>{span}. "
        "Every figure, table and number below was computed; its caption says with which data, network and seeds, and "
        "its page how."
    )
    said = "".join(f"<p>{sentence}</p>" for sentence in sentences(sources))
    parts = [f"# {TITLE}", f'<div class="nc-amounts">{said}</div>' * bool(said), about, _alerts(sources)]
    scorecards = [*_scorecard(sources, echo), *_verdicts_of_others(sources, echo)]
    parts += ["## Scorecard", _legend(), *scorecards] if scorecards else []
    parts += ["## Notebooks", *_contents(sources), "## Figures", *_gallery(sources), *in_a_browser()]
    for part, pages in _by_part(sources).items():
        parts.append(toctree(part, [f"{page.short} <{page.name}>" for page in pages]))
    parts += [toctree("Notes", notes)] * bool(notes) + [toctree("Reference", reference)] * bool(reference)
    return "\n\n".join(part for part in parts if part) + "\n"


def toctree(caption: str, entries: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"])


def _by_part(sources: Sources) -> dict[str, list[Page]]:
    parts: dict[str, list[Page]] = {}
    for page in sources.pages:
        parts.setdefault(_heading(page.name), []).append(page)
    return parts


def _heading(name: str) -> str:
    folder = name.split("/")[0]
    return PARTS.get(folder, folder.replace("_", " "))


def _alerts(sources: Sources) -> str:
    said = [f"{name}{f': {message}' if message else ''}" for name, message in sources.failed.items()]
    lines = "".join(f"<li>{plain(line)}</li>" for line in said)
    text = "The last attempt to execute these notebooks failed; the book lacks them, or shows an earlier execution."
    return f'<div class="nc-alert">{text}<ul>{lines}</ul></div>' if said else ""


def _scorecard(sources: Sources, echo: Callable[[str], None]) -> list[str]:
    """What became of the main paper's claims; empty where none of its notebooks has been executed."""
    from nclib.publish import scorecard

    drawn: dict[Drawn, set[str]] = {}
    for page in sorted(sources.drawings, key=lambda page: reach(page.drawn)):
        if page.name.startswith("neural_collapse/"):
            drawn.setdefault(page.drawn, set()).add(page.name)
    if not drawn:
        return []
    pages = set.union(*drawn.values())
    theory, experiments, lacking = [], [], []
    for at, names in drawn.items():
        try:
            card = _card_at(at, names, sources.profile)
        except scorecard.StaleTable as error:
            experiments.append(_no_scorecard(error, echo))
            continue
        lacking = list(dict.fromkeys(card.loc[~card["saved"], "notebook"]))
        card = card[card["saved"]]
        theory += _score_folds(card[card["part"].isin(WITHOUT_IMAGES)], pages)
        folds = _score_folds(card[~card["part"].isin(WITHOUT_IMAGES)], pages)
        experiments += [scale_line(at), *folds] if folds else []
    parts = [
        f"### {PARTS['neural_collapse']}",
        "What was stated, what came out here, and the verdict by the notebook's rule. Open a part to read.",
        *theory,
        *experiments,
    ]
    if lacking:
        parts.append(f"Not regenerated in this profile yet: {', '.join(f'`{name}`' for name in lacking)}.")
    return parts


def reach(drawn: Drawn) -> tuple[int, bool]:
    """Sort key: the scale that reaches farthest first, the profile's own last."""
    scales = list(words.SCALES)
    return scales.index(drawn.scale) if drawn.scale in scales else len(scales), not drawn.profile


def _card_at(drawn: Drawn, names: set[str], profile: str) -> Any:
    """The scorecard of one scale; of a larger one only what is drawn at it, and what it says of other notebooks."""
    from nclib.publish import scorecard

    with drawn.results(profile):
        card = scorecard.score_claims(drawn.profile or profile)
        if not drawn.profile:
            return card
        found = [card[card["notebook"].isin(name.split("/")[1] for name in names)]]
        for name in sorted(names - {f"neural_collapse/{row}" for row in card["notebook"]} - {scorecard.SUMMARY}):
            claims = scorecard.claims_of(name, drawn.profile)
            found.append(claims.assign(notebook=name.split("/")[1], part="beyond the paper", saved=True))
    import pandas as pd

    return pd.concat([rows for rows in found if len(rows)] or found[:1], ignore_index=True)


def _score_folds(card: Any, pages: set[str]) -> list[str]:
    head = ("claim", "verdict", "scale", "printed", "regenerated", "± 95 %", "seeds", "remark")
    return [
        _fold(
            part,
            _count_chips(rows["verdict"], rows["scale"], part),
            head,
            [_score_row(row, pages) for row in rows.itertuples()],
        )
        for part, rows in card.groupby("part", sort=False)
    ]


def _verdicts_of_others(sources: Sources, echo: Callable[[str], None]) -> list[str]:
    """The tables of the sister papers that give verdicts, as their notebooks saved them. Where a notebook of the name
    ``verdicts`` has collected those of its folder, only its."""
    from nclib.publish import scorecard

    parts: list[str] = []
    for heading, pages in _by_part(sources).items():
        others = [page for page in pages if page.name.split("/")[0] not in ("neural_collapse", *OPEN_CODE)]
        folds: list[str] = []
        chosen = [page for page in others if page.name.endswith("/verdicts")] or others
        for page in (drawing for one in chosen for drawing in one.drawings):
            names = [artefact.name for artefact in page.artefacts if artefact.kind == "tables"]
            at = page.drawn.profile or sources.profile
            try:
                with page.drawn.results(sources.profile):
                    tables = [found[0] for name in names if (found := scorecard.read_table(name, at))]
            except scorecard.StaleTable as error:
                folds.append(_no_scorecard(error, echo))
                continue
            folds += [fold for table in tables for fold in _verdict_table(page, table)]
        parts += [f"### {heading}", *folds] if folds else []
    return parts


def _no_scorecard(error: Exception, echo: Callable[[str], None]) -> str:
    echo(f"no scorecard: {error}")
    return f'<div class="nc-alert">No scorecard: {plain(str(error))}</div>'


def _verdict_table(page: Page, table: Any) -> list[str]:
    """Nothing for a table without verdicts. The rules stand on the page."""
    from nclib.publish import scorecard

    table = claim_first(table.drop(columns=["rule", "computed"], errors="ignore"))
    for column in set(table) & set(scorecard.VERDICT_COLUMNS):
        lines = []
        for row in table.to_dict("records"):
            cells = (_verdict(value) if name == column else _value(value) for name, value in row.items())
            lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        title = f'<a href="{page.name}.html">{plain(page.short)}</a> {plain(page.drawn.images if page.runs else "")}'
        chips = _count_chips(table[column], table.get("scale", [""] * len(table)))
        return [_fold(title, chips, list(table.rename(columns=NAMES)), lines)]
    return []


def _value(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.3g}"
    return plain(str(value))


def _legend() -> str:
    """What every word of a verdict means."""
    groups = {
        "theorems and steps of proofs": words.STATEMENTS,
        "claims from experiments": words.CLAIMS,
        "comparisons of our own": words.COMPARISONS,
        "scale of the evidence": words.SCALES,
    }
    lines = [
        f"<tr><td>{plain(kind)}</td><td>{_verdict(word)}</td><td>{plain(meaning)}</td></tr>"
        for kind, meanings in groups.items()
        for word, meaning in meanings.items()
    ]
    return _fold("what the words mean", "", ("said of", "word", "meaning"), lines)


def _count_chips(verdicts: Iterable[str], scales: Iterable[Any], part: str = "") -> str:
    """How often each verdict was given at each scale, the most frequent first."""
    pairs = zip(verdicts, (scale if isinstance(scale, str) else "" for scale in scales), strict=True)
    return " ".join(
        _verdict(text, part, f"{count} ", f" · {scale}" if scale else "")
        for (text, scale), count in Counter(pairs).most_common()
    )


def _fold(title: str, chips: str, head: Sequence[str], lines: Sequence[str]) -> str:
    """Rows behind a line that counts their verdicts."""
    return (
        f'<details class="nc-score"><summary><b>{title}</b> {chips}</summary>'
        f'<div class="nc-scroll"><table>{table_rows([head], "th")}{"".join(lines)}</table></div></details>'
    )


def _score_row(row: Any, pages: set[str]) -> str:
    item, page = plain(row.item), f"neural_collapse/{row.notebook}"
    linked = f'<a href="{page}.html">{item}</a>' if page in pages else item
    half = "" if row.interval != row.interval else f"{row.interval:.3g}"
    seeds = "" if row.seeds != row.seeds else f"{row.seeds:.0f}"
    texts = (row.printed, row.regenerated, row.scale, row.remark)
    printed, ours, scale, remark = (plain(text) if isinstance(text, str) else "" for text in texts)
    cells = f"<td>{linked}</td><td>{_verdict(row.verdict, row.part)}</td><td>{scale}</td><td>{printed}</td>"
    return f'<tr>{cells}<td>{ours}</td><td class="nc-number">{half}</td><td>{seeds}</td><td>{remark}</td></tr>'


def _verdict(text: str, part: str = "", before: str = "", after: str = "") -> str:
    """A chip in the tone of its word; beyond the paper nothing is a claim of it, so nothing is red."""
    tone = words.tone(text)
    tone = "" if tone is None or (tone, part) == ("against", "beyond the paper") else f" nc-{tone}"
    return f'<span class="nc-verdict{tone}">{before}{plain(text)}{after}</span>'


def _contents(sources: Sources) -> list[str]:
    parts = []
    for part, pages in _by_part(sources).items():
        parts.append(f"### {part}")
        parts.append("\n".join(f"- [{as_markdown(page.title)}]({page.name}.ipynb)" for page in pages))
    return parts


def all_figures(sources: Sources) -> list[tuple[Page | None, Artefact]]:
    found: list[tuple[Page | None, Artefact]] = [(page, made) for page in sources.drawings for made in page.artefacts]
    found += [(None, made) for made in sources.others]
    return [(page, made) for page, made in found if made.kind == "figures" and "png" in made.endings]


def _gallery(sources: Sources) -> list[str]:
    cards: dict[str, list[str]] = {}
    for page, artefact in all_figures(sources):
        cards.setdefault(_heading(artefact.name), []).append(_card(page, artefact))
    parts = []
    for part, figures in cards.items():
        parts += [f"### {part}", f'<div class="nc-gallery">{"".join(figures)}</div>']
    return parts


def _card(page: Page | None, artefact: Artefact) -> str:
    caption = plain(artefact.record["caption"])
    first = re.split(r"(?<=[^\WA-Z_])\. (?=[A-Z])|(?<=[)\]])\. (?=[A-Z])", artefact.record["caption"], maxsplit=1)[0]
    target = html.escape(f"{page.name}.html" if page else artefact.path("png"))
    title = artefact.name
    if page:  # a notebook's further figures by what their names add to its own
        added = artefact.name.removeprefix(page.name).strip("_./-").replace("_", " ")
        title = f"{page.short} · {added}" if added else page.short
    picture = f'<img loading="lazy" src="{html.escape(artefact.path("png"))}" alt="{caption}">'
    links = " ".join(download_link(artefact.path(ending), ending) for ending in artefact.endings)
    scale = scale_line(artefact.drawn) if artefact.record["runs"] else ""
    return (
        f'<figure><a href="{target}">{picture}</a><figcaption><b><a href="{target}">{plain(title)}</a></b>{scale}'
        f"<p>{plain(first).rstrip('.')}.</p>{link_list(links)}</figcaption></figure>"
    )
