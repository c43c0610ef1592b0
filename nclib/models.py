"""The networks: ResNet-18 for small images and its arms, which differ only in the last residual block.

All arms share the encoder (stem up to the first block of layer 4) and the bias-free classifier, with the same initial
weights for the same seed. What stands where layer 4's second block was is the arm:

    explicit           that block itself, with BatchNorm: the paper's explicit network
    deq                z* = f(z*, x), the block as an equilibrium cell with input injection and GroupNorm
    explicit_matched   f(x, x), the same block applied once: the same parameters
    weight_tied        the same cell unrolled, z ← f(z, x), and differentiated through
    explicit_flops     untied GroupNorm blocks, as many as cost what the equilibrium costs

The cell may be one of the user's own.

Source: Sun & Shi (2024), section 5.1; He et al. (2016). The paper does not describe the input injection; without
injection the equilibrium does not depend on the image at all, so the cell adds the encoder's output x.
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib import deq, solvers
from nclib.config import ConfigError, GradientConfig, ModelConfig, SolverConfig, import_object
from nclib.deq import DEQ
from nclib.losses import COSINE_SCALE
from nclib.metrics import simplex_etf
from nclib.solvers import Solution


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
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.shortcut(x))


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
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(z))))) + x)


class MDEQCell(ResidualCell):
    """f(z, x) = GN(ReLU(z + GN(x + conv GN(ReLU(conv z))))), all (B, C, H, W); the cell of multiscale DEQs (Bai et
    al. 2020).

    Its output is normalised and signed where a residual block's is non-negative: on its own that moves NC2 and NC3,
    so a comparison with an explicit network must share the output stage.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__(channels, groups)
        self.norm3 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.norm3(F.relu(z + self.norm2(x + self.conv2(self.norm1(F.relu(self.conv1(z)))))))


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
    """Encoder, last block, global average pool, optional BatchNorm1d, and a linear classifier without bias."""

    def __init__(self, encoder: Encoder, block: nn.Module, dim: int, num_classes: int, cfg: ModelConfig) -> None:
        super().__init__()
        self.encoder, self.block = encoder, block
        self.feature_norm = nn.BatchNorm1d(dim) if cfg.feature_norm == "batchnorm" else nn.Identity()
        self.classifier = (CosineLinear if cfg.head == "cosine" else nn.Linear)(dim, num_classes, bias=False)

    def transform(self, x: Tensor) -> tuple[Tensor, Solution | None]:
        """The last block on the encoder's output: (B, d, H, W) to (B, d, H, W), with the solve's evidence if there is
        one."""
        # Under bfloat16 autocast the relative residual of the cell stalls at 5e-3, above the paper's tolerance. So
        # the last block and the read-out are computed in the precision of the parameters, in every arm alike.
        with torch.autocast(x.device.type, enabled=False):
            # channels-last pays in the encoder (a tenth to a quarter of a step on a CPU), not on maps as small as these
            x = x.to(self.classifier.weight.dtype).contiguous()
            return self.block(x) if isinstance(self.block, DEQ) else (self.block(x), None)

    def read_out(self, z: Tensor, solution: Solution | None) -> Output:
        """Pooled features and logits of the last block's output (B, d, H, W)."""
        with torch.autocast(z.device.type, enabled=False):
            features = self.feature_norm(z.mean(dim=(2, 3)) if z.ndim == 4 else z)
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
    drawn = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fixed = (simplex_etf(num_classes, dim) @ torch.linalg.qr(drawn).Q).to(classifier.weight.dtype)
    classifier.weight = nn.Parameter(fixed, requires_grad=False)


_SOLVERS = {"broyden": solvers.Broyden, "anderson": solvers.Anderson, "fixed_point": solvers.FixedPointIteration}


def build_solver(cfg: SolverConfig) -> solvers.FixedPointIteration | solvers.Anderson | solvers.Broyden:
    """The solver `cfg` describes."""
    return _SOLVERS[cfg.method](**cfg.model_dump(exclude={"method"}, exclude_none=True))


def build_gradient(cfg: GradientConfig, tol: float) -> deq.Gradient:
    """The gradient of an equilibrium `cfg` describes; `tol` is what counts as converged after a number of steps."""
    options = cfg.model_dump(exclude={"method"}, exclude_none=True)
    if cfg.method == "neumann":
        return deq.Neumann(terms=cfg.steps)
    if cfg.method == "unrolled":
        options["tol"] = tol
    return getattr(deq, cfg.method.capitalize())(**options)


