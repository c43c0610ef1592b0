"""What autograd keeps for a backward pass, counted."""

import torch

from nclib.course.memory import saved_bytes
from nclib.deq import DEQ, Implicit, Reversible, Unrolled
from nclib.solver import FixedPointIteration


def test_saved_bytes_counts_a_storage_once_and_forgets_released_graphs():
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    assert saved_bytes(lambda: (x * x).sum().backward()) == 800
    assert saved_bytes(lambda: (x * x).sum().backward(), apart_from=[x]) == 0
    assert saved_bytes(lambda: x.exp().exp().sum().backward()) == 1600  # exp keeps its value

    def one_after_the_other():
        for _ in range(5):
            x.exp().sum().backward()

    assert saved_bytes(one_after_the_other) == 800


def test_unrolling_keeps_a_state_for_each_step_and_the_implicit_gradient_none():
    weight = torch.nn.Parameter(0.3 * torch.eye(4))

    def used(gradient, steps):
        solver = FixedPointIteration(1e-12, steps)
        layer = DEQ(lambda z, x: torch.tanh(z @ weight + x), solver, z0="zeros", on_failure="ignore")
        return saved_bytes(lambda: layer(torch.ones(8, 4), gradient=gradient)[0].sum().backward(), apart_from=[weight])

    state = 8 * 4 * 4
    assert used(Unrolled(30), 1) - used(Unrolled(20), 1) == 10 * state
    assert used(Implicit(), 30) == used(Implicit(), 20) <= 4 * state
    assert used(Reversible(30), 1) == used(Reversible(3), 1) <= 8 * state  # y and z are float64
