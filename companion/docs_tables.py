"""Tables and numbers of the book that come from tracked tables and certificates: theory, digits, parts of CIFAR-10, the
sister papers, benchmarks."""

import json
import re
from collections import Counter

import numpy as np
import pandas as pd

from companion.certify import certify
from companion.neural_collapse import collapse_tables, replicated
from companion.neural_collapse.collapse_tables import COLLAPSE_LABELS
from companion.neural_collapse.proofs import STATEMENTS, theory_steps
from nclib.comparison import Pairs, pairs
from nclib.engine.reference import reference_store
from nclib.publish.numbers import minus, table
from nclib.publish.readable import for_readers
from nclib.system import paths, words

VERDICTS = ("as claimed here", "opposite here", "equal", "not significant", "reported", "not run")
WITH_RULES = ("optimisers", "which_gradient")
"""Notebooks with a rule of their own that was stated before their runs."""
BEYOND = r"(?:controls|nc definitions, GroupNorm|inside the solver|solver|remedies|long tail)[:,]"
"""How the items of the scorecard on digits begin that are shown where they lead or differ significantly."""

_SPELT = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def numbers() -> dict[str, str]:
    """Every number and table of the pages of docs/ that comes from tracked runs, by name, for
    `nclib.publish.numbers.fill`. It takes half a minute."""
    return {
        **collapse_tables.numbers(),
        **collapse_tables.tables(),
        **replicated.numbers(),
        "theory-counts": _statements(),
        "theory-steps": _steps(),
        "digits-verdicts": _verdicts(),
        "digits-collapse": _collapse(),
        "digits-beyond": _beyond(),
        "digits-2026": _claims_of_2026(),
        "digits-accuracy": _accuracy(),
        "digits-both": _both_processors(),
        "parts-collapse": _parts(),
        "ling-errors": _ling_errors(),
        "ling-networks": _ling_networks(),
        "wu-counts": _wu_counts(),
        "wu-trained": _wu_trained(),
        "bench-targets": _bench(with_target=True),
        "bench-others": _bench(with_target=False),
        "bench-evaluations": _evaluations(),
        "bench-engine": _ratios(read("bench/engine"), ["ratio", "low to high", "target"]),
        "survival": _survival(),
    }


def read(name: str) -> pd.DataFrame:
    """A tracked table, by its path in results/reference without the ending."""
    return pd.read_csv(paths.reference() / f"{name}.csv")


# --- theory -------------------------------------------------------------------------------------------------------


def _statements() -> str:
    """ "five hold (four once a misprint is corrected), two are false, …"."""
    results = certify(list(STATEMENTS))
    holds = [result for result in results if result.verdict == "holds"]
    conditional = sum(result.verdict.startswith("holds if") for result in results)
    corrected = sum(result.certificate.startswith("Its misprint") for result in holds)
    counts = Counter(result.verdict for result in results)
    false, vacuous, typo = (_SPELT[counts[word]] for word in ("false", "vacuous", "typo"))
    return (
        f"{_SPELT[len(holds)]} hold ({_SPELT[corrected]} once a misprint is corrected), "
        f"{_SPELT[conditional]} holds under a condition, {false} are false, {vacuous} "
        f"is vacuous as printed and {typo} a misprint"
    )


def _steps() -> str:
    """ "34 proof steps: 14 *typo*, …"."""
    verdicts = theory_steps()["verdict"].str.replace(r" if .*", " if …", regex=True)
    counts = verdicts.value_counts()
    return f"{len(verdicts)} proof steps: " + ", ".join(f"{count} *{word}*" for word, count in counts.items())


# --- digits -------------------------------------------------------------------------------------------------------


def _verdicts() -> str:
    """How many rows of the scorecard got which verdict, on both processors."""
    rows = []
    for place, processor in (("tables", "Intel"), ("other-processor", "AMD")):
        card = read(f"{place}/scorecard-quick")
        figures, lower = card["part"] == "figures", card["printed"] == "DEQ lower"
        pooled = card["item"].str.contains("all cells")
        for said, chosen in {
            "Tables 1–4, differences of accuracies": (card["part"] == "tables") & ~pooled,
            "Tables 1–4, pooled": (card["part"] == "tables") & pooled,
            'Figures 2–5, "DEQ lower"': figures & lower,
            'Figures 2–5, "equal"': figures & ~lower,
        }.items():
            count = Counter(card.loc[chosen, "verdict"])
            rows.append([said, processor, *(str(count[word] or "–") for word in VERDICTS)])
    return table(["claims", "processor", *VERDICTS], sorted(rows, key=lambda row: [row[0] != one[0] for one in rows]))


