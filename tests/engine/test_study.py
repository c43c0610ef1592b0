"""What a study of one's own takes from the engine: trained networks, settings to group by, metrics while it runs."""

import pytest
import torch

import nclib as nc
from nclib import training
from nclib.config import ConfigError, DataConfig, ModelConfig, RunConfig, TrainConfig, run_id
from nclib.data import make_split
from nclib.engine import cluster, runs
from nclib.engine.reading import CorruptRun, StoredRun
from nclib.engine.store import default_store
from nclib.system import paths


def _study(**model):
    images = DataConfig(n_max=6, test_per_class=3)
    return RunConfig(data=images, model=ModelConfig(width=2, **model), train=TrainConfig(epochs=2, batch_size=32))


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_the_network_of_a_stored_run_is_the_trained_one(kind):
    config = _study(kind=kind).replace(
        train=TrainConfig(epochs=1, batch_size=32, precision="float64", constraint="projection", e_w=1.0, e_h=0.5)
    )
    runs.ensure_runs([config])
    stored = nc.load_run(config)
    model = stored.network()
    assert not model.training and model.feature_ball == 0.5
    assert all(torch.equal(value, stored.weights[name]) for name, value in model.state_dict().items())
    split = make_split(config.data, config.seed)
    loader = training.Batches(
        split.test_images, split.test_labels, batch_size=256, augment="none",
        mean=split.mean, std=split.std, device=torch.device("cpu"), dtype=torch.float64,
    )  # fmt: skip
    (images, _), *_ = loader.in_order()
    assert model(images).features.detach().numpy() == pytest.approx(stored.arrays["test_features"], abs=1e-9)


def test_a_run_without_weights_or_without_a_network_says_so(tmp_path, monkeypatch):
    runs.ensure_runs([_study()])
    monkeypatch.setattr(paths, "reference", lambda: tmp_path / "reference")
    (run,) = runs.export_reference([_study()], "mine")
    default_store().remove(run)
    with pytest.raises(CorruptRun, match=r"reference results alone, which keep no weights.*ensure_runs\(\[config\]\)"):
        nc.load_run(run).network()
    other = StoredRun("other", {"kind": "regression"}, {})
    with pytest.raises(ConfigError, match="run other has no network: it is of kind 'regression'"):
        other.network()


def test_no_run_is_lost_when_rows_are_grouped_by_setting():
    images = _study().data
    skewed = [DataConfig(imbalance=i, ratio=3.0, n_max=6, test_per_class=3, **more)
              for i, more in (("step", {"num_majority": 3}), ("exponential", {}))]  # fmt: skip
    frame = runs.ensure_runs([_study().replace(data=data) for data in (images, *skewed)])
    sizes = frame.groupby(["setting", "model"])["run_id"].nunique()
    assert sizes.to_dict() == {(s, "explicit"): 1 for s in ("balanced", "KA3-R3", "exp-R3")}


def test_metrics_of_each_epoch_reach_a_log():
    told = []
    frame = runs.ensure_runs([_study()], log=lambda *facts: told.append(facts))
    assert [(run, epoch) for run, epoch, _ in told] == [(run_id(_study()), 1), (run_id(_study()), 2)]
    last = frame[frame["epoch"] == 2]
    assert told[-1][2] == {f"{s}/{m}": v for s, m, v in zip(last["split"], last["metric"], last["value"], strict=True)}
    runs.ensure_runs([_study()], log=lambda *facts: pytest.fail("nothing was trained"))


@pytest.mark.slow
def test_metrics_of_each_epoch_reach_a_log_from_workers_too():
    told = []
    with cluster.local(1) as executor:
        runs.ensure_runs([_study()], executor, log=lambda *facts: told.append(facts))
    assert [epoch for _, epoch, _ in told] == [1, 2] and "steps/loss" in told[0][2]
