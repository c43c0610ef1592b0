"""What a finished network gives when its last block is applied 0, 1, 2, … times, without a solver.

A `DepthConfig` names one finished run, whose weights stay as they are. The block's input is z_0, and z_T the state
after T applications: of the cell, z_T = f(z_{T−1}, x), where one cell is repeated; of the blocks in turn, where each
has weights of its own. That is a stored run like any other.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from companion.neural_collapse.solver_sweep import PROBED
from nclib import comparison, evaluation, metrics, training
from nclib.comparison import EQUAL_WITHIN, NotMeasured, Verdict, interval, pairs, verdict
from nclib.config import PostHocConfig, RunConfig, StoredConfig, run_id
from nclib.deq import DEQ
from nclib.engine.jobs import Job, Result
from nclib.engine.reference import load_run
from nclib.evaluation import Outputs
from nclib.models import Classifier, UntiedCells, WeightTied
from nclib.solver import EPSILON
from nclib.system import words

_GROUPS = {f"accuracy_{'balanced' if name == 'all' else name}": name for name in ("all", "majority", "minority")}
# T at which the state of an equilibrium's cell is measured; other blocks are measured after each application.
DEPTHS = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20)
# T at which claims about a removed solver are judged.
REMOVED = (0, 1, 2)
# Points of accuracy within which the state of a removed solver is as good as the equilibrium.
WITHIN = 1.0
# What may tell wrong answers from right ones; the last one, which needs no equilibrium, is the yardstick.
SIGNALS = {
    "residual": "the residual of the solve",
    "steps": "the number of evaluations",
    "residual_1": "the residual of z_1",
    "residual_2": "the residual of z_2",
    "doubt": "1 − the largest probability",
}
# Wrong answers, and right ones, that every seed needs in a setting for its AUROC to count.
FEWEST = 5


class DepthConfig(PostHocConfig):
    """A look at z_0, z_1, z_2, … of one finished run.

    Parameters
    ----------
    base : the run; its network has a last block, which a network of your own has not
    """

    kind: Literal["depth"] = "depth"

    def label(self) -> str:
        return f"{self.base.label()}-depth"

    def execute(self, job: Job) -> Result:
        return Result({"history": measure(self, job)})


def measure(config: DepthConfig, job: Job) -> pd.DataFrame:
    """The history of a look at z_T.

    Returns
    -------
    DataFrame
        Columns epoch, split, metric, value, as in every history. `split` is made of two parts, so that no row can be
        taken for one of an ordinary run; `depth_rows` takes them apart:

        train/depth, test/depth     `epoch` is T. Accuracies; of training images the metrics of collapse,
                                    ``effective_rank`` of the features and ``effective_rank_means`` of the centred
                                    class means
        train/solved, test/solved   the same of the equilibria, found again by the run's own solver; ``distance_T`` is
                                    the mean over images of ‖z_T − z*‖/‖z*‖
        test/error                  ``auroc_S`` of each of `SIGNALS` for a wrong answer, and ``wrong`` and ``right``,
                                    the numbers of images; also of each group of classes, with its name at the end
        train/noted, steps/noted    what the run itself noted: the loss of its last epoch, and ``start_distance`` of
                                    every epoch where it was logged
    """
    last, rows, noted = config.train.epochs, [], job.store.open(job.base).history
    with training.arithmetic(config.train, job.device), torch.no_grad():
        model, split, loaders = training.reopen(config.base, job.store.open(job.base).weights, job.device)
        for name, loader in loaders.items():
            outputs, images = _see(model.eval(), loader.in_order())
            for key, state in outputs.items():
                where = (last, f"{name}/solved") if key == "solved" else (key, f"{name}/depth")
                rows += [(*where, *row) for row in _report(state, split, name).items()]
            distances = {key: image for key, image in images.items() if key.startswith("distance")}
            rows += [(last, f"{name}/solved", key, image.double().mean().item()) for key, image in distances.items()]
            if name == "test" and "solved" in outputs:
                rows += [(last, "test/error", *row) for row in _errors(outputs["solved"], images, split.minority)]
    noted = noted.query("split == 'train' and metric == 'loss' and epoch == @last or metric == 'start_distance'")
    measured = pd.DataFrame(rows, columns=["epoch", "split", "metric", "value"])
    return pd.concat([measured, noted.assign(split=noted["split"] + "/noted")[measured.columns]], ignore_index=True)


def _see(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[dict[Any, Outputs], dict[str, Tensor]]:
    """A split through the network: outputs at each T and, of an equilibrium, at the key "solved"; and of each image of
    an equilibrium ``distance_T`` and the residual of z_1 and z_2."""
    outputs, images = defaultdict(list), defaultdict(list)
    for batch, labels in batches:
        x = model.encoder(batch)
        with torch.autocast(x.device.type, enabled=False):  # as `Classifier.transform` computes the last block
            z = before = x.to(model.classifier.weight.dtype).contiguous()
            solved, solution = model.transform(z) if isinstance(model.block, DEQ) else (None, None)
            if solution is not None:
                evidence = solution.residual, solution.steps, solution.converged
                outputs["solved"].append((*_read_out(model, solved), labels, *evidence))
            for t, step in enumerate([nn.Identity(), *_steps(model.block, z)]):
                before, z = z, step(z)
                if t in DEPTHS or solution is None:
                    outputs[t].append((*_read_out(model, z), labels, None, None, None))
                    if solution is not None:
                        images[f"distance_{t}"].append(_norm(z - solved) / _norm(solved).clamp_min(EPSILON))
                if solution is not None and t in (2, 3):
                    images[f"residual_{t - 1}"].append(_norm(z - before) / (_norm(z) + EPSILON))
    joined = {key: evaluation.join(parts, model.classifier.weight) for key, parts in outputs.items()}
    return joined, {key: torch.cat(parts) for key, parts in images.items()}


def _steps(block: nn.Module, x: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """From z_0 = x to z_1, from there to z_2, and so on: as often as the network does, or to the last of `DEPTHS`."""
    if isinstance(block, (DEQ, WeightTied)):
        return [lambda z: block.cell(z, x)] * (DEPTHS[-1] if isinstance(block, DEQ) else block.steps)
    if isinstance(block, UntiedCells):
        return [lambda z, cell=cell: cell(z, z) for cell in block.cells]
    return [block]


def _norm(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z.flatten(1), dim=1)


def _read_out(model: Classifier, z: Tensor) -> tuple[Tensor, Tensor]:
    logits, features, _ = model.read_out(z, None)
    return features, logits


def _report(outputs: Outputs, split: Any, name: str) -> dict[str, float]:
    """What is kept of one state of a split."""
    report = evaluation.summarise(outputs, split.counts, split.minority, with_nc=name == "train")
    wanted = {key: report[key] for key in report if key in {"loss", "accuracy_train_prior", *_GROUPS, *PROBED}}
    if name == "train":
        moments = metrics.class_moments(outputs.features, outputs.labels, len(split.counts))
        wanted["effective_rank"] = metrics.effective_rank(moments)
        wanted["effective_rank_means"] = rank_of_means(moments.class_means[moments.present])
    return wanted


def rank_of_means(means: np.ndarray | Tensor) -> float:
    """Effective rank of class means (K, d) around their mean, from their singular values: K − 1 where they are a
    simplex, less where they lie in fewer dimensions or unevenly."""
    means = torch.as_tensor(means).double()
    return metrics.effective_rank(metrics.class_moments(means, torch.arange(len(means)), len(means)))


def auroc(score: Tensor, wrong: Tensor) -> float:
    """The share of pairs of a wrong and a right image in which the wrong one has the higher score; ties count half.
    NaN without such a pair.

    Parameters
    ----------
    score, wrong : (N,) and boolean (N,)
    """
    high, low = score[wrong].double().cpu().numpy(), np.sort(score[~wrong].double().cpu().numpy())
    if not len(high) or not len(low):
        return float("nan")
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))


def _errors(outputs: Outputs, images: Mapping[str, Tensor], minority: Tensor) -> Iterator[tuple[str, float]]:
    """(metric, value) of "test/error"."""
    doubt = 1 - outputs.logits.double().softmax(1).amax(1)
    signals = {"residual": outputs.residual, "steps": outputs.steps, "doubt": doubt, **images}
    wrong = outputs.logits.argmax(1) != outputs.labels
    small = torch.as_tensor(minority).to(wrong.device)[outputs.labels]
    groups = {"": torch.ones_like(wrong)} | ({"_majority": ~small, "_minority": small} if small.any() else {})
    for group, rows in groups.items():
        yield f"wrong{group}", int(wrong[rows].sum())
        yield f"right{group}", int((~wrong[rows]).sum())
        for signal in SIGNALS:
            yield f"auroc_{signal}{group}", auroc(signals[signal][rows], wrong[rows])


# --- what the looks say ---------------------------------------------------------------------------------------------


def depth_rows(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of one kind, "depth", "solved", "error" or "noted", of the looks in a tidy frame; `split` is then
    "train", "test" or "steps", and `epoch` is T in the first."""
    parts = frame["split"].str.split("/")
    chosen = parts.map(len).eq(2) & parts.str[1].eq(kind)
    return frame[chosen].assign(split=parts[chosen].str[0])


