"""One run over two processes equals the run in one: sums, statistics, order and augmentation of the whole batch.

One launch of two gloo processes trains all the arms below; the tests compare what it left. Networks are made to
contract, because a solve that does not converge makes 1e-3 of 1e-15 within an epoch, on one process or two.
"""

import contextlib
import dataclasses
import datetime
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import torch
from torch import distributed, multiprocessing, nn

from nclib import ranks, training
from nclib.config import DataConfig, ModelConfig, RunConfig, SolverConfig, TrainConfig, run_id
from nclib.deq import BackwardNotConverged
from nclib.engine import runs
from nclib.engine.store import RunStore

CLOSE = 1e-9  # promised: 1e-6
STEP = {"imbalance": "step", "num_majority": 4, "ratio": 3.0}  # 13 and 4 images a class: 76, in batches of 15 and one


def _config(kind, data=None, model=None, **train):
    options = {"epochs": 2, "batch_size": 15, "lr": 0.05, "precision": "float64"} | train
    return RunConfig(
        data=DataConfig(n_max=13, test_per_class=3, **STEP if data is None else data),
        model=ModelConfig(kind=kind, width=2, **(model or {})),
        train=TrainConfig(**options),
    )


EVERYTHING = _config(
    "deq",
    model={"groups": 2, "solver": SolverConfig(max_steps=4), "start": "previous"},
    skip="mask",
    constraint="penalty",
    e_w=0.1,
    e_h=0.2,
    jacobian_reg=0.1,
    loss="balanced_softmax",
)
CASES = {
    "groupnorm": _config("explicit_matched", model={"groups": 2}, nc_on_test=True),
    "batchnorm": _config("explicit", model={"head": "cosine", "feature_norm": "batchnorm"}, loss="ldam_drw"),
    "projection": _config("explicit", data={}, model={"head": "etf"}, constraint="projection", e_w=0.1, e_h=0.2),
    "deq": _config("deq", model={"groups": 2}),
    "everything": EVERYTHING,
    "lopsided": EVERYTHING,
}
STORED = _config("explicit", precision="float32", epochs=1)


