"""The networks: ResNet-18 for small images, and its relatives, which differ only in the last
residual block.

All share the encoder (stem up to the first block of layer 4) and the classifier without bias, with
the same initial weights for the same seed. What stands where layer 4's second block was is the kind
of network:

    explicit           that block itself, with BatchNorm: the paper's explicit network
    deq                z* = f(z*, x), the block as an equilibrium cell with input injection and
                       GroupNorm
    explicit_matched   f(x, x), the same block applied once: the same parameters
    weight_tied        the same cell unrolled, z ← f(z, x), and differentiated through
    explicit_flops     untied GroupNorm blocks, as many as cost what the equilibrium costs

The cell may be one of the user's own.

Source: Sun & Shi (2024), section 5.1; He et al. (2016). The paper does not describe the input
injection; without injection the equilibrium does not depend on the image at all, so the cell adds
the encoder's output x.

Below stand the blocks, the whole network (`Classifier`), what makes a block of a configuration
(`build_block`), the initial weights, and what makes a network of a configuration (`build_model`).
"""

import inspect
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nclib.config import ConfigError, GradientConfig, ModelConfig, SolverConfig, import_object
from nclib.deq import DEQ, Gradient, Implicit, Neumann, Phantom, Unrolled
from nclib.losses import COSINE_SCALE
from nclib.metrics import simplex_etf
from nclib.solvers import Anderson, Broyden, FixedPointIteration, Solution


class Output(NamedTuple):
    """What a classifier returns: logits (B, K), features (B, d) and, for an equilibrium, the
    `Solution` of its solve."""

    logits: Tensor
    features: Tensor
    solution: Solution | None


# --- Blocks ---------------------------------------------------------------------------------------


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """The residual block of ResNet-18: ReLU(BN(conv ReLU(BN(conv x))) + shortcut(x)).

    From (B, C, H, W) to (B, C', ⌈H/stride⌉, ⌈W/stride⌉).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(
                in_channels, out_channels, kernel_size=1, stride=stride, bias=False
            )
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResidualCell(nn.Module):
    """f(z, x) = ReLU(GN(conv ReLU(GN(conv z))) + x), all (B, C, H, W). f(x, x) is a residual block
    with GroupNorm.

    GroupNorm, because BatchNorm would let the equilibrium of one image depend on its batch mates
    and on the solver's steps.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, channels)
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv2 = conv3x3(channels, channels)
        self.norm2 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(z)))
        return F.relu(self.norm2(self.conv2(inner)) + x)


class MDEQCell(ResidualCell):
    """f(z, x) = GN(ReLU(z + GN(x + conv GN(ReLU(conv z))))), all (B, C, H, W); the cell of
    multiscale DEQs (Bai et al. 2020).

    Its output is normalised and signed where a residual block's is non-negative: on its own that
    moves NC2 and NC3, so a comparison with an explicit network must share the output stage.
    """

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__(channels, groups)
        self.norm3 = nn.GroupNorm(groups, channels)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        inner = self.norm1(F.relu(self.conv1(z)))
        injected = self.norm2(x + self.conv2(inner))
        return self.norm3(F.relu(z + injected))


class WeightTied(nn.Module):
    """The cell applied `steps` times from z = x, differentiated through every step."""

    def __init__(self, cell: nn.Module, steps: int) -> None:
        super().__init__()
        self.cell = cell
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        z = x
        for _ in range(self.steps):
            z = self.cell(z, x)
        return z