def _accuracy() -> str:
    """Test accuracy, pooled over the settings of Tables 1 to 4."""
    card = read("tables/scorecard-quick")
    runs = {run for row in card.loc[card["part"] == "tables", "runs"].dropna() for run in row.split()}
    found = pairs(reference_store().frame(sorted(runs)), "accuracy_balanced", "test", "last_epochs")
    word = found.verdict("toy", "higher", phase="described").word
    said = f"{found.interval.mean:+.2f} ± {found.interval.half:.2f} points over {found.settings} settings, {word}"
    return minus(f"{said} (detectable: {found.interval.detectable:.1f})")


def _collapse() -> str:
    """Changes pooled over all settings of digits, by the block and by the equilibrium."""
    here, there = read("tables/equilibrium_or_cell-quick"), read("other-processor/equilibrium_or_cell-quick")
    imbalanced = read("tables/collapse_pooled-quick").set_index("metric")
    steps = {
        "DEQ / ResNet-18": _of(here, "DEQ / explicit"),
        "imbalanced settings alone": imbalanced,
        "cell once / ResNet-18": _of(here, "cell / explicit"),
        "DEQ / cell once": _of(here, "DEQ / cell"),
        "DEQ / ResNet-18, other processor": _of(there, "DEQ / explicit"),
    }
    rows = [
        [name, *(_change(rows.loc[metric]) if metric in rows.index else "–" for rows in steps.values())]
        for metric, name in COLLAPSE_LABELS.items()
    ]
    return table(["", *steps], rows)


def _of(rows: pd.DataFrame, step: str) -> pd.DataFrame:
    return rows[rows["step"] == step].set_index("metric")


def _change(row: pd.Series) -> str:
    return minus(f"{row['change']:+.1f} % ({row['low']:.1f} to {row['high']:.1f})")


def _difference(row: pd.Series | dict[str, float]) -> str:
    digits = max(0, 1 - int(np.floor(np.log10(row["half"]))))
    return minus(f"{row['difference']:+.{digits}f} ± {row['half']:.{digits}f}")


def _beyond() -> str:
    """The rows on digits that were to decide, and those with a significant difference."""
    card = read("tables/scorecard-quick")
    chosen = card["item"].str.match(BEYOND) & (card["lead"] | card["verdict"].isin(["higher", "lower"]))
    shown = card[chosen].rename(columns={"regenerated": "difference", "interval": "half"}).astype({"difference": float})
    rows = [[for_readers(row["item"]), _difference(row), f"*{row['verdict']}*"] for _, row in shown.iterrows()]
    return table(["", "difference", "verdict"], rows)


def _claims_of_2026() -> str:
    """The row of each notebook that was to decide, and those that speak against a claim."""
    rows = []
    for name in WITH_RULES:
        claims = read(f"tables/{name}-quick")
        for _, row in claims[claims["lead"] | claims["verdict"].isin(["reported", "opposite here"])].iterrows():
            value = _change(row) if "change" in claims else _difference(row)
            side = str(row["remark"]).partition(",")[0]
            word = f"{row['verdict']}: {side}" if row["verdict"] == "reported" else row["verdict"]
            rows.append([f"`{name}`", for_readers(row["claim"]), value, f"*{word}*"])
    return table(["notebook", "compared", "found", "verdict"], rows)


def _both_processors() -> str:
    """How many of the pooled changes of collapse are significant on both processors with the same sign."""
    rows = [read(f"{place}/equilibrium_or_cell-quick") for place in ("tables", "other-processor")]
    both = rows[0].merge(rows[1], on=["step", "metric"], suffixes=("", "_other"))
    same = (both["verdict"] == both["verdict_other"]) & (both["verdict"] != "not significant")
    return f"{same.sum()} of {len(both)}"


# --- parts of CIFAR-10 --------------------------------------------------------------------------------------------


def _parts() -> str:
    """250 images a class: DEQ against ResNet-18, over all settings of Tables 1 to 4."""
    runs = json.loads((paths.reference() / "cifar10-jpeg-lite/runs.json").read_text(encoding="utf-8"))
    stated = {run for run, record in runs.items() if record["config"]["train"]["lr"] == 1e-4}  # of section 5.1
    frame = reference_store().frame(sorted({*runs} - stated))
    rows = []
    for metric, name in COLLAPSE_LABELS.items():
        found = pairs(frame, metric, relative=True)
        values = [100 * float(np.expm1(value)) for value in (found.interval.mean, *found.interval.ends())]
        rows.append([name, _change(pd.Series(values, ["change", "low", "high"])), _larger(found)])
    found = pairs(frame, "accuracy_balanced", "test", "last_epochs")
    value = {"difference": found.interval.mean, "half": found.interval.half}
    rows.append(["test accuracy", f"{_difference(value)} points", _larger(found)])
    return table(["", "DEQ against ResNet-18", "higher for the DEQ in"], rows)


