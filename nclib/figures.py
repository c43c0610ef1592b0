"""Save figures and tables with a caption and a record of where they come from, and describe runs.

Nothing is drawn here: that is `nclib.plots`.

Same input, same bytes: no format holds a date, a version or a random identifier, so a file that
changed in a comparison did change. Time, commit and versions are in the record beside it.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from nclib import paths, provenance
from nclib.config import DataConfig, RunConfig, TrainConfig, run_id
from nclib.data import resolve_dataset
from nclib.metrics import LABELS
from nclib.metrics.report import SMALL_CLASS
from nclib.paths import csv_bytes, sha256, write_atomic
from nclib.profiles import class_counts, original, outline
from nclib.store import ReferenceStore, one_place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- figures and tables on disk -------------------------------------------------------------------


def save_figure(
    fig: Figure,
    name: str,
    caption: str,
    runs: Iterable[str],
    profile: str,
    data: pd.DataFrame | None = None,
) -> dict[str, Path]:
    """Save a figure as PDF (TrueType fonts embedded) and PNG (300 dpi), its numbers as CSV, and a
    record.

    Parameters
    ----------
    fig : drawn at its final width; it is saved as it is, nothing is cropped
    name : "paper/notebook" or any path of plain names, without an ending; it lands in
        ``results(profile)/figures/<name>.*``
    caption : what is drawn, from which profile, how many seeds, what the error bars mean
    runs : ids of the runs behind it; empty where nothing was trained
    profile : among whose results it lands
    data : tidy frame of the drawn numbers

    Returns
    -------
    dict
        "pdf", "png", "csv" (with data) and "json" to absolute paths.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import nclib as nc
    >>> fig, ax = plt.subplots(figsize=(2, 2))
    >>> files = nc.save_figure(fig, "mine/plot", "A plot, profile smoke.", [], "smoke")
    >>> plt.close(fig)
    >>> sorted(files)
    ['json', 'pdf', 'png']
    """
    contents = {"pdf": _render(fig, "pdf")}
    layout = fig.get_layout_engine()
    fig.set_layout_engine("none")  # that of the PDF: to find it takes as long as to render it
    contents["png"] = _render(fig, "png")
    fig.set_layout_engine(layout or "none")
    if data is not None:
        data = data.drop(columns="protocol", errors="ignore")  # the runs record it
        contents["csv"] = csv_bytes(data)
    return _save("figures", contents, name, caption, runs, profile)


def save_table(
    frame: pd.DataFrame,
    name: str,
    caption: str,
    runs: Iterable[str],
    profile: str,
    display: pd.DataFrame | None = None,
) -> dict[str, Path]:
    """Save a table as CSV (the raw numbers), Markdown (what a reader sees), and a record.

    Parameters
    ----------
    frame : the numbers, in full precision; its index is left out, so name every column that matters
    name, caption, runs, profile : as of `save_figure`; it lands in
        ``results(profile)/tables/<name>.*``
    display : the same content as readable text, such as "94.00 ± 1.00"; None shows ``frame`` with
        four significant digits and a dash for what is missing

    Returns
    -------
    dict
        "csv", "md" and "json" to absolute paths.

    Examples
    --------
    >>> import pandas as pd
    >>> import nclib as nc
    >>> table = pd.DataFrame({"model": ["deq"], "accuracy": [0.9]})
    >>> sorted(nc.save_table(table, "mine/table", "A table, profile smoke.", [], "smoke"))
    ['csv', 'json', 'md']
    """
    shown = frame if display is None else display
    cells = shown.astype(object).map(_cell).to_numpy()
    markdown = markdown_table(map(str, shown.columns), cells)
    contents = {"csv": csv_bytes(frame), "md": f"{markdown}\n\n{caption}\n".encode()}
    return _save("tables", contents, name, caption, runs, profile)


def _save(
    kind: str,
    contents: Mapping[str, bytes],
    name: str,
    caption: str,
    runs: Iterable[str],
    profile: str,
) -> dict[str, Path]:
    """Write the files by their endings, and beside them ``<name>.json``: caption, runs, checksums,
    commit and versions.

    A notebook whose parameters were edited leaves the results of its own parameters alone
    (`results_of`).
    """
    folder = results_of(name, profile)
    if folder != paths.results(profile):
        print(f"{name}: saved in {folder.relative_to(paths.results()).as_posix()}/{kind}")
    base = folder / kind / name
    runs = sorted({str(run) for run in runs})
    record = {
        "name": name,
        "caption": caption,
        "profile": profile,
        "runs": runs,
        "runs_from": _where(runs),
        **provenance.capture(),
        "files": {},
    }
    written = {}
    for ending, content in contents.items():
        path = write_atomic(f"{base}.{ending}", content)
        record["files"][path.name] = {"sha256": sha256(content), "bytes": len(content)}
        written[ending] = path
    text = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    # Last: its presence shows that the rest is complete.
    written["json"] = write_atomic(f"{base}.json", text)
    return written


def results_of(name: str, profile: str) -> Path:
    """The folder in whose ``figures`` and ``tables`` a notebook saves: that of the profile, or, of a
    notebook whose parameters were edited, where ``nclib reproduce -p`` would save.

    Parameters
    ----------
    name : "paper/notebook"
    profile : as of `save_figure`
    """
    other_parameters = os.environ.get("NCLIB_WITH") or paths.folder_name(_edited_parameters(name))
    with paths.results_with(other_parameters):
        return paths.results(profile)


def _edited_parameters(name: str) -> dict[str, Any]:
    """Of the notebook that this kernel runs and that saves this, the parameters that are not its
    own values, by name.

    Its own values stand in the metadata of its parameters cell, which stay when that is edited.
    """
    values = vars(sys.modules["__main__"])
    if "get_ipython" not in values:
        return {}
    folder, _, file_name = name.rpartition("/")
    try:
        notebooks = (paths.notebooks() / folder).glob("*.ipynb")
    except FileNotFoundError:  # nclib without its clone: the notebook is the user's own
        return {}
    edited = {}
    for notebook in notebooks:
        if file_name == notebook.stem or file_name.startswith(f"{notebook.stem}_"):
            for cell in json.loads(notebook.read_bytes())["cells"]:
                for parameter, default in cell["metadata"].get("defaults", {}).items():
                    if values.get(parameter, default) != default:
                        edited[parameter] = values[parameter]
    for parameter in ("dataset", "hundred_dataset"):
        if edited.get(parameter):
            edited[parameter] = resolve_dataset(edited[parameter])
    return edited


def _where(runs: Sequence[str]) -> str:
    """Where the runs of a figure lie, for its record: trained here, or tracked in the
    repository."""
    if not runs:
        return ""
    place = one_place(runs)
    if place is None:
        return "trained here and tracked"
    return "tracked" if isinstance(place, ReferenceStore) else "trained here"


def _render(fig: Figure, ending: str) -> bytes:
    """The figure as a file: saved by matplotlib's own settings, with fonts that PDF can embed."""
    import matplotlib as mpl  # here, since every worker loads this module, and none of them draws

    saving = {"pdf.fonttype": 42}
    for name, value in mpl.rcParamsDefault.items():
        if name.startswith("savefig."):
            saving[name] = value
    empty = {"pdf": ("CreationDate", "Creator", "Producer"), "png": ("Software",)}[ending]
    buffer = io.BytesIO()
    with mpl.rc_context(saving):
        fig.savefig(buffer, format=ending, dpi=300, metadata=dict.fromkeys(empty))
    return buffer.getvalue()


