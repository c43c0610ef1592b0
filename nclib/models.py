"""The networks: ResNet-18 for small images and its arms, which differ only in the last residual block.

All arms share the encoder (stem up to the first block of layer 4) and the bias-free classifier, with the same initial
weights for the same seed. What stands where layer 4's second block was is the arm:

    explicit           that block itself, with BatchNorm: the paper's explicit network
    deq                z* = f(z*, x), the block as an equilibrium cell with input injection and GroupNorm
    explicit_matched   f(x, x), the same cell applied once: the same parameters
    weight_tied        the same cell unrolled, z ← f(z, x), and differentiated through
    explicit_flops     untied GroupNorm blocks, as many as cost what the equilibrium costs

Source: Sun & Shi (2024), section 5.1; He et al. (2016). The paper does not say how the input enters the cell; without
injection the equilibrium does not depend on the image at all, so the cell adds the encoder's output x.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib.config import ConfigError, ModelConfig
from nclib.deq import DEQ, Gradient
from nclib.losses import COSINE_SCALE
from nclib.metrics import simplex_etf
from nclib.solver import Solution, Solver


class Output(NamedTuple):
    """What a classifier returns: logits (B, K), features (B, d) and, for an equilibrium, the `Solution` of its
    solve."""

    logits: Tensor
    features: Tensor
    solution: Solution | None


def _conv(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Residual block with BatchNorm: ReLU(BN(conv ReLU(BN(conv x))) + shortcut(x)); (B, C, H, W) to (B, C', H/s,
    W/s)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels)
        self.conv2, self.norm2 = _conv(out_channels, out_channels), nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResidualCell(nn.Module):
    """f(z, x) = ReLU(GN(conv ReLU(GN(conv z))) + x), all (B, C, H, W). f(x, x) is a residual block with GroupNorm.

    GroupNorm, because BatchNorm would let the equilibrium of one image depend on its batch mates and on the solver's
    steps.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(channels, channels), nn.GroupNorm(groups, channels)
        self.conv2, self.norm2 = _conv(channels, channels), nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(z)))
        return F.relu(self.norm2(self.conv2(inner)) + x)


class MDEQCell(nn.Module):
    """f(z, x) = GN(ReLU(z + GN(x + conv GN(ReLU(conv z))))), all (B, C, H, W); the cell of multiscale DEQs (Bai et
    al. 2020).

    Its output is normalised and signed where a residual block's is non-negative: on its own that moves NC2 and NC3,
    so a comparison with an explicit network must share the output stage.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(channels, channels), nn.GroupNorm(groups, channels)
        self.conv2, self.norm2 = _conv(channels, channels), nn.GroupNorm(groups, channels)
        self.norm3 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inner = self.norm1(F.relu(self.conv1(z)))
        return self.norm3(F.relu(z + self.norm2(x + self.conv2(inner))))


class WeightTied(nn.Module):
    """The cell applied `steps` times from z = x, differentiated through every step."""

    def __init__(self, cell: nn.Module, steps: int) -> None:
        super().__init__()
        self.cell, self.steps = cell, steps

    def forward(self, x: Tensor) -> Tensor:
        z = x
        for _ in range(self.steps):
            z = self.cell(z, x)
        return z


class UntiedCells(nn.Module):
    """`num_blocks` residual cells with weights of their own, each applied once to the output of the one before."""

    def __init__(self, channels: int, groups: int, num_blocks: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(ResidualCell(channels, groups) for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x, x)
        return x


class Encoder(nn.Sequential):
    """CIFAR stem (3×3 convolution, stride 1, no pooling) and ResNet-18 up to layer 4's first block:
    (B, C_in, H, W) to (B, 8·width, ⌈H/8⌉, ⌈W/8⌉)."""

    def __init__(self, in_channels: int, width: int) -> None:
        layers: list[nn.Module] = [_conv(in_channels, width), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        for out_channels, stride in [(width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)]:
            layers.append(BasicBlock(channels, out_channels, stride))
            if out_channels < 8 * width:
                layers.append(BasicBlock(out_channels, out_channels))
            channels = out_channels
        super().__init__(*layers)


class CosineLinear(nn.Linear):
    """Classifier without bias whose logits are 30 cos(h, w_k): (B, d) to (B, K)."""

    def forward(self, h: Tensor) -> Tensor:
        return COSINE_SCALE * F.linear(F.normalize(h, dim=1), F.normalize(self.weight, dim=1))


class Classifier(nn.Module):
    """Encoder, last block, global average pool, optional BatchNorm1d, and a linear classifier without bias.

    `feature_ball`, set by the training protocol, is the largest ‖h‖² a feature may have; longer ones are scaled back.
    """

    def __init__(self, encoder: Encoder, block: nn.Module, dim: int, num_classes: int, cfg: ModelConfig) -> None:
        super().__init__()
        self.encoder, self.block = encoder, block
        self.feature_norm = nn.BatchNorm1d(dim) if cfg.feature_norm == "batchnorm" else nn.Identity()
        self.classifier = (CosineLinear if cfg.head == "cosine" else nn.Linear)(dim, num_classes, bias=False)
        self.feature_ball: float | None = None

    def transform(self, x: Tensor, z0: Tensor | None = None) -> tuple[Tensor, Solution | None]:
        """The last block on the encoder's output: (B, d, H, W) to (B, d, H, W), with the solve's evidence if there is
        one. `z0` (B, d, H, W) is where an equilibrium is looked for first, instead of its own start."""
        # Under bfloat16 autocast the relative residual of the cell stalls at 5e-3, above the paper's tolerance. So
        # the last block and the read-out are computed in the precision of the parameters, in every arm alike.
        with torch.autocast(x.device.type, enabled=False):
            # channels-last pays in the encoder (a tenth to a quarter of a step on a CPU), not on maps as small as these
            x = x.to(next(self.block.parameters()).dtype).contiguous()
            return self.block(x, z0) if isinstance(self.block, DEQ) else (self.block(x), None)

    def read_out(self, z: Tensor, solution: Solution | None) -> Output:
        """Pooled features and logits of the last block's output (B, d, H, W)."""
        with torch.autocast(z.device.type, enabled=False):
            features = self.feature_norm(z.mean(dim=(2, 3)))
            if self.feature_ball is not None:
                norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
                features = features * (self.feature_ball**0.5 / norms.clamp_min(1e-30)).clamp_max(1.0)
            return Output(self.classifier(features), features, solution)

    def forward(self, images: Tensor) -> Output:
        """Images (B, C, H, W), normalised, to an `Output`."""
        return self.read_out(*self.transform(self.encoder(images)))


