"""A user's file, as type checkers read it: `tests/test_typing.py` holds that they find no error in it."""

import torch
from torch import Tensor, nn

import nclib as nc


class Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.5 * self.linear(z) + x)


layer = nc.DEQ(Cell(8), solver=nc.Anderson(tol=1e-4), gradient=nc.Implicit())
x = torch.randn(32, 8)
z, solution = layer(x)
z.sum().backward()
print(int(solution.converged.sum()), solution.residual.max().item(), layer.last_backward)
inside = nc.DEQ(Cell(8), return_solution=False)
state = inside(x)
network = nn.Sequential(nn.Linear(4, 8), inside, nn.Linear(8, 3))
loader = [(torch.randn(60, 4), torch.arange(60) % 3)]
table = nc.measure(network, loader)
print(table.pivot(index="metric", columns="layer", values="value"))
report = nc.nc_report(state, torch.arange(32) % 3)
print(report["nc1_trace_ratio"] < 1.0, nc.ideal_values(3))
model = nc.ModelConfig(kind="deq", width=16, name="mine")
configs = [nc.RunConfig(model=model, train=nc.TrainConfig(epochs=1), seed=seed) for seed in range(3)]
frame = nc.ensure_runs(configs, log=lambda run, epoch, metrics: print(run, epoch, metrics["steps/loss"]))
trained = nc.load_run(configs[0]).network()
print(trained(torch.zeros(1, 1, 8, 8)).logits.argmax(1), frame.groupby(["setting", "model"])["value"].mean())
