"""What autograd keeps for a backward pass, counted."""

import torch

from nclib.course.memory import saved_bytes
from nclib.deq import DEQ, Implicit, Unrolled
from nclib.solvers import FixedPointIteration


def test_saved_bytes_counts_a_storage_once_and_forgets_released_graphs():
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    assert saved_bytes(lambda: (x * x).sum().backward()) == 800
    assert saved_bytes(lambda: (x * x).sum().backward(), apart_from=[x]) == 0
    assert saved_bytes(lambda: x.exp().exp().sum().backward()) == 1600  # exp keeps its value

    def one_after_the_other():
        for _ in range(5):
            x.exp().sum().backward()

    assert saved_bytes(one_after_the_other) == 800


class LinearTanh(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(0.3 * torch.eye(4))

    def forward(self, z, x):
        return torch.tanh(z @ self.weight + x)


def test_unrolling_keeps_a_state_for_each_step_and_the_implicit_gradient_none():
    cell = LinearTanh()

    def used(gradient, steps):
        solver = FixedPointIteration(1e-12, steps)
        layer = DEQ(cell, solver, z0="zeros", on_failure="ignore")
        loss = lambda: layer(torch.ones(8, 4), gradient=gradient)[0].sum()  # noqa: E731
        return saved_bytes(lambda: loss().backward(), apart_from=cell.parameters())

    state = 8 * 4 * 4
    assert used(Unrolled(30), 1) - used(Unrolled(20), 1) == 10 * state
    assert used(Implicit(), 30) == used(Implicit(), 20) <= 4 * state