def _larger(found: Pairs) -> str:
    differences = found.by_setting["difference"]
    return f"{(differences > 0).sum()} of {len(differences)} settings"


# --- the sister papers --------------------------------------------------------------------------------------------


def _ling_errors() -> str:
    errors, rows = read("sister-papers/ling-errors-quick"), []
    for _, row in errors[(errors["ratio"] == "p/n = 0.8") & (errors["tau0"] == "empirical")].iterrows():
        slope = minus(f"{row['slope']:.2f} ± {row['half']:.2f}")
        rows.append([row["activation"], f"{row['error at n=800']:.3f}", slope, f"*{row['verdict']}*"])
    return table(["activation", "relative error at n = 800", "slope over log n", "verdict"], rows)


def _ling_networks() -> str:
    networks = read("sister-papers/ling-networks-quick").iterrows()
    rows = [[row["trained"], row["DEQ"], f"{_difference(row)} points", f"*{row['verdict']}*"] for _, row in networks]
    return table(["trained", "DEQ", "distance, matched − plain", "verdict"], rows)


def _wu_counts() -> str:
    """ "16 statements: 9 holds, 1 typo, …"."""
    verdicts = read("sister-papers/wu-verdicts-quick")
    said = verdicts.loc[verdicts["part"] == "statement", "verdict"]
    counts = Counter(said)
    known = [f"{counts[word]} *{word}*" for word in (*words.STATEMENTS, *words.EXPERIMENTS) if word in counts]
    return f"{len(said)} statements: {', '.join(known)}"


def _wu_trained() -> str:
    """Statements that were trained, and rows of ours with a significant difference."""
    rows = []
    for _, row in read("sister-papers/wu-verdicts-quick").iterrows():
        shown = re.search(r"difference (\S+ ± \S+) \((\d) seeds\) ?(decades|dB)?", row["evidence"])
        ours = row["part"] != "statement"
        if not shown or "heat map" in row["claim"] or (ours and row["verdict"] not in ("higher", "lower")):
            continue
        value = " ".join(filter(None, [minus(shown[1]), shown[3]])) + f", {shown[2]} seeds"
        remark = str(row["remark"]) if isinstance(row["remark"], str) else ""
        rows.append([row["place"], row["claim"] + " (ours)" * ours, value, f"*{row['verdict']}*", remark])
    return table(["", "claim", "difference, DEQ − best rival", "verdict", "remark"], rows)


# --- benchmarks ---------------------------------------------------------------------------------------------------


def _bench(with_target: bool) -> str:
    """Measured ratios of solver, layer and metrics, with or without a target."""
    rows = pd.concat([read(f"bench/{name}") for name in ("solver", "training", "metrics")])
    rows = rows[(rows["target"].notna() == with_target) & ~rows["part"].isin(["truth", "evaluations to 1e-6"])]
    return _ratios(rows, ["measured", "low to high", *["target", "met"] * with_target])


def _ratios(rows: pd.DataFrame, heads: list[str]) -> str:
    lines = []
    for _, row in rows.iterrows():
        same = row["low"] == row["high"]
        cells = [f"{row['ratio']:.3g}", "–" if same else f"{row['low']:.3g} to {row['high']:.3g}"]
        cells += ["–" if pd.isna(row["target"]) else f"{row['target']:g}"] * ("target" in heads)
        cells += ["yes" if row["met"] is True or row["met"] == "True" else "**no**"] * ("met" in heads)
        lines.append([row["what"], row["case"], *cells])
    return table(["", "case", *heads], lines)


def _evaluations() -> str:
    """ "0.92 to 1.22", of the best of ours over the best peer on the maps of the table."""
    rows = read("bench/solver")
    ratios = rows.loc[rows["what"] == "best of nclib / best of all peers", "ratio"]
    return f"{ratios.min():.2f} to {ratios.max():.2f}"


def _survival() -> str:
    rows, counted = read("bench/survival"), ["injected", "survived", "epochs_lost"]
    kinds = rows["fault"].str.replace(r"^(fuzzed|hostile) .*", r"\1 input", regex=True)
    sums = rows.groupby(kinds, sort=False)[counted].sum()
    lines = [[name, *(f"{value:,}" for value in row)] for name, *row in sums.itertuples()]
    return table(["fault", "injected", "survived", "epochs done again"], lines)