def _initialise(module: nn.Module, seed: int) -> None:
    """He initialisation of every convolution from a generator of its own; norms at identity, the classifier as in
    PyTorch."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(part, nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=5**0.5, generator=generator)


def _fix_at_etf(classifier: nn.Linear, seed: int) -> None:
    """Turn the classifier into a simplex ETF of random orientation that is not trained."""
    num_classes, dim = classifier.weight.shape
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    with torch.no_grad():
        classifier.weight.copy_(simplex_etf(num_classes, dim) @ rotation)
    classifier.weight.requires_grad_(False)


def _block(cfg: ModelConfig, channels: int) -> nn.Module:
    if cfg.kind == "explicit":
        return BasicBlock(channels, channels)
    if channels % cfg.groups:
        raise ConfigError(
            f"groups={cfg.groups} does not divide the {channels} channels of the cell; width sets them (8·width)"
        )
    if cfg.kind == "explicit_flops":
        return UntiedCells(channels, cfg.groups, cfg.num_blocks)
    cell = (ResidualCell if cfg.cell == "residual" else MDEQCell)(channels, cfg.groups)
    if cfg.kind == "deq":
        start = "zeros" if cfg.start == "zeros" else "x"  # "previous" is up to the training
        return DEQ(cell, solver=cfg.solver.build(), gradient=cfg.gradient.build(), z0=start)
    return WeightTied(cell, 1 if cfg.kind == "explicit_matched" else cfg.unroll)


def build_model(cfg: ModelConfig, num_classes: int, in_channels: int, seed: int = 0) -> Classifier:
    """The network `cfg` describes, with initial weights from `seed` alone (the global random state is not touched).

    Arms built with one seed have the same encoder, the same classifier and, where they have one, the same cell.

    Raises
    ------
    ConfigError
        When the feature dimension d = 8·width is below K−1, where no simplex ETF of K classes exists, or when
        `groups` does not divide it.
    """
    dim = 8 * cfg.width
    if dim < num_classes - 1:
        need = -(-(num_classes - 1) // 8)
        raise ConfigError(
            f"width={cfg.width} gives features of dimension {dim}; a simplex ETF of {num_classes} classes needs at "
            f"least {num_classes - 1}: use width={need} or more"
        )
    # meta-free construction would draw from the global generator; fork it so that callers' random state stays theirs
    with torch.random.fork_rng(devices=[]):
        model = Classifier(Encoder(in_channels, cfg.width), _block(cfg, dim), dim, num_classes, cfg)
    for offset, part in enumerate((model.encoder, model.block, model.classifier)):
        _initialise(part, 3 * seed + offset)
    if cfg.head == "etf":
        _fix_at_etf(model.classifier, 3 * seed + 2)
    model.encoder.to(memory_format=torch.channels_last)
    return model


def count_parameters(module: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


# ---- small regressors of Wu et al. (2024)


class Regression(NamedTuple):
    """What a regressor returns: values (B,), features (B, k) before the read-out and, for an equilibrium that a solver
    looked for, its `Solution`."""

    values: Tensor
    features: Tensor
    solution: Solution | None


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "sine": torch.sin}


def _uniform(parameter: Tensor, bound: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        parameter.copy_((2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1) * bound)


class DenseCell(nn.Module):
    """f(z, x) = φ(W z + x), all (B, k)."""

    def __init__(self, width: int, activation: Literal["relu", "sine"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))
        self.activation = _ACTIVATIONS[activation]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.activation(F.linear(z, self.weight) + x)


class ReluDEQ(nn.Module):
    """z = φ(W z + U x + b), y = a·z + c; φ = ReLU or sine. (B, inputs) to a `Regression`.

    Parameters
    ----------
    inputs, width : d and k; k² + (d + 2) k + 1 parameters
    solver, gradient : of the `nclib.deq.DEQ` inside, started at 0. ``Unrolled(T)`` makes it a weight-tied recurrent
        network unless T steps happen to reach the equilibrium
    activation : φ
    norm : largest ‖W‖₂, kept by `project` after each step of training; below 1 the equilibrium exists, is one, and
        plain iteration finds it (φ is 1-Lipschitz). None leaves W free
    spread : entries of W start as normal with deviation spread/√k
    input_scale, bias_scale : entries of U and b start uniform within ±; None for 1/√d, as in PyTorch
    seed : of the initial weights, alone

    Source: Wu et al. (2024), eqs. (1)–(2); start and constraint are ours.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        solver: Solver | None = None,
        gradient: Gradient | None = None,
        *,
        activation: Literal["relu", "sine"] = "relu",
        norm: float | None = None,
        spread: float = 0.5,
        input_scale: float | None = None,
        bias_scale: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            self.injection, self.read_out = nn.Linear(inputs, width), nn.Linear(width, 1)
        self.deq = DEQ(DenseCell(width, activation), solver=solver, gradient=gradient, z0="zeros")
        self.norm = norm
        usual = inputs**-0.5
        _uniform(self.injection.weight, usual if input_scale is None else input_scale, generator)
        _uniform(self.injection.bias, usual if bias_scale is None else bias_scale, generator)
        for parameter in self.read_out.parameters():
            _uniform(parameter, width**-0.5, generator)
        with torch.no_grad():
            draws = torch.randn(width, width, generator=generator, dtype=torch.float64)
            self.deq.cell.weight.copy_(draws * spread * width**-0.5)
        self.project()

    def project(self) -> None:
        """Scale W back onto ‖W‖₂ ≤ norm."""
        if self.norm is not None:
            with torch.no_grad():
                size = torch.linalg.matrix_norm(self.deq.cell.weight, 2)
                self.deq.cell.weight *= (self.norm / size).clamp_max(1.0)

    def forward(self, x: Tensor) -> Regression:
        z, solution = self.deq(self.injection(x))
        return Regression(self.read_out(z)[:, 0], z, solution)


