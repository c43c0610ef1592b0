"""What parts of a network cost: the paper's sizes, and multiplications as torch counts them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nclib.config import ModelConfig, RunConfig
from nclib.models import build_model, count_parameters
from nclib.papers.neural_collapse import network_costs


def _images(count=3, side=16, channels=1):
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["explicit", "deq"])
def test_the_papers_network_has_its_size(kind):
    model = build_model(ModelConfig(kind=kind), 10, 3)
    table = network_costs.layer_table(model, _images(1, 32, 3)).set_index("stage")
    before = table.loc[:"stage 4, first block"]
    assert before["parameters"].sum() == 6_448_192
    assert table["parameters"].sum() == count_parameters(model) == 11_173_952
    assert table.loc["last block", ["output", "parameters", "macs"]].tolist() == [
        "512×4×4",
        4_720_640,
        75_497_472,
    ]
    assert table["macs"].sum() == 555_422_720
    assert table["output"].tolist()[:5] == [
        "64×32×32",
        "64×32×32",
        "128×16×16",
        "256×8×8",
        "512×4×4",
    ]
    assert table.loc[["pooling", "classifier"], "output"].tolist() == ["512", "10"]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "explicit"},
        {"kind": "weight_tied", "unroll": 3},
        {"kind": "explicit_flops", "num_blocks": 2},
    ],
)
def test_multiplications_are_those_that_torch_counts(options):
    model, images = build_model(ModelConfig(width=2, **options), 4, 1).eval(), _images(5)
    table = network_costs.layer_table(model, images)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert (
        2 * len(images) * (table["macs"] * table["evaluations"]).sum() == counter.get_total_flops()
    )
    assert table["parameters"].sum() == count_parameters(model)
    assert table.set_index("stage").loc["last block", "evaluations"] == options.get("unroll", 1)


def test_the_cost_of_rules_that_differentiate_every_step_is_refused():
    gradient = {"method": "unrolled", "steps": 6}
    config = RunConfig(model={"kind": "deq", "gradient": gradient})
    with pytest.raises(ValueError, match="'unrolled' differentiates every step"):
        network_costs.compute_in_blocks(config)