@contextlib.contextmanager
def _tame(name):
    """Cells contract, and images are mirrored and shifted although they are digits. "groupnorm" has no BatchNorm."""
    build, split = training.build_model, training.make_split

    def built(*arguments):
        model = build(*arguments)
        if hasattr(model.block, "cell"):
            with torch.no_grad():
                model.block.cell.norm2.weight.mul_(0.1)
        if name == "groupnorm":
            for parent in list(model.modules()):
                for child, module in list(parent.named_children()):
                    if isinstance(module, nn.BatchNorm2d):
                        setattr(parent, child, nn.GroupNorm(2, module.num_features))
        return model

    def moved(*arguments):
        return dataclasses.replace(split(*arguments), augment="flip_crop")

    with (
        mock.patch.object(training, "build_model", built),
        mock.patch.object(training, "make_split", moved),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", BackwardNotConverged)  # few steps are allowed, so that some samples are skipped
        yield


@dataclasses.dataclass
class File:
    """A checkpoint that keeps the state after every epoch."""

    folder: Path
    start: int | None = None

    def load(self):
        path = self.folder / f"epoch{self.start}.pt"
        return None if self.start is None else torch.load(path, weights_only=True)

    def save(self, state):
        torch.save(state, self.folder / f"epoch{state['epoch']}.pt")


def _outputs():
    """Features in which some classes are on one rank only."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(torch.tensor([9, 8, 7, 6, 2, 1]))
    features = torch.randn(33, 8, generator=generator) + 3 * torch.randn(6, 8, generator=generator)[labels] + 50
    logits = torch.randn(33, 6, generator=generator) + 2 * nn.functional.one_hot(labels, 6)
    residual = torch.rand(33, generator=generator)
    return training.Outputs(features, logits, labels, residual, (100 * residual).long(), residual < 0.5)


def _report(part):
    outputs = training.Outputs(*(column[part] for column in _outputs()))
    model = mock.Mock(classifier=nn.Linear(8, 6, bias=False))
    with torch.no_grad():
        model.classifier.weight.copy_(torch.sin(torch.arange(48.0)).view(6, 8))
    minority = torch.tensor([False] * 4 + [True] * 2)
    report = training.summarise(outputs, model, torch.tensor([9, 8, 7, 6, 2, 1]), minority, with_nc=True)
    return report, list(training.per_class_rows(outputs, 6))


def _lopsided(samples):
    """Only the first rank has rows of a batch of one sample more than ten; the other has none."""
    if samples > 10:
        cut = samples // 3
        return slice(0, cut) if ranks.is_main() else slice(cut, samples)
    return slice(0, samples) if ranks.is_main() else slice(samples, samples)


def _rank(rank, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    patience = datetime.timedelta(seconds=60)
    where = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=patience)
    found = {"report": _report(ranks.share(33))}
    for name, config in CASES.items():
        cut = _lopsided if name == "lopsided" else ranks.share
        with _tame(name), mock.patch.object(ranks, "share", cut):
            found[name] = training.train(config, checkpoint=File(folder / "two"))
    with _tame("deq"):
        found["resumed"] = training.train(CASES["deq"], checkpoint=File(folder / "one", start=1))
    found["stored"] = [runs.train_run(STORED.model_dump_json(), str(folder / "store")) for _ in range(2)]
    torch.save(found, folder / f"rank{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same runs in this process."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "one").mkdir()
    found = {"folder": folder}
    for name, config in CASES.items():
        if name != "lopsided":
            with _tame(name):
                found[name] = training.train(config, checkpoint=File(folder / "one"))
        if name == "deq":
            (folder / "one" / "epoch1.pt").rename(folder / "deq1.pt")
    (folder / "deq1.pt").rename(folder / "one" / "epoch1.pt")
    return found | {"lopsided": found["everything"], "resumed": found["deq"]}


@pytest.fixture(scope="module")
def both(alone):
    """What two ranks found, one after the other."""
    folder = alone["folder"]
    (folder / "two").mkdir()
    multiprocessing.spawn(_rank, (folder,), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def _close(one, other):
    for table in ("history", "classes"):
        pd.testing.assert_frame_equal(getattr(one, table), getattr(other, table), rtol=CLOSE, atol=CLOSE)
    assert one.weights.keys() == other.weights.keys() and one.arrays.keys() == other.arrays.keys()
    for name, value in one.weights.items():
        torch.testing.assert_close(value, other.weights[name], rtol=CLOSE, atol=CLOSE)
    for name, values in one.arrays.items():
        torch.testing.assert_close(torch.tensor(values), torch.tensor(other.arrays[name]), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_the_network_of_one_process(name, alone, both):
    _close(alone[name], both[0][name])
    steps = alone["everything"].history.query("split == 'steps' and metric == 'skipped'")["value"]
    assert (steps > 0).any()  # samples do leave the loss there


@pytest.mark.parametrize("name", CASES)
def test_every_rank_ends_with_the_same_bits(name, both):
    one, other = (found[name] for found in both)
    pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
    assert all(torch.equal(value, other.weights[key]) for key, value in one.weights.items())


def test_a_report_is_merged_exactly(both):
    report, classes = _report(slice(None))
    for merged, merged_classes in (found["report"] for found in both):
        assert merged == pytest.approx(report, rel=1e-12, abs=1e-12, nan_ok=True)
        assert merged_classes == classes


def test_a_run_goes_on_with_another_number_of_ranks(alone, both):
    _close(alone["resumed"], both[0]["resumed"])  # one process, then two
    assert both[1]["resumed"].facts["continued_from"] == [1]
    with _tame("lopsided"):
        resumed = training.train(CASES["lopsided"], checkpoint=File(alone["folder"] / "two", start=1))
    assert resumed.facts["continued_from"] == [1]
    _close(alone["lopsided"], resumed)


def test_one_rank_stores_the_run_and_its_provenance_says_how_many_there_were(alone, both):
    store = RunStore(alone["folder"] / "store")
    assert store.ids() == [run_id(STORED)] and both[0]["stored"] == both[1]["stored"] == [run_id(STORED)] * 2
    record = store.load(run_id(STORED)).provenance
    assert (record["ranks"], record["backend"]) == (2, "gloo") and record["warnings"] == []
    assert not store.partial(run_id(STORED)).exists()


# ---- through torchrun

KILLED = """
import os, signal
from nclib import cli, ranks, training

honest = training._Trainer.train_epoch

def train_epoch(self):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.epoch == 1 and ranks.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    honest(self)

training._Trainer.train_epoch = train_epoch
cli.main()
"""


def test_a_killed_rank_ends_all_and_the_same_command_goes_on(tmp_path):
    """torchrun starts both again after one was killed in its second epoch."""
    script, config = tmp_path / "killed.py", _config("explicit")
    script.write_text(KILLED)
    (tmp_path / "run.json").write_text(config.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    done = subprocess.run(
        [*command, str(script), "train", "--config", str(tmp_path / "run.json"), "--device", "cpu"],
        env=os.environ | {"PYTHONPATH": str(Path(ranks.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr
    assert done.stderr.count("error: another rank has ended") <= 1 and "rank 1: " not in done.stderr
    assert done.stdout.count("accuracy_balanced ") == 1  # one rank speaks
    stored = runs.load_run(config)
    assert stored.provenance["facts"]["continued_from"] == [1] and stored.provenance["ranks"] == 2
    history = training.train(config).history
    pd.testing.assert_frame_equal(history, stored.history, rtol=CLOSE, atol=CLOSE)


# ---- without other processes


def test_a_process_alone_is_all_there_is():
    values = torch.randn(3, 2)
    assert (ranks.world(), ranks.rank(), ranks.is_main(), ranks.together()) == (1, 0, True, False)
    for same in (ranks.total(values), ranks.gather(values), ranks.rows_of_all(values, torch.tensor([1]))):
        assert same is values
    assert ranks.share(5) == slice(0, 5) and ranks.once(lambda: 7) == 7 and ranks.everyones(7) == [7]
    assert ranks.facts(torch.device("cpu")) == {}
    model = nn.Sequential(nn.BatchNorm1d(2))
    ranks.synchronise_norms(model, torch.device("cpu"))
    assert ranks.parallel(model) is model and "forward" not in vars(model[0])
    with ranks.joined("cuda:3") as device:
        assert device == "cuda:3"


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("samples", [0, 2, 7, 128])
def test_shares_follow_one_another_and_differ_by_one_at_most(world, samples, monkeypatch):
    monkeypatch.setattr(ranks, "together", lambda: True)
    monkeypatch.setattr(ranks, "world", lambda: world)
    parts = []
    for rank in range(world):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        parts.append(list(range(samples))[ranks.share(samples)])
    assert [sample for part in parts for sample in part] == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.fixture
def torchrun(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)


def test_each_rank_has_a_gpu_of_its_own(torchrun, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ranks._own_device(None) == ranks._own_device("cuda") == "cuda:1" and ranks._own_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="leave it out"):
        ranks._own_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="--nproc_per_node=1"):
        ranks._own_device(None)


def test_ranks_do_not_wait_for_another_process(tmp_path, monkeypatch):
    store, run = RunStore(tmp_path), run_id(STORED)
    with store.lock(run):
        monkeypatch.setattr(ranks, "together", lambda: True)
        monkeypatch.setattr(ranks, "is_main", lambda: True)
        with pytest.raises(runs.RunsFailed, match="another process is training it"):
            runs.train_run(STORED.model_dump_json(), str(tmp_path))


def test_more_ranks_than_images_are_refused(monkeypatch):
    monkeypatch.setattr(ranks, "world", lambda: 31)
    with pytest.raises(ValueError, match="at most 30 ranks"):
        training.train(STORED)


def test_compiled_networks_are_refused(monkeypatch):
    monkeypatch.setattr(ranks, "together", lambda: True)
    with pytest.raises(ValueError, match=r"leave train\.compile out"):
        training.train(STORED.replace(train=STORED.train.replace(compile=True)))


def test_other_errors_keep_their_names(monkeypatch):
    monkeypatch.setattr(ranks, "together", lambda: True)
    with pytest.raises(training.TrainingDiverged), ranks.losses_named():
        raise training.TrainingDiverged("diverged")
    with pytest.raises(ranks.RankLost, match="type the same again"), ranks.losses_named():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize("shape", [(9, 4), (9, 4, 3, 2)])
def test_the_norm_of_the_whole_batch_is_pytorchs(shape, monkeypatch):
    """Outputs, gradients and running statistics, with the ranks' sums being those of this process alone."""
    generator = torch.Generator().manual_seed(0)
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    ours, theirs = kind(4).double(), kind(4).double()
    inputs = [(torch.randn(shape, generator=generator, dtype=torch.float64) + 100).requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0].data)
    weigh = torch.randn(shape, generator=generator, dtype=torch.float64)
    outputs = [ranks._whole_batch_norm(ours, inputs[0]), theirs(inputs[1])]
    for out in outputs:
        (out * weigh).sum().backward()
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-9, atol=1e-9)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-12, atol=1e-12)
    assert torch.equal(ranks._whole_batch_norm(ours.eval(), inputs[0]), ours(inputs[0]))