class FNN(nn.Module):
    """z¹ = φ(W₁ x + b₁), z^{i+1} = φ(W_{i+1} z^i + b_{i+1}), y = W_L z^{L−1} + c. (B, inputs) to a `Regression`.

    Parameters
    ----------
    inputs, width, depth : d, k and L ≥ 2, the number of weight matrices, so L − 1 hidden layers
    activation : φ
    input_scale, bias_scale : of the first layer, as in `ReluDEQ`; the others start as in PyTorch, with sine uniform
        within √(6/k) as is usual there (Sitzmann et al. 2020)
    scaled : each weight matrix has a factor e^p of its own that is trained, so that Adam can reach large weights;
        `matrices` returns the products
    seed : of the initial weights, alone
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        depth: int,
        *,
        activation: Literal["relu", "sine"] = "relu",
        input_scale: float | None = None,
        bias_scale: float | None = None,
        scaled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if depth < 2:
            raise ConfigError(f"depth={depth}: an FNN has at least 2 weight matrices, that is one hidden layer")
        generator = torch.Generator().manual_seed(seed)
        sizes = [inputs, *[width] * (depth - 1), 1]
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        for number, layer in enumerate(self.layers):
            gain = 6**0.5 if activation == "sine" else 1.0
            bounds = (input_scale, bias_scale) if number == 0 else (gain * layer.in_features**-0.5, None)
            for parameter, bound in zip((layer.weight, layer.bias), bounds, strict=True):
                _uniform(parameter, layer.in_features**-0.5 if bound is None else bound, generator)
        self.log_scale = nn.Parameter(torch.zeros(depth)) if scaled else None
        self.activation = _ACTIVATIONS[activation]

    def matrices(self) -> list[Tensor]:
        """The weight matrices as they act, W_1 … W_L."""
        weights = [layer.weight for layer in self.layers]
        if self.log_scale is None:
            return weights
        return [weight * p.exp() for weight, p in zip(weights, self.log_scale, strict=True)]

    def forward(self, x: Tensor) -> Regression:
        *hidden, last = zip(self.matrices(), self.layers, strict=True)
        for weight, layer in hidden:
            x = self.activation(F.linear(x, weight, layer.bias))
        return Regression(F.linear(x, last[0], last[1].bias)[:, 0], x, None)


class SelfLoopDEQ(nn.Module):
    """A ReLU DEQ of one input with lower triangular W and self-loops w_tt = 1 − e^{−softplus(q_t)} below 1.

        z_t = σ( (u_t x + Σ_{i<t} w_ti z_i)/(1 − w_tt) + b̃_t ),   the DEQ's own bias is (1 − w_tt) b̃_t

    Solved exactly, neuron by neuron, and differentiated through that. (B, 1) to a `Regression`.

    Parameters
    ----------
    width : k; the first `steep` neurons start with u = −1 and b̃ in [0.2, 1], spread evenly
    steep : neurons that start so; others tried here did not learn the steepest targets
    seed : of the initial weights, alone

    Source: ours, the trained counterpart of `nclib.papers.separation_bias.separation.steep_deq_triangular`.
    """

    def __init__(self, width: int, steep: int = 7, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= steep <= width:
            raise ConfigError(f"steep={steep} neurons of width={width}: give 0 … width")
        generator = torch.Generator().manual_seed(seed)
        self.lower, self.loops = nn.Parameter(torch.empty(width * (width - 1) // 2)), nn.Parameter(torch.empty(width))
        self.inputs, self.biases = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.weights, self.constant = nn.Parameter(torch.empty(width)), nn.Parameter(torch.zeros(()))
        for parameter, bound in ((self.lower, 0.1), (self.loops, 0.5), (self.inputs, 1.0), (self.biases, 1.0)):
            _uniform(parameter, bound, generator)
        _uniform(self.weights, width**-0.5, generator)
        with torch.no_grad():
            self.inputs[:steep] = -1.0
            self.biases[:steep] = torch.linspace(0.2, 1.0, steep)

    def _coupling(self) -> Tensor:
        """Entries of W below the diagonal, (k, k)."""
        width = len(self.loops)
        matrix = self.lower.new_zeros(width, width)
        rows, columns = torch.tril_indices(width, width, -1)
        return matrix.index_put((rows, columns), self.lower)

    def matrices(self) -> list[Tensor]:
        """W, u, b and a of z = σ(W z + u x + b), y = a·z + c."""
        slack = torch.exp(-F.softplus(self.loops))  # 1 − w_tt
        return [self._coupling() + torch.diag(1 - slack), self.inputs, slack * self.biases, self.weights]

    def forward(self, x: Tensor) -> Regression:
        slack = torch.exp(-F.softplus(self.loops))
        direct = x * (self.inputs / slack) + self.biases
        coupling = self._coupling() / slack[:, None]
        z = torch.relu(direct[:, :1])
        for t in range(1, len(slack)):
            new = torch.relu(torch.addmv(direct[:, t], z, coupling[t, :t]))
            z = torch.cat([z, new[:, None]], dim=1)
        return Regression(z @ self.weights + self.constant, z, None)