def states_as_models(frame: pd.DataFrame) -> pd.DataFrame:
    """The looks at equilibria as if each state were a network of its own: `model` is "T = 0", "T = 1", …, or "solved".
    `nclib.comparison` then compares states as it compares networks, paired by seed."""
    depths, solved = depth_rows(frame, "depth"), depth_rows(frame, "solved")
    depths = depths[depths["run_id"].isin(solved["run_id"])]
    both = pd.concat([depths.assign(model="T = " + depths["epoch"].astype(str)), solved.assign(model="solved")])
    return both.assign(run_id=both["run_id"] + ", " + both["model"], epoch=0)


def without_solver(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Test accuracy of z_T, T of `REMOVED`, minus that of the equilibrium.

    Each seed's mean difference over all settings, a 95 % t-interval over seeds, and the rule of `nclib.verdict` for the
    claim "equal", but with the whole interval within `WITHIN` points instead of a tenth of the accuracy.

    Returns
    -------
    DataFrame with a row for each T and group of classes: claim, solved, value (means, in percent), difference (in
    points), half, detectable, settings_found, seeds, verdict, scale, remark.
    """
    states, found = states_as_models(frame), []
    for t, (metric, group) in product(REMOVED, _GROUPS.items()):
        claim = f"T = {t}, {group} classes: accuracy, without the solver − with it, in points"
        # balanced settings have neither majority nor minority
        rows = states if group == "all" else states[states["K_A"].notna()]
        try:
            compared = pairs(rows, metric, "test", arm=f"T = {t}", against="solved")
        except NotMeasured:
            found.append((claim, *[np.nan] * 5, 0, 0, "reported", scale, "0 seeds"))
            continue
        seeds = compared.table.round({"difference": 9}).groupby("seed")  # equal counts of images are equal
        pooled, means = interval(seeds["difference"].mean()), compared.table.mean(numeric_only=True)
        said = verdict(pooled, scale, "equal", size=WITHIN / EQUAL_WITHIN)
        if said.word == "equal" and pooled.varies:
            said = said._replace(remark=f"within {WITHIN:g} point")
        values = means["solved"], means[f"T = {t}"], *pooled.columns[:3]
        found.append((claim, *values, compared.settings, pooled.n, *said))
    columns = ["claim", "solved", "value", "difference", "half", "detectable", "settings_found", "seeds", *words.JUDGED]
    return pd.DataFrame(found, columns=columns)


def collapse_without_solver(frame: pd.DataFrame, names: Mapping[str, str], scale: str) -> pd.DataFrame:
    """Metrics of collapse of z_T, T of `REMOVED`, over those of the equilibrium: `nclib.comparison.ratios` for the
    claim "equal", with the column claim. The terminal phase is that of the equilibrium.

    Parameters
    ----------
    names : metric: what the claim calls it
    """
    states, tables = states_as_models(frame), []
    reached = bool(comparison.terminal_phase(states[states["model"] == "solved"])["reached"].all())
    claims = dict.fromkeys(names, "equal")
    for t in REMOVED:
        table = comparison.ratios(states, claims, scale, "train", f"T = {t}", "solved", terminal=reached)
        tables.append(table.assign(claim=f"T = {t}: " + table["metric"].map(names) + " is that of the equilibrium"))
    return pd.concat(tables, ignore_index=True)


def approach(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Whether training brings the start of the solve nearer to the equilibrium: ‖z_0 − z*‖/‖z*‖ in the last epoch over
    the first, by `nclib.comparison.ratios` for the claim "lower", with the column claim. Empty where no run logged
    it."""
    noted = depth_rows(frame, "noted").query("metric == 'start_distance'")
    if noted.empty:
        return pd.DataFrame(columns=["claim", *words.JUDGED])
    ends = {"first": noted["epoch"].min(), "last": noted["epoch"].max()}
    both = pd.concat([noted[noted["epoch"] == epoch].assign(model=name) for name, epoch in ends.items()])
    both = both.assign(run_id=both["run_id"] + ", " + both["model"], epoch=0)
    table = comparison.ratios(both, {"start_distance": "lower"}, scale, "steps", "last", "first", terminal=True)
    return table.assign(claim="the start comes nearer to the equilibrium over training")


def error_table(frame: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Whether residual and evaluations of an equilibrium tell wrong answers from right ones.

    Of each signal and group of classes the AUROC on test images: 0.5 is chance, 1 sets every wrong answer above every
    right one. A setting counts for a group when every seed has at least `FEWEST` wrong and as many right answers in it.
    Each seed's mean over these settings minus 0.5, a 95 % t-interval over seeds, and the rule of `nclib.verdict` for
    the claim "higher".

    Returns
    -------
    DataFrame with a row for each signal and group: claim, signal, group, settings_found (how many count), auroc,
    difference (from 0.5), half, detectable, seeds, verdict, scale, remark.
    """
    rows, keys = depth_rows(frame, "error"), [*comparison.SETTING, "seed"]
    values = rows.pivot_table(index=keys, columns="metric", values="value", dropna=False).dropna(how="all")
    found = []
    for group in _GROUPS.values():
        end = "" if group == "all" else f"_{group}"
        fewest = values[[f"wrong{end}", f"right{end}"]].min(axis="columns").fillna(0)
        used = values[fewest.groupby(level=comparison.SETTING, dropna=False).transform("min") >= FEWEST].reset_index()
        settings = len(used[comparison.SETTING].drop_duplicates())
        for signal, meaning in SIGNALS.items():
            seeds = used.groupby("seed")[f"auroc_{signal}{end}"]
            pooled = interval(seeds.agg(lambda values: values.mean(skipna=False)) - 0.5)
            said = verdict(pooled, scale, "higher")
            if not settings:
                said = Verdict("not run", scale, f"no setting with {FEWEST} wrong answers in every seed")
            claim = f"AUROC − 0.5 of {meaning}, {group} classes"
            found.append((claim, signal, group, settings, 0.5 + pooled.mean, *pooled.columns, *said))
    columns = ["claim", "signal", "group", "settings_found", "auroc", "difference", "half", "detectable", "seeds"]
    return pd.DataFrame(found, columns=[*columns, *words.JUDGED])


def final_ranks(frame: pd.DataFrame, configs: Iterable[StoredConfig]) -> pd.DataFrame:
    """Effective rank of the class means with which each classifier ended, as rows of a tidy frame: metric
    ``effective_rank_means`` of split "train", with the column most, K − 1."""
    about = frame.drop_duplicates("run_id").set_index("run_id")
    rows = []
    for run in dict.fromkeys(run_id(config) for config in configs if isinstance(config, RunConfig)):
        means = load_run(run).arrays["class_means"]
        found = {"run_id": run, "value": rank_of_means(means.astype(float)), "most": len(means) - 1}
        rows.append(about.loc[run].to_dict() | found)
    return pd.DataFrame(rows).assign(split="train", epoch=0, metric="effective_rank_means")[[*frame.columns, "most"]]


def rank_claims(frame: pd.DataFrame, ranks: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Whether more depth comes with fewer dimensions, by `nclib.comparison.ratios` for the claim "lower".

    Between networks trained at different depths, over all settings: the equilibrium over its cell applied once, and
    over ResNet-18's block, in the effective rank of the class means (`final_ranks`). Within a trained network: the
    equilibrium over z_0 and over z_1, in that and in the effective rank of the features.

    Returns
    -------
    DataFrame: claim, and the columns of `ratios`.
    """
    ranks, states = ranks.drop(columns="most"), states_as_models(frame)  # K − 1 is another one in each data set
    kinds = ranks["model"].isin(["deq", "explicit_matched", "explicit"])
    used = frame[frame["run_id"].isin(ranks.loc[kinds, "run_id"])]
    reached = bool(comparison.terminal_phase(used)["reached"].all())
    of_means, used = "effective_rank_means", "class means of the DEQ"
    wanted = [(used, "with its cell applied once", ranks, of_means, "deq", "explicit_matched")]
    wanted.append((used, "those of ResNet-18", ranks, of_means, "deq", "explicit"))
    for (metric, what), t in product({of_means: "class means", "effective_rank": "features"}.items(), (0, 1)):
        wanted.append((f"{what} of the equilibrium", f"those of z_{t}", states, metric, "solved", f"T = {t}"))
    tables = []
    for what, than, rows, metric, *pair in wanted:
        table = comparison.ratios(rows, {metric: "lower"}, scale, "train", *pair, terminal=reached)
        tables.append(table.assign(claim=f"{what} use fewer dimensions than {than}"))
    return pd.concat(tables, ignore_index=True)