def _cell(value: object) -> str:
    if pd.isna(value):
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


# --- what captions say ----------------------------------------------------------------------------


STAND_INS = {"digits": "cifar10", "digit_pairs": "cifar100"}
"""Small images that stand for a data set of the paper, with the same number of classes."""


def stand_ins(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Which of the paper's data sets the images of these runs are, or stand for; other images are
    left out, since the paper has no number for them.

    Parameters
    ----------
    configs : of any runs

    Examples
    --------
    >>> import nclib as nc
    >>> nc.figures.stand_ins(nc.experiment("fig3", "smoke"))
    {'digits': 'cifar10'}
    >>> nc.figures.stand_ins(nc.experiment("fig3", "smoke", dataset="mnist"))
    {}
    """
    names = {}
    for config in configs:
        dataset = config.data.dataset
        paper = STAND_INS.get(dataset) or original(dataset)
        if paper in STAND_INS.values():
            names[dataset.split("@")[0]] = paper
    return names


def describe_runs(configs: Sequence[RunConfig]) -> str:
    """One paragraph for captions: profile, data with the real n_A and n_B, test images, network,
    protocol, seeds.

    Parameters
    ----------
    configs : of the runs that are shown

    Examples
    --------
    >>> import nclib as nc
    >>> "digits" in nc.figures.describe_runs(nc.experiment("fig3", "smoke"))
    True
    """
    configs = [config for config in configs if isinstance(config, RunConfig)]
    presets = dict.fromkeys(config.profile for config in configs)
    widths = dict.fromkeys(str(config.model.width) for config in configs)
    epochs = dict.fromkeys(str(config.train.epochs) for config in configs)
    settings = dict.fromkeys(_describe_data(config.data) for config in configs)
    tested = dict.fromkeys(_describe_test(config.data) for config in configs)
    optimisers = dict.fromkeys(_describe_optimiser(config.train) for config in configs)
    network = f"ResNet-18 of width {' and '.join(widths)}"
    cells = sorted({config.model.own_cell for config in configs if config.model.own_cell})
    if cells:
        network += f" with {' and '.join(cells)}"
    training = f"{' or '.join(epochs)} epochs of {' or '.join(optimisers)}"
    if all(config.data.augment == "none" for config in configs):
        training += " without augmentation"
    counts = _seeds_of_settings(configs)
    if counts == {1}:
        seeds = "1 seed, so no s.d. over seeds"
    elif len(counts) == 1:
        seeds = f"{max(counts)} seeds"
    else:
        seeds = f"{min(counts)} to {max(counts)} seeds"
    place = one_place(map(run_id, configs))
    tracked = " Runs as tracked in the repository." if isinstance(place, ReferenceStore) else ""
    return (
        f"Profile {' and '.join(presets)}: {'; '.join(settings)}. Tested on {' and '.join(tested)}. "
        f"{network}, {training}, {seeds}.{tracked}"
    )


def describe_seeds(configs: Sequence[RunConfig], spread: str = "95 % t-intervals") -> str:
    """For captions, what is drawn or listed of these seeds: "means over seeds with 95 %
    t-intervals", or of a single one "values of one seed, so without 95 % t-intervals".

    Parameters
    ----------
    configs : of the runs that are shown
    spread : what is drawn around the means, a plural

    Examples
    --------
    >>> import nclib as nc
    >>> nc.figures.describe_seeds(nc.experiment("fig3", "smoke", seeds=3))
    'means over seeds with 95 % t-intervals'
    """
    if max(_seeds_of_settings(configs)) > 1:
        return f"means over seeds with {spread}"
    return f"values of one seed, so without {spread}"


def _seeds_of_settings(configs: Sequence[RunConfig]) -> set[int]:
    """The numbers of seeds that settings have."""
    seeds = set()
    for config in configs:
        images = config.data
        setting = (images.dataset, images.imbalance, images.num_majority, images.ratio)
        seeds.add((setting, config.seed))
    return set(Counter(setting for setting, _ in seeds).values())


def _describe_optimiser(train: TrainConfig) -> str:
    name = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[train.optimiser]
    return (
        f"{name} (lr {train.lr:g}, {train.schedule}, batch {train.batch_size}, "
        f"weight decay {train.weight_decay:g})"
    )


def _data_name(dataset: str) -> str:
    """A data set as sentences name it: without the fingerprint; an image folder as such."""
    name = dataset.split("@")[0]
    if name.startswith("folder:"):
        return f"the image folder {name.removeprefix('folder:')}"
    return name


def _describe_test(images: DataConfig) -> str:
    of_classes = f"of each class of {_data_name(images.dataset)}"
    if images.test_per_class:
        return f"{images.test_per_class} images {of_classes}"
    least, most = outline(images.dataset).test or (0, 0)
    if not most:
        return f"all test images {of_classes}"
    if least == most:
        return f"{most} images {of_classes}"
    return f"{least} to {most} images {of_classes}"


def _describe_data(images: DataConfig) -> str:
    name = _data_name(images.dataset)
    about = outline(images.dataset)
    n_max = images.n_max or about.per_class
    if images.imbalance == "balanced":
        return f"{name} balanced ({about.classes} classes, {n_max} training images each)"
    kind = f"K_A = {images.num_majority} of" if images.imbalance == "step" else "exponential over"
    smallest = int(class_counts(images).min())
    sizes = f"n_A = {n_max}, n_B = {smallest}"
    real = n_max / smallest
    if abs(real / images.ratio - 1) >= 0.01:
        sizes += f", in fact R = {real:.4g}"
    if smallest == 1:
        sizes += ", and a class of one image has no within-class variance"
    elif smallest <= SMALL_CLASS:  # 1/n of it is missing, where n images have their own mean
        missing = f"{100 / smallest:.0f} %"
        sizes += f", and the variance within a class of {smallest} images is {missing} too small"
    return f"{name} with {kind} {about.classes} classes, R = {images.ratio:g} ({sizes})"


# --- tables as people read them -------------------------------------------------------------------

_VERDICTS = ("verdict", "slope is", "printed against ours")
"""What tables call their verdicts."""

_COLUMN_NAMES = {
    "half": "± 95 %",
    "interval": "± 95 %",
    "arm_value": "DEQ",
    "deq": "DEQ",
    "explicit": "ResNet-18",
    "value": "the other",
    "model": "compared with",
    "detectable": "detectable difference",
    "lower_in": "lower in",
    "settings_found": "settings",
    "printed": "the paper",
    "regenerated": "found",
}
"""Columns that readers call by another name."""
_PLACES = (
    *("experiment", "what", "panel", "item", "setting", "step"),
    *("way", "place", "part", "data", "stands for"),
    *("dataset", "K_A", "R"),
)
_CLAIMS = (
    *("remedy", "arm", "printed", "claim", "metric", "quantity", "accuracy", "measure"),
    *("model", "split"),
)
_FIRST = (*_PLACES, *_CLAIMS, *_VERDICTS, "scale")
_LAST = ("remark", "reading", "rule", "defect", "certificate", "computed", "command")
_LAST += ("notebook", "runs")
_FOR_PROGRAMS = ("id", "lead", "saved", "settings_planned")

_MODELS = {
    "deq": "DEQ",
    "explicit": "ResNet-18",
    "explicit_matched": "same block, once",
    "explicit_flops": "explicit, same compute",
    "weight_tied": "weight-tied",
}
"""What pictures call the kinds of networks."""
_PHRASES = {
    "− explicit matched": "− same block, once",
    "− explicit flops": "− explicit, same compute",
    "− explicit": "− ResNet-18",
    "/ explicit": "/ ResNet-18",
    "explicit, same cell": "same block, once",
    "weight tied": "weight-tied",
    "NC1, class-balanced": "NC1, eq. 12, class-balanced",
    "cosine among minority classes": "cos(w_j, w_k) of minority classes",
}
"""The same in saved sentences, and names of metrics; of several that fit the first."""
_PHRASE = re.compile("|".join(_PHRASES))
_NUMBER = re.compile(r"(?<![\w.=-])-?\.?\d[\d.]*(?:e-\d+)?")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A table of verdicts for readers: where and what is claimed, the verdict and its scale, the
    numbers, then remarks, in the names that captions use.

    Parameters
    ----------
    table : of results; what is saved is the table itself, not this text

    Returns
    -------
    DataFrame
        Of text, with three significant digits. Columns that are for programs are left out.

    Examples
    --------
    >>> import pandas as pd
    >>> readable(pd.DataFrame({"metric": ["nc1_pinv"], "half": [0.12345], "verdict": ["equal"]}))
           metric verdict ± 95 %
      NC1, eq. 12   equal  0.123
    """
    if "settings_planned" in table:
        table = table.assign(settings_found=_found_of_planned(table))
    table = table.drop(columns=list(_FOR_PROGRAMS), errors="ignore")
    between = [name for name in table if name not in _FIRST and name not in _LAST]
    order = [name for name in (*_FIRST, *between, *_LAST) if name in table]
    shown = table[order].replace({"metric": LABELS}).map(_text).rename(columns=_COLUMN_NAMES)
    shown.index = [""] * len(shown)
    return shown


def _found_of_planned(table: pd.DataFrame) -> list[str]:
    """Settings, such as "4 of 9"."""
    texts = []
    for found, planned in zip(table["settings_found"], table["settings_planned"], strict=True):
        text = "" if pd.isna(found) else f"{found:.0f}"
        if text and pd.notna(planned):
            text += f" of {planned:.0f}"
        texts.append(text)
    return texts


def _text(value: object) -> object:
    if isinstance(value, str):
        return minus(for_readers(value))
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return minus(f"{value:.3g}")
    return value


def for_readers(text: str) -> str:
    """The text with the names of networks and metrics that pictures use for those in saved tables;
    ids stay.

    Parameters
    ----------
    text : from a cell of a saved table

    Examples
    --------
    >>> for_readers("controls: NC1, class-balanced, DEQ − explicit matched")
    'controls: NC1, eq. 12, class-balanced, DEQ − same block, once'
    >>> for_readers("DEQ / explicit: NC1"), for_readers("digits-explicit_matched-s0-3e1")
    ('DEQ / ResNet-18: NC1', 'digits-explicit_matched-s0-3e1')
    """
    if text in _MODELS:
        return _MODELS[text]
    return _PHRASE.sub(lambda phrase: _PHRASES[phrase[0]], text)


def minus(text: str) -> str:
    """The text with a minus sign for the hyphen of each negative number and exponent; the hyphens
    of words, names and dates stay, and so does ``lr=1e-4``, which one types.

    Parameters
    ----------
    text : with numbers in it

    Examples
    --------
    >>> minus("-0.4 (-1.6 to 0.8), 1e-06, run-3-a7, 2026-01-02, -p lr=1e-4")
    '−0.4 (−1.6 to 0.8), 1e−06, run-3-a7, 2026-01-02, -p lr=1e-4'
    """
    return _NUMBER.sub(lambda number: number[0].replace("-", "−"), text)


def markdown_table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    Parameters
    ----------
    heads : of the columns
    rows : of the cells, as text

    Examples
    --------
    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)