class UntiedCells(nn.Module):
    """`num_blocks` residual cells with weights of their own, each applied once to the output of the
    one before."""

    def __init__(self, channels: int, groups: int, num_blocks: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(ResidualCell(channels, groups) for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x, x)
        return x


# --- The whole network ----------------------------------------------------------------------------


class Encoder(nn.Sequential):
    """Stem for small images (3×3 convolution, stride 1, no pooling) and ResNet-18 up to layer 4's
    first block: (B, C_in, H, W) to (B, 8·width, ⌈H/8⌉, ⌈W/8⌉)."""

    def __init__(self, in_channels: int, width: int) -> None:
        layers: list[nn.Module] = [conv3x3(in_channels, width), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        for out_channels, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            layers.append(BasicBlock(channels, out_channels, stride))
            if out_channels < 8 * width:  # the second block of the last stage is the last block
                layers.append(BasicBlock(out_channels, out_channels))
            channels = out_channels
        super().__init__(*layers)


class CosineLinear(nn.Linear):
    """Classifier without bias whose logits are 30 cos(h, w_k): (B, d) to (B, K)."""

    def forward(self, h: Tensor) -> Tensor:
        return COSINE_SCALE * F.linear(F.normalize(h, dim=1), F.normalize(self.weight, dim=1))


class Classifier(nn.Module):
    """Encoder, last block, global average pool, optional BatchNorm1d, and a linear classifier
    without bias."""

    def __init__(
        self, encoder: Encoder, block: nn.Module, dim: int, num_classes: int, config: ModelConfig
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.block = block
        self.feature_norm = (
            nn.BatchNorm1d(dim) if config.feature_norm == "batchnorm" else nn.Identity()
        )
        head = CosineLinear if config.head == "cosine" else nn.Linear
        self.classifier = head(dim, num_classes, bias=False)

    def transform(self, x: Tensor) -> tuple[Tensor, Solution | None]:
        """The last block on the encoder's output: (B, d, H, W) to (B, d, H, W), with the `Solution`
        of an equilibrium."""
        # Under bfloat16 autocast the relative residual of the cell stalls at 5e-3, above the
        # paper's tolerance. So the last block and the read-out are computed in the precision of the
        # parameters, in every network alike.
        with torch.autocast(x.device.type, enabled=False):
            # channels-last pays in the encoder (a tenth to a quarter of a step on a CPU), not on
            # maps as small as these
            x = x.to(self.classifier.weight.dtype).contiguous()
            if isinstance(self.block, DEQ):
                return self.block(x)
            return self.block(x), None

    def read_out(self, z: Tensor, solution: Solution | None) -> Output:
        """Pooled features and logits of the last block's output (B, d, H, W)."""
        with torch.autocast(z.device.type, enabled=False):
            features = self.feature_norm(z.mean(dim=(2, 3)))
            return Output(self.classifier(features), features, solution)

    def forward(self, images: Tensor) -> Output:
        """Images (B, C, H, W), normalised, to an `Output`."""
        z, solution = self.transform(self.encoder(images))
        return self.read_out(z, solution)


# --- The last block, from a configuration ---------------------------------------------------------


def build_solver(config: SolverConfig) -> FixedPointIteration | Anderson | Broyden:
    """The solver that a configuration describes."""
    options = config.model_dump(exclude={"method"}, exclude_none=True)
    if config.method == "broyden":
        return Broyden(**options)
    if config.method == "anderson":
        return Anderson(**options)
    return FixedPointIteration(**options)


def build_gradient(config: GradientConfig, tol: float) -> Gradient:
    """The gradient that a configuration describes; `tol` is what counts as converged after unrolled
    steps."""
    if config.method == "neumann":
        return Neumann(terms=config.steps)
    if config.method == "phantom":
        return Phantom(steps=config.steps, damping=config.damping)
    if config.method == "unrolled":
        return Unrolled(steps=config.steps, tol=tol)
    return Implicit(steps=config.steps)


def build_own_cell(config: ModelConfig, channels: int, seed: int) -> nn.Module:
    """The user's cell for so many channels, with the initial weights that it draws itself after
    `seed`.

    Raises
    ------
    ConfigError
        When it cannot be imported, raises an error, or returns something else than a tensor like
        its state.
    """
    make = import_object(config.cell, config.source)
    takes_groups = "groups" in inspect.signature(make).parameters
    options = {"groups": config.groups} if takes_groups else {}
    torch.manual_seed(seed)
    try:
        cell = make(channels, **options)
        state = torch.randn(2, channels, 4, 4)
        with torch.no_grad():
            value = cell.eval()(state, state)
        cell.train()
    except Exception as error:  # whatever that code raises
        raise ConfigError(
            f"{config.cell} with {channels} channels raised {type(error).__name__}: {error}"
        ) from error
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if shape != tuple(state.shape):
        raise ConfigError(
            f"{config.cell} must return a tensor of the shape of its state, {tuple(state.shape)}, "
            f"and returned {shape}"
        )
    return cell


def build_block(config: ModelConfig, channels: int, seed: int) -> nn.Module:
    """The last block that a configuration describes; `seed` is of a cell of the user's own."""
    if config.kind == "explicit":
        return BasicBlock(channels, channels)
    if config.own_cell is None and channels % config.groups:
        raise ConfigError(
            f"groups={config.groups} does not divide the {channels} channels of the cell, 8·width"
        )
    if config.kind == "explicit_flops":
        return UntiedCells(channels, config.groups, config.num_blocks)
    if config.own_cell is not None:
        cell = build_own_cell(config, channels, seed)
    elif config.cell == "mdeq":
        cell = MDEQCell(channels, config.groups)
    else:
        cell = ResidualCell(channels, config.groups)
    if config.kind == "explicit_matched":
        return WeightTied(cell, 1)
    if config.kind == "weight_tied":
        return WeightTied(cell, config.unroll)
    gradient = build_gradient(config.gradient, config.solver.tol)
    solver = None if isinstance(gradient, Unrolled) else build_solver(config.solver)
    # Failed solves are not warned of one by one: evaluations report the share that converged.
    return DEQ(cell, solver, gradient, z0=config.start, on_failure="ignore")


# --- Initial weights ------------------------------------------------------------------------------


def initialise(module: nn.Module, seed: int) -> None:
    """He initialisation of every convolution from a generator of its own; norms at identity, the
    classifier as in PyTorch."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(
                part.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
        elif isinstance(part, nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=5**0.5, generator=generator)


def fix_at_etf(classifier: nn.Linear, seed: int) -> None:
    """Turn the classifier into a simplex ETF of random orientation that is not trained."""
    num_classes, dim = classifier.weight.shape
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    etf = simplex_etf(num_classes, dim) @ rotation
    classifier.weight = nn.Parameter(etf.to(classifier.weight.dtype), requires_grad=False)


# --- A network, from a configuration --------------------------------------------------------------


def build_model(
    config: ModelConfig, num_classes: int, in_channels: int, seed: int = 0
) -> Classifier:
    """The network that a configuration describes, with initial weights from `seed` alone.

    Networks built with one seed have the same encoder, the same classifier and, where they have
    one, the same cell. A cell of the user's own is imported here, and keeps the initialisation that
    it has itself. The global random state is not touched.

    Parameters
    ----------
    config : which network
    num_classes, in_channels : K and the channels of the images
    seed : of the initial weights

    Returns
    -------
    Classifier
        Called with images, it returns logits, features and, of a DEQ, the evidence of its solve.

    Raises
    ------
    ConfigError
        When the feature dimension d = 8·width is below K−1, where no simplex ETF of K classes
        exists; when `groups` does not divide it; when a cell of the user's own cannot be imported,
        has changed, or does not fit.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> model = nc.build_model(nc.ModelConfig(kind="deq", width=2), num_classes=10, in_channels=1)
    >>> model(torch.zeros(3, 1, 8, 8)).logits.shape
    torch.Size([3, 10])
    """
    dim = 8 * config.width
    if dim < num_classes - 1:
        enough = math.ceil((num_classes - 1) / 8)
        raise ConfigError(
            f"width={config.width} gives {dim} features; a simplex ETF of {num_classes} classes "
            f"needs {num_classes - 1}: use width={enough} or more"
        )
    with torch.random.fork_rng([]):  # construction draws from the global generator
        encoder = Encoder(in_channels, config.width)
        block = build_block(config, dim, 3 * seed + 1)
        model = Classifier(encoder, block, dim, num_classes, config)
    initialise(model.encoder, 3 * seed)
    if config.own_cell is None:
        initialise(model.block, 3 * seed + 1)
    initialise(model.classifier, 3 * seed + 2)
    if config.head == "etf":
        fix_at_etf(model.classifier, 3 * seed + 2)
    # With fewer channels oneDNN's gradient of a strided convolution is wrong (its issue 6035).
    if config.width >= 16:
        model.encoder.to(memory_format=torch.channels_last)
    return model


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