def _own_cell(cfg: ModelConfig, channels: int, seed: int) -> nn.Module:
    """The user's cell for so many channels, with the initial weights that it draws itself after `seed`."""
    make = import_object(cfg.cell, cfg.source)
    options = {"groups": cfg.groups} if "groups" in inspect.signature(make).parameters else {}
    torch.manual_seed(seed)
    try:
        cell = make(channels, **options)
        x = torch.randn(2, channels, 4, 4)
        with torch.no_grad():
            value = cell.eval()(x, x)
        cell.train()
    except Exception as error:  # whatever that code raises
        raise ConfigError(f"{cfg.cell} with {channels} channels raised {type(error).__name__}: {error}") from error
    if not isinstance(value, Tensor) or value.shape != x.shape:
        returned = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"{cfg.cell} must return a tensor like its state, {tuple(x.shape)}, and returned {returned}")
    return cell


def _block(cfg: ModelConfig, channels: int, seed: int) -> nn.Module:
    if cfg.kind == "explicit":
        return BasicBlock(channels, channels)
    if cfg.own_cell is None and channels % cfg.groups:
        raise ConfigError(f"groups={cfg.groups} does not divide the {channels} channels of the cell, 8·width")
    if cfg.kind == "explicit_flops":
        return UntiedCells(channels, cfg.groups, cfg.num_blocks)
    if cfg.own_cell is not None:
        cell = _own_cell(cfg, channels, seed)
    else:
        cell = (ResidualCell if cfg.cell == "residual" else MDEQCell)(channels, cfg.groups)
    if cfg.kind == "deq":
        rule = build_gradient(cfg.gradient, cfg.solver.tol)
        solver = None if isinstance(rule, deq.Unrolled) else build_solver(cfg.solver)
        # the output of a classifier has its solution, and evaluations report the share that converged
        return DEQ(cell, solver, rule, z0=cfg.start, on_failure="ignore")
    return WeightTied(cell, 1 if cfg.kind == "explicit_matched" else cfg.unroll)


def build_model(cfg: ModelConfig, num_classes: int, in_channels: int, seed: int = 0) -> Classifier:
    """The network `cfg` describes, with initial weights from `seed` alone (the global random state is not touched).

    Arms built with one seed have the same encoder, the same classifier and, where they have one, the same cell. A cell
    of the user's own is imported here, and keeps the initialisation that it has itself.

    Parameters
    ----------
    cfg : which network
    num_classes, in_channels : K and the channels of the images
    seed : of the initial weights

    Returns
    -------
    Classifier
        Called with images, it returns logits, features and, of a DEQ, the evidence of its solve.

    Raises
    ------
    ConfigError
        When the feature dimension d = 8·width is below K−1, where no simplex ETF of K classes exists, when `groups`
        does not divide it, or when a cell of the user's own fails.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> model = nc.build_model(nc.ModelConfig(kind="deq", width=2), num_classes=10, in_channels=1)
    >>> model(torch.zeros(3, 1, 8, 8)).logits.shape
    torch.Size([3, 10])
    """
    dim = 8 * cfg.width
    if dim < num_classes - 1:
        need = f"a simplex ETF of {num_classes} classes needs {num_classes - 1}: use"
        raise ConfigError(f"width={cfg.width} gives {dim} features; {need} width={-(-(num_classes - 1) // 8)} or more")
    # construction draws from the global generator: fork it, so that callers' random state stays theirs
    with torch.random.fork_rng([]):
        model = Classifier(Encoder(in_channels, cfg.width), _block(cfg, dim, 3 * seed + 1), dim, num_classes, cfg)
    for offset, part in enumerate((model.encoder, model.block, model.classifier)):
        if part is not model.block or cfg.own_cell is None:
            _initialise(part, 3 * seed + offset)
    if cfg.head == "etf":
        _fix_at_etf(model.classifier, 3 * seed + 2)
    if cfg.width >= 16:  # with fewer channels oneDNN's gradient of a strided 1×1 convolution is wrong (its issue 6035)
        model.encoder.to(memory_format=torch.channels_last)
    return model


def cast(model: Any, dtype: torch.dtype) -> Any:
    """A network with its numbers in this precision. ``model.to(dtype)`` would make complex ones real."""
    twice = dtype.to_complex()
    return model._apply(lambda t: t.to(twice if t.is_complex() else dtype if t.is_floating_point() else t.dtype))


def count_parameters(module: nn.Module) -> int:
    """Number of trainable parameters.

    Parameters
    ----------
    module : any network

    Returns
    -------
    int

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> nc.models.count_parameters(torch.nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
