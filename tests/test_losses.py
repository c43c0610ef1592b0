"""Objectives for imbalanced classes against their written-out formulas."""

import doctest
import math
import typing

import pytest
import torch

from nclib import losses
from nclib.config import LossName
from nclib.losses import Loss, adjusted_logits, class_balanced_weights, ldam_margins

COUNTS = torch.tensor([100, 20, 1])
LOGITS = torch.tensor([[1.0, 0.5, -0.2], [0.1, 0.2, 0.3]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])


def _written_out(logits, labels, bias=(0.0, 0.0, 0.0)):
    values = []
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        z = [a + b for a, b in zip(row, bias, strict=True)]
        values.append(math.log(sum(math.exp(v) for v in z)) - z[y])
    return values


def _loss(name, epoch=1):
    return Loss(name, COUNTS, epochs=10, like=LOGITS)(LOGITS, LABELS, epoch).tolist()


def test_cross_entropy_and_balanced_softmax():
    assert _loss("cross_entropy") == pytest.approx(_written_out(LOGITS, LABELS))
    logs = [math.log(n) for n in COUNTS.tolist()]
    assert _loss("balanced_softmax") == pytest.approx(_written_out(LOGITS, LABELS, logs))


def test_class_balanced_weights_have_mean_one_and_approach_inverse_counts():
    weights = class_balanced_weights(COUNTS)
    assert weights.mean().item() == pytest.approx(1)
    expected = (1 - 0.9999**100) / (1 - 0.9999)
    assert (weights[2] / weights[0]).item() == pytest.approx(expected, rel=1e-12)
    assert (weights[2] / weights[0]).item() == pytest.approx(100, rel=0.01)
    assert class_balanced_weights(torch.tensor([5, 5])).tolist() == [1.0, 1.0]
    plain = _written_out(LOGITS, LABELS)
    expected = [plain[0] * weights[0].item(), plain[1] * weights[2].item()]
    assert _loss("class_balanced") == pytest.approx(expected)


def test_ldam_lowers_the_right_logit_by_its_margin_and_weighs_late():
    margins = ldam_margins(COUNTS)
    assert margins[2].item() == 0.5 and margins[0].item() == pytest.approx(0.5 / 100**0.25)
    lowered = LOGITS.clone()
    lowered[0, 0] -= 30 * margins[0]
    lowered[1, 2] -= 15
    wanted = _written_out(lowered, LABELS)
    assert _loss("ldam_drw", epoch=8) == pytest.approx(wanted)
    weights = class_balanced_weights(COUNTS)[LABELS].tolist()
    expected = [loss * weight for loss, weight in zip(wanted, weights, strict=True)]
    assert _loss("ldam_drw", epoch=9) == pytest.approx(expected)


def test_adjustment_undoes_the_prior():
    prior = COUNTS.double() / COUNTS.sum()
    assert torch.allclose(adjusted_logits(LOGITS + prior.log(), COUNTS), LOGITS)
    assert adjusted_logits(torch.zeros(1, 3), COUNTS).argmax().item() == 2


def test_half_precision_has_room_for_any_number_of_images():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    counts = torch.tensor([60_000, 6_000, 600])
    expected = adjusted_logits(logits, counts)
    for kind in (torch.float16, torch.bfloat16):
        assert torch.equal(adjusted_logits(logits.to(kind), counts), expected)


@pytest.mark.parametrize("name", typing.get_args(LossName))
def test_gradients_are_those_of_finite_differences(name):
    loss = Loss(name, COUNTS, epochs=10, like=LOGITS)
    logits = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS, epoch=10), logits)


def test_of_equal_classes_all_but_ldam_are_cross_entropy():
    equal = torch.full((3,), 7)
    plain = Loss("cross_entropy", equal, epochs=10, like=LOGITS)(LOGITS, LABELS, 1)
    for name in ("balanced_softmax", "class_balanced"):
        assert torch.allclose(Loss(name, equal, epochs=10, like=LOGITS)(LOGITS, LABELS, 1), plain)


def test_an_unknown_objective_is_refused():
    with pytest.raises(ValueError, match="name='focal': allowed are cross_entropy, balanced"):
        Loss("focal", COUNTS, epochs=1, like=LOGITS)


def test_the_examples_run():
    assert doctest.testmod(losses).failed == 0
