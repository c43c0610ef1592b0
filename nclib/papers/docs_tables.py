"""``docs/tables.md``: every table of results that the other pages do not show, from tracked runs.

``python -m nclib.papers.docs_tables`` writes the page; ``make figures`` does it too. Nothing on it
is typed by hand.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from nclib import paths
from nclib.compare import MIN_SEEDS
from nclib.figures import for_readers, markdown_table, minus
from nclib.metrics import LABELS
from nclib.papers.neural_collapse import collapse_tables, front_figures, protocol3, seli
from nclib.papers.neural_collapse.collapse_tables import COLLAPSE_LABELS, percent_text
from nclib.paths import write_atomic

HEAD = """# Tables

Every table of results that the other pages do not show. `make figures` writes this page from the
runs that are stored in the repository; nothing on it is typed by hand.

[Method](method.md) explains networks, metrics, intervals and the words of the verdicts. A change
compares the DEQ with ResNet-18, DEQ / ResNet-18 − 1, with its 95 % interval over seeds in brackets.
Accuracies and cosines are compared by their difference, accuracies in percentage points.
Collapse is measured on training images at the last epoch. Lower means closer to collapse, except
for cosines and, as [Results](results.md#definitions) explains, eq. 13 and 14.
"""


class Shown(NamedTuple):
    """A table of the page: its heading, a caption in plain words, and what makes it."""

    heading: str
    caption: str
    of: Callable[[], str]


def page() -> str:
    """The whole page as Markdown. It takes a few minutes."""
    lines = [HEAD]
    for part, tables in PARTS.items():
        lines.append(f"## {part}\n")
        for shown in tables:
            lines.append(f"### {shown.heading}\n\n{shown.caption}\n\n{shown.of()}\n")
    return "\n".join(lines)


def write() -> None:
    """Write the page."""
    write_atomic(paths.root() / "docs/tables.md", page().encode("utf-8"))


def read(name: str) -> pd.DataFrame:
    """A tracked table, by its path in results/reference without the ending."""
    return pd.read_csv(paths.reference() / f"{name}.csv")


# --- CIFAR-10 -------------------------------------------------------------------------------------


def at_equal_accuracy() -> str:
    """NC2 and NC3 where both networks have the same class-balanced training accuracy."""
    ratios = front_figures.at_equal_accuracy()
    percent = 100 * np.expm1(ratios["log_ratio"])
    ratios["change"] = [minus(f"{value:+.0f} %") for value in percent]
    shown = ratios.pivot(index=["metric", "level"], columns="K_A", values="change")
    lines = []
    for (metric, level), row in shown.iterrows():
        lines.append([metric, f"{100 * level:.0f} %", *row])
    heads = [f"K_A = {k_a}" for k_a in shown.columns]
    return markdown_table(["", "training accuracy", *heads], lines)


def turning_back() -> str:
    """The least value along training, and the one at the end."""
    rows = front_figures.turning_back()
    rows = rows.assign(is_deq=rows["network"] == "DEQ").sort_values(["metric", "K_A", "is_deq"])
    lines = []
    for row in rows.itertuples():
        line = [
            row.metric,
            str(row.K_A),
            row.network,
            f"{row.minimum:.2f}",
            f"{row.first} to {row.last}",
            f"{row.end:.2f}",
            f"{100 * row.rise:+.0f} %",
        ]
        lines.append(line)
    heads = ["", "K_A", "network", "least value", "at epoch", "last epoch", "rise"]
    return markdown_table(heads, lines)


def distance_to_seli() -> str:
    """Distances of class means and classifiers to SELI and to the simplex ETF."""
    columns = {
        "means_seli": "class means to SELI",
        "classifier_seli": "classifier to SELI",
        "means_etf": "class means to the ETF",
        "classifier_etf": "classifier to the ETF",
    }
    distances = seli.table()
    lines = []
    for ratio, k_a in distances.index.droplevel("network").unique():
        classes = f"{ratio} : 1, K_A = {k_a}" if k_a else "balanced"
        for name in ("ResNet-18", "DEQ", "simplex ETF"):
            row = distances.loc[(ratio, k_a, name)]
            cells = [f"{row[column]:.2f}" for column in columns]
            lines.append([classes, name, *cells])
    return markdown_table(["classes", "", *columns.values()], lines)


def other_processor() -> str:
    """How far the last epoch of a run moves on another kind of processor."""
    names = {"explicit": "ResNet-18", "deq": "DEQ"}
    lines = []
    bridges = protocol3.bridges().sort_values(
        ["unit", "model", "seed"], ascending=[True, False, True]
    )
    for _, row in bridges.iterrows():
        changes = [100 * float(np.expm1(row[metric])) for metric in protocol3.MOVED]
        cells = [minus(f"{change:+.1f} %") for change in changes]
        lines.append([row["unit"], names[row["model"]], str(row["seed"]), *cells])
    heads = ["bfloat16", "", "seed", *(LABELS[metric] for metric in protocol3.MOVED)]
    return markdown_table(heads, lines)


def protocol3_results() -> str:
    """The verdict of each experiment of protocol 3, its tests and its estimates."""
    lines = []
    for name in ("E1", "E2", "E3"):
        standing = protocol3.standing(name)
        if standing.found is None:
            lines.append([name, "both primary metrics", "", "", "*not analysed yet*"])
            continue
        seeds = str(len(standing.found.seeds))
        lines.append([name, "both primary metrics", "", seeds, f"**{standing.found.word}**"])
        for row in protocol3.results([standing]).itertuples():
            cells = [row.what, _changed(row), str(row.seeds), f"*{row.remark or row.verdict}*"]
            lines.append([name, *cells])
    return markdown_table(["", "", "change", "seeds", "verdict"], lines)


def _changed(row: NamedTuple) -> str:
    """The change of a row of `protocol3.results`, with its interval where it has one."""
    alone = np.isnan(row.low) or row.seeds < MIN_SEEDS
    if row.unit == "%":
        return percent_text(row.change, row.low, row.high, 0 if alone else row.seeds)
    ends = "" if alone else f" ({row.low:.1f} to {row.high:.1f})"
    return minus(f"{row.change:+.1f}{ends} points")


# --- digits ---------------------------------------------------------------------------------------

VERDICTS = ("as claimed here", "opposite here", "equal", "not significant", "reported", "not run")
PROCESSORS = {"tables": "Intel", "other-processor": "AMD"}
EXPERIMENTS = (
    r"(?:controls|nc definitions, GroupNorm|inside the solver|solver|remedies|long tail)[:,]"
)
"""How the rows of the scorecard begin that are shown where they lead or differ significantly."""
WITH_RULES = ("optimisers", "which_gradient")
"""Notebooks with a criterion of their own that was committed before their runs."""
PLAIN = {
    "same block, once": "the same block applied once",
    "explicit, same compute": "untied blocks of equal compute",
    "eq. 12, class-balanced": "eq. 12, within-class variance averaged over classes",
    "nc definitions, GroupNorm": "definitions, output stage GroupNorm",
    "nc2_etf_distance_classifier": "NC2 of the classifier",
    "nc3_self_duality.sample": "NC3, centred at the mean of the images",
    "controls: ": "controls, ",
}


def plain(text: str) -> str:
    """A name of the scorecard in the words of the docs."""
    text = for_readers(text)
    for saved, shown in PLAIN.items():
        text = text.replace(saved, shown)
    return text


def digits_verdicts() -> str:
    """How many rows of the scorecard got which verdict, on two processors."""
    cards = {processor: read(f"{place}/scorecard-quick") for place, processor in PROCESSORS.items()}
    claims = {
        "accuracy, single rows of Tables 1–4": _single_accuracies,
        "accuracy, each of Tables 1–4 as a whole": _pooled_accuracies,
        'collapse, "DEQ lower" in Figures 2–5': _claimed_lower,
        'collapse, "equal" in Figures 2–5': _claimed_equal,
    }
    lines = []
    for claim, chosen in claims.items():
        for processor, card in cards.items():
            count = Counter(card.loc[chosen(card), "verdict"])
            lines.append([claim, processor, *(str(count[word] or "–") for word in VERDICTS)])
    return markdown_table(["the paper's claims", "processor", *VERDICTS], lines)


def _single_accuracies(card: pd.DataFrame) -> pd.Series:
    return (card["part"] == "tables") & ~card["item"].str.contains("all cells")


def _pooled_accuracies(card: pd.DataFrame) -> pd.Series:
    return (card["part"] == "tables") & card["item"].str.contains("all cells")


def _claimed_lower(card: pd.DataFrame) -> pd.Series:
    return (card["part"] == "figures") & (card["printed"] == "DEQ lower")


def _claimed_equal(card: pd.DataFrame) -> pd.Series:
    return (card["part"] == "figures") & (card["printed"] != "DEQ lower")


def digits_collapse() -> str:
    """Changes over all settings of digits, by the block and by the equilibrium."""
    here = read("tables/equilibrium_or_cell-quick")
    there = read("other-processor/equilibrium_or_cell-quick")
    imbalanced = read("tables/collapse_pooled-quick").set_index("metric")
    columns = {
        "DEQ against ResNet-18": _step(here, "DEQ / explicit"),
        "the same, imbalanced settings": imbalanced,
        "the same, other processor": _step(there, "DEQ / explicit"),
        "block applied once against ResNet-18": _step(here, "cell / explicit"),
        "DEQ against the block applied once": _step(here, "DEQ / cell"),
    }
    lines = []
    for metric, name in COLLAPSE_LABELS.items():
        cells = []
        for rows in columns.values():
            cells.append(change(rows.loc[metric]) if metric in rows.index else "–")
        lines.append([name, *cells])
    return markdown_table(["", *columns], lines)


def _step(rows: pd.DataFrame, step: str) -> pd.DataFrame:
    return rows[rows["step"] == step].set_index("metric")


def change(row: pd.Series) -> str:
    """ "−15.0 % (−16.9 to −13.2)" of a row with change, low and high in percent."""
    return minus(f"{row['change']:+.1f} % ({row['low']:.1f} to {row['high']:.1f})")


def difference(row: pd.Series) -> str:
    """ "+1.3 ± 2.6" of a row with difference and half."""
    digits = max(0, 1 - int(np.floor(np.log10(row["half"]))))
    return minus(f"{row['difference']:+.{digits}f} ± {row['half']:.{digits}f}")


def scorecard() -> pd.DataFrame:
    """The tracked scorecard of digits, its numbers as difference and half."""
    card = read("tables/scorecard-quick")
    card = card.rename(columns={"regenerated": "difference", "interval": "half"})
    return card.assign(difference=pd.to_numeric(card["difference"], errors="coerce"))


def digits_experiments() -> str:
    """Primary comparisons of the experiments on digits, and every significant difference."""
    card = scorecard()
    significant = card["verdict"].isin(["higher", "lower"])
    shown = card[card["item"].str.match(EXPERIMENTS) & (card["lead"] | significant)]
    lines = []
    for _, row in shown.iterrows():
        lines.append([plain(row["item"]), difference(row), f"*{row['verdict']}*"])
    return markdown_table(["", "difference", "verdict"], lines)


def digits_with_rules() -> str:
    """Primary rows of `WITH_RULES`, and those that speak against the claim."""
    lines = []
    for name in WITH_RULES:
        claims = read(f"tables/{name}-quick")
        against = claims["verdict"].isin(["reported", "opposite here"])
        for _, row in claims[claims["lead"] | against].iterrows():
            word = row["verdict"]
            if word == "reported":
                reason, _, _ = str(row["remark"]).partition(",")
                word = f"{word}: {reason}"
            lines.append([f"`{name}`", plain(row["claim"]), change(row), f"*{word}*"])
    return markdown_table(["notebook", "compared", "change", "verdict"], lines)


# --- the sister papers ----------------------------------------------------------------------------


def ling_errors() -> str:
    """How the error of the equivalent kernel falls."""
    errors = read("sister-papers/ling-errors-quick")
    shown = errors[(errors["ratio"] == "p/n = 0.8") & (errors["tau0"] == "empirical")]
    lines = []
    for _, row in shown.iterrows():
        slope = minus(f"{row['slope']:.2f} ± {row['half']:.2f}")
        error = f"{row['error at n=800']:.3f}"
        lines.append([row["activation"], error, slope, f"*{row['verdict']}*"])
    heads = ["activation", "relative error at n = 800", "slope over log n", "verdict"]
    return markdown_table(heads, lines)


def ling_networks() -> str:
    """Whether networks with the same kernel classify alike."""
    lines = []
    for _, row in read("sister-papers/ling-networks-quick").iterrows():
        distance = f"{difference(row)} points"
        lines.append([row["trained"], row["DEQ"], distance, f"*{row['verdict']}*"])
    return markdown_table(["trained", "DEQ", "difference of the distances", "verdict"], lines)


def wu_computed() -> str:
    """Statements that were computed exactly."""
    return _wu(trained=False)


def wu_trained() -> str:
    """Statements that were trained."""
    return _wu(trained=True)


def _wu(trained: bool) -> str:
    rows = read("sister-papers/wu-verdicts-quick").fillna("")
    lines = []
    for _, row in rows[rows["computed"].str.startswith("trained") == trained].iterrows():
        whose = "the paper's" if row["part"] == "statement" else "ours"
        cells = [minus(row["evidence"]), f"*{row['verdict']}*", row["remark"]]
        lines.append([row["place"], whose, row["claim"], *cells])
    return markdown_table(["", "whose claim", "claim", "found", "verdict", "remark"], lines)


# --- the page -------------------------------------------------------------------------------------

PARTS = {
    "CIFAR-10: the replication": [
        Shown(
            "All tests of the replication",
            "100 : 1, five new seeds. The first two rows are the primary outcome. The following "
            "rows with a verdict are secondary tests, made in this order until one fails: "
            "*reported* for NC1 means that equality is claimed and was not shown. Rows with – "
            "were not tested. The last column has the three seeds of the first experiment. The "
            "standard deviation between the three settings is given because the intervals cover "
            "seeds, not settings.",
            collapse_tables.replication_tests,
        ),
        Shown(
            "Sensitivity",
            "The two analyses that the protocol asks for: only pairs in which both networks "
            "misclassify at most one training image of every class, and both networks at equal "
            "training loss.",
            collapse_tables.replication_sensitivity,
        ),
    ],
    "CIFAR-10: every metric": [
        Shown(
            "Every metric by setting",
            "100 : 1 is the mean of K_A = 3, 5 and 7, five new seeds; 10 : 1 and balanced have "
            "the three seeds of the first experiment. Values of the networks are arithmetic "
            "means, changes geometric ones.",
            collapse_tables.every_metric,
        ),
        Shown(
            "Norms or directions",
            "A metric depends on the norms of class means and classifier rows, and on their "
            "directions. The last two columns combine the norms of one network with the "
            "directions of the other: before the class means are centred, or, in the rows that "
            "say so, after. The rows of eq. 14 are not centred at all. Chosen after the results "
            "of the first experiment were seen.",
            collapse_tables.norms_or_directions,
        ),
        Shown(
            "What the trace ratio is made of",
            "Mean of 100 : 1 with K_A = 3, 5, 7 and of 10 : 1 with K_A = 3, three seeds of the "
            "first experiment. The ratio tr Σ_W / tr Σ_B is larger for the DEQ because its class "
            "means are closer to one another. Chosen after the results were seen.",
            collapse_tables.parts_of_nc1,
        ),
        Shown(
            "Better, or only later: at equal training accuracy",
            "100 : 1, five new seeds. DEQ against ResNet-18 at the point of training where the "
            "class-balanced training accuracy first reaches the level in the second column, "
            "interpolated between evaluations five epochs apart. Looked at after the runs; a "
            "lead, not a test.",
            at_equal_accuracy,
        ),
        Shown(
            "Better, or only later: the least value and the last",
            "100 : 1, means over five new seeds. How far NC2 and NC3 rise again after their least "
            "value along training. Looked at after the runs; a lead, not a test.",
            turning_back,
        ),
        Shown(
            "Distance to SELI",
            "Means over seeds at the last epoch. SELI is the optimum of cross-entropy with "
            "vanishing weight decay for these class sizes (Thrampoulidis et al. 2022); on "
            "balanced classes it is the simplex ETF. The rows of the simplex ETF give its own "
            "distance as a scale. All distances are between normalised Gram matrices, as in NC2. "
            "Looked at after the runs.",
            distance_to_seli,
        ),
        Shown(
            "On another processor",
            "100 : 1, K_A = 3. Change of the last epoch when a run of the replication is trained "
            "again on another processor, which computes in bfloat16 as the first column says. The "
            "stored runs of seed 10 and 11 come from a processor without a unit for it, those of "
            "seed 12 from one with AMX.",
            other_processor,
        ),
    ],
    "CIFAR-10 and CIFAR-100: what follows": [
        Shown(
            "Equilibrium or block, CIFAR-100, three times the epochs",
            "The three experiments of [protocol 3](protocol-3.md), whose rules were committed "
            "before their runs; each is analysed once, after its last seed. E1 compares the DEQ "
            "with its own block applied once, E2 and E3 with ResNet-18. What is *estimated* was "
            "not tested.",
            protocol3_results,
        )
    ],
    "CIFAR-10: the first experiment": [
        Shown(
            "Verdicts by setting",
            "Difference DEQ − ResNet-18, three seeds, ± 95 % interval, with its verdict. The "
            "paper's NC2 is eq. 13; all other rows are secondary. At K_A = 7 two DEQs miss the "
            "inclusion criterion of 99.9 % training accuracy over classes, so collapse is only "
            "*reported*. On balanced classes the paper claims equality of every metric of "
            "collapse; *reported: higher* and *lower* are significant differences there.",
            collapse_tables.first_verdicts,
        ),
        Shown(
            "With and without two of the settings",
            "Mean of the four imbalanced settings with three seeds; without the setting in which "
            "two DEQs miss the inclusion criterion; and without the setting whose direction a "
            "pilot had shown.",
            collapse_tables.without_some_runs,
        ),
        Shown(
            "Tables 1 to 4 of the paper",
            "Class-balanced test accuracy in percent, mean of the last ten epochs and of three "
            "seeds (* fewer seeds, – not run). Ours are trained without augmentation and with a "
            "quarter of the paper's width.",
            collapse_tables.accuracies,
        ),
    ],
    "Digits": [
        Shown(
            "Verdicts on the paper's claims",
            "How many rows of the notebook `scorecard` have which verdict, on two kinds of "
            "processor. Digits stand for CIFAR-10, so the words speak of digits alone.",
            digits_verdicts,
        ),
        Shown(
            "Collapse over all thirteen settings",
            "Changes in percent, three seeds. The last column was the primary comparison of the "
            "notebook `equilibrium_or_cell`; everything else is exploratory.",
            digits_collapse,
        ),
        Shown(
            "Controls, definitions, solver, remedies, long tail",
            "The primary comparison of each notebook, and every significant difference, DEQ minus "
            "the network named; all other differences are not significant.",
            digits_experiments,
        ),
        Shown(
            "Optimisers and gradients",
            "The primary rows of the two notebooks, and the rows that speak against the claim. "
            "For gradients the claim is that a cheaper one gives the same collapse.",
            digits_with_rules,
        ),
    ],
    "Ling et al.": [
        Shown(
            "Error of the equivalent kernel",
            "Slope of log error over log n at the three largest sizes, ± 95 % interval over "
            "draws. The paper names no activations for this figure; erf is not in its released "
            "scripts.",
            ling_errors,
        ),
        Shown(
            "Trained networks",
            "Digits. Distance in test accuracy of the matched network from the DEQ, minus that of "
            "the plain network with the DEQ's activation; negative means that the matched network "
            "is closer.",
            ling_networks,
        ),
    ],
    "Wu et al.": [
        Shown(
            "Computed exactly",
            "Statements of the paper, and rows of ours that say nothing for or against it.",
            wu_computed,
        ),
        Shown(
            "Trained",
            "DEQ against the best rival of the same seed. Errors are compared on a logarithmic "
            "scale, in decades. Ours are rows with a target, constraint or setting of our own.",
            wu_trained,
        ),
    ],
}

if __name__ == "__main__":
    write()
