"""A deep equilibrium model and neural collapse, in one file.

The balanced half of Figure 3 of Sun & Shi (NeurIPS 2024), one seed, on scikit-learn's digits: a small ResNet-18, and
the same network with its last block turned into an equilibrium layer, trained alike and measured for neural collapse.
Expect accuracies a few images apart, and NC1 to fall far in both, NC2 and NC3 less. One minute on a CPU core.

    python notebooks/nano.py            prints a table and draws nano.png
    python notebooks/nano.py --json     prints the metrics of the last epoch

Read it from top to bottom. nclib, which it does not need, gets the same weights to the bit (``tests/test_nano.py``).
"""

import argparse
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

SEED = 0
CLASSES = 10
WIDTH = 16  # channels of the first layer; ResNet-18 has 64
EPOCHS = 20
BATCH = 64
LR = 0.05
TOL = 1e-3  # of the equilibrium, as in the paper
MAX_STEPS = 20


# 1 -- Data ------------------------------------------------------------------------------------------------------------


def digits():
    """Training and test images (N, 1, 8, 8), normalised, with labels (N,)."""
    grey, labels = load_digits(return_X_y=True)
    images = np.round(grey.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)

    # 40 images of each class are for testing. RandomState is the generator that NumPy promises never to change.
    stream = np.random.RandomState([0])
    tested = np.zeros(len(labels), bool)
    for k in range(CLASSES):
        tested[stream.permutation(np.flatnonzero(labels == k))[:40]] = True
    images = torch.from_numpy(images)
    labels = torch.from_numpy(labels.astype(np.int64))
    tested = torch.from_numpy(tested)

    # Balanced classes: each keeps as many training images as the smallest class has, 134.
    train = images[~tested]
    y = labels[~tested]
    size = int(torch.bincount(y).min())
    generator = torch.Generator().manual_seed(SEED)
    kept = []
    for k in range(CLASSES):
        members = (y == k).nonzero().flatten()
        kept.append(members[torch.randperm(len(members), generator=generator)[:size]])
    kept = torch.cat(kept).sort().values

    # Pixels get mean 0 and standard deviation 1, computed from how often each of the 256 grey levels occurs.
    levels = torch.arange(256, dtype=torch.float64) / 255
    share = torch.bincount(train.flatten(), minlength=256).double()
    share /= share.sum()
    mean = share @ levels
    std = (share @ (levels - mean) ** 2).sqrt()

    def normalised(pixels):
        return torch.addcmul((-mean / std).float(), pixels.float(), (1 / (255 * std)).float())

    return (normalised(train[kept]), y[kept]), (normalised(images[tested]), labels[tested])


def shuffled(count, epoch):
    """Row numbers of the training images, batch by batch, in an order that follows from seed and epoch."""
    state = int(np.random.SeedSequence([SEED, epoch]).generate_state(1, np.uint64)[0])
    return torch.randperm(count, generator=torch.Generator().manual_seed(state)).split(BATCH)


# 2 -- Networks --------------------------------------------------------------------------------------------------------


def conv(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    """The residual block of ResNet-18: ReLU(BN(conv ReLU(BN(conv x))) + x)."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = conv(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class Cell(nn.Module):
    """The same block as a map f(z, x), whose fixed point z = f(z, x) will be the layer's output.

    Two things differ. The input x enters through the shortcut at every application; without it the fixed point would
    not depend on the image. GroupNorm replaces BatchNorm, which would tie the fixed points of a batch together.
    """

    def __init__(self, channels, groups=8):
        super().__init__()
        self.conv1 = conv(channels, channels)
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv2 = conv(channels, channels)
        self.norm2 = nn.GroupNorm(groups, channels)

    def forward(self, z, x):
        inner = F.relu(self.norm1(self.conv1(z)))
        return F.relu(self.norm2(self.conv2(inner)) + x)


class Equilibrium(nn.Module):
    """The layer: z* with z* = cell(z*, x), and each image's relative residual; ``solve`` is in section 3."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        z, residual = solve(self.cell, x.detach(), (x.detach(),), leave=True)
        if torch.is_grad_enabled():
            z = ImplicitGradient.apply(self.cell, z, x, *self.cell.parameters())
        return z, residual


class ResNet(nn.Module):
    """Encoder, last block, average over the image, classifier. ``kind`` says what the last block is."""

    def __init__(self, kind):
        super().__init__()
        layers = [conv(1, WIDTH), nn.BatchNorm2d(WIDTH), nn.ReLU()]
        channels = WIDTH
        for outputs, stride in ((WIDTH, 1), (2 * WIDTH, 2), (4 * WIDTH, 2), (8 * WIDTH, 2)):
            layers.append(Block(channels, outputs, stride))
            if outputs < 8 * WIDTH:  # the second block of the last stage is the last block
                layers.append(Block(outputs, outputs))
            channels = outputs
        self.encoder = nn.Sequential(*layers)
        self.block = Equilibrium(Cell(channels)) if kind == "deq" else Block(channels, channels)
        self.classifier = nn.Linear(channels, CLASSES, bias=False)
        # Each part has a generator of its own, so that both networks begin with the same encoder and classifier.
        for offset, part in enumerate((self.encoder, self.block, self.classifier)):
            generator = torch.Generator().manual_seed(3 * SEED + offset)
            for module in part.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
                elif isinstance(module, nn.Linear):
                    nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=generator)
        self.encoder.to(memory_format=torch.channels_last)  # a little faster

    def forward(self, images):
        """Logits (B, 10), features (B, d), and the residual of each image's equilibrium, 0 without one."""
        x = self.encoder(images).contiguous()
        if isinstance(self.block, Equilibrium):
            z, residual = self.block(x)
        else:
            z = self.block(x)
            residual = torch.zeros(len(x))
        features = z.mean(dim=(2, 3))  # of 8×8 pixels, a single one is left here
        return self.classifier(features), features, residual


# 3 -- Solver ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def solve(f, start, args, leave):
    """Broyden's method for z = f(z, *args), for every row of a batch by itself.

    It looks for a zero of r(z) = f(z) − z by quasi-Newton steps s = −B⁻¹ r. B estimates the Jacobian of r: it begins as
    −I, so that the first step is z ← f(z), and becomes B₊ = B + r₊ sᵀ/‖s‖², which maps the step s to r₊ − r. So B₊⁻¹B =
    I − B₊⁻¹r₊ sᵀ/‖s‖² = I + s₊ sᵀ/‖s‖², where s₊ = −B₊⁻¹ r₊ is the next step (Kelley 1995, section 7.3). Applied to
    w = −B⁻¹ r₊ this says s₊ = w + p s₊ with p = sᵀw/‖s‖², so s₊ = w / (1 − p). B⁻¹ itself is never formed.

    A row is done when ‖f(z) − z‖ ≤ TOL ‖f(z)‖. It leaves the batch at once if ``leave``, otherwise whenever at most
    half of the rows are left. Returns the best z of each row and its relative residual.
    """
    shape = (-1, *start.shape[1:])
    batch = len(start)
    z = start.flatten(1).clone()
    steps = z.new_empty(batch, MAX_STEPS, z.shape[1])  # s_1, s_2, …, and r where the next one will be
    lower = torch.zeros(batch, MAX_STEPS, MAX_STEPS, dtype=torch.float64)  # the matrix A of ``quasi_newton``
    row = torch.arange(batch)  # which row of the batch is worked on at each place
    live = torch.ones(batch, dtype=torch.bool)
    value = torch.empty_like(z)
    best_z = z
    best = torch.full((batch,), math.inf, dtype=torch.float64)

    for k in range(MAX_STEPS):
        # Evaluate f, and see which rows got better, which are done, and which run away.
        fz = f(z.view(shape), *args).flatten(1)
        r = torch.sub(fz, z, out=steps[: len(z), k])
        size = torch.linalg.vector_norm(r, dim=1).double()
        scale = torch.linalg.vector_norm(fz, dim=1).double()
        finite = size.isfinite() & scale.isfinite()
        residual = torch.where(finite, size / (scale + 1e-8), math.inf)
        if k == 0:
            limit = 1e6 * (size + scale)
        better = live & (residual < best[row])
        best[row[better]] = residual[better]
        best_z = torch.where(better[:, None], z, best_z)
        lost = ~(finite & (size <= limit[row]))
        gone = live & ((residual <= TOL) | lost | (k == MAX_STEPS - 1))
        value[row[gone]] = best_z[gone]
        live = live & ~gone
        left = int(live.sum())
        if left == 0:
            break

        # Rows from the end take the places of rows that are done.
        b = left if leave else len(z)
        while left <= b // 2:
            b //= 2
        if b < len(z):
            movers = live[b:].nonzero().flatten() + b
            holes = (~live[:b]).nonzero().flatten()[: len(movers)]
            args = tuple(tensor.clone() for tensor in args)
            for tensor in (row, live, z, best_z, lower, steps, *args):
                tensor[holes] = tensor[movers]
            row = row[:b]
            live = live[:b]
            z = z[:b]
            best_z = best_z[:b]
            args = tuple(tensor[:b] for tensor in args)

        new = z + quasi_newton(steps[:b], lower[:b], k)
        z = torch.where(live[:, None], new, best_z)
    return value.view(shape), best.float()


def quasi_newton(steps, lower, k):
    """The step s_{k+1} (b, n) from s_1, …, s_k and r; it is stored where r was.

    w = −B⁻¹ r is r times the factors I + θ_j s_{j+1} s_jᵀ/‖s_j‖², j = 1, …, k − 1 in turn; θ_j is mostly 1 (below).
    Factor j adds a_j s_{j+1} to a vector v, a_j = θ_j s_j·v/‖s_j‖². So w = r + Σ_j a_j s_{j+1}: a_j is θ_j/‖s_j‖² times
    s_j·r + Σ_{i<j} a_i s_j·s_{i+1}, and a = A (s_1·r, …, s_{k−1}·r), A lower triangular.
    """
    if k == 0:
        return steps[:, 0]
    known = lower[:, : k - 1, : k - 1]
    newest = lower[:, k - 1, :k]
    dots = torch.bmm(steps[:, k - 1 : k + 1], steps[:, :k].mT).double()
    with_last, with_r = dots.unbind(1)  # s_k·s_i and r·s_i, i ≤ k
    norm2 = with_last[:, -1:]
    a = torch.bmm(known, with_r[:, :-1].unsqueeze(2)).squeeze(2)
    # B changes by θ r sᵀ/‖s‖²: the step is w / (1 − θ p). θ is 1 unless |1 − p| = |det B₊/det B| < 0.1 (Powell 1970).
    p = (with_r[:, -1:] + (with_last[:, 1:] * a).sum(1, keepdim=True)) / norm2
    gap = 1 - p
    pivot = gap.abs().clamp_min(0.1).copysign(gap)
    theta = torch.where(pivot == gap, 1, (1 - pivot) / p)
    # Row k of A, for the next call: a_k by the same formula, with each a_i, i < k, written as its row of A.
    newest[:, :-1] = torch.bmm(with_last[:, 1:].unsqueeze(1), known).squeeze(1)
    newest[:, -1] = 1
    newest *= theta / norm2
    weights = torch.cat((a, torch.ones_like(p)), 1) / pivot
    steps[:, k] = torch.bmm(weights.float().unsqueeze(1), steps[:, 1 : k + 1]).squeeze(1)
    return steps[:, k]


# 4 -- Gradient --------------------------------------------------------------------------------------------------------


class ImplicitGradient(torch.autograd.Function):
    """The derivative of z* = f(z*, x), whichever way z* was found.

    Differentiate both sides of z* = f(z*, x; θ): dz* = J dz* + (∂f/∂θ) dθ, J = ∂f/∂z at z*. So if g is the gradient of
    the loss at z*, the gradient at θ and at x is uᵀ ∂f with u = g + Jᵀ u: another fixed point, this time of a linear
    map, and the same solver finds it. What is kept for the backward pass does not grow with the number of steps.
    """

    @staticmethod
    def forward(ctx, cell, z, x, *parameters):
        ctx.cell = cell
        ctx.save_for_backward(z, x)
        return z.clone()

    @staticmethod
    def backward(ctx, cotangent):
        cell = ctx.cell
        z, x = (tensor.detach() for tensor in ctx.saved_tensors)
        held = [None, None, None]  # the rows that f was linearised at, the point, and f there

        def adjoint(u, g, z, x):
            """u ↦ g + Jᵀ u. f is linearised again when rows have left: hence they seldom do."""
            if z is not held[0]:
                with torch.enable_grad():
                    at = z.detach().requires_grad_()
                    held[:] = z, at, cell(at, x)
            return g + torch.autograd.grad(held[2], held[1], u, retain_graph=True)[0]

        # Rows of unit length: beside them the 1e-8 in ``solve`` is nothing.
        norm = torch.linalg.vector_norm(cotangent.flatten(1), dim=1, dtype=torch.float64)
        norm = torch.where(norm > 0, norm, 1).view(-1, 1, 1, 1)
        g = (cotangent / norm).float()
        u, _ = solve(adjoint, g, (g, z, x), leave=False)
        u = (u * norm).float()

        with torch.enable_grad():
            fz = cell(z, x.requires_grad_())
        return None, None, *torch.autograd.grad(fz, [x, *cell.parameters()], u)


# 5 -- Collapse --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def collapse(h, labels, w):
    """Metrics of neural collapse from features h (N, d), labels (N,) and classifier rows w (K, d), in float64.

    NC1: the features of a class become one point. NC2: their means, equally long, are as far apart as can be.
    NC3: the classifier's rows become those means. 0 is full collapse, in the paper's (13) and (14) if means sum to 0.
    """
    h = h.double()
    w = w.double()
    means = torch.stack([h[labels == k].mean(0) for k in range(CLASSES)])
    centred = means - means.mean(0)
    within = h - means[labels]

    # NC1, equation (12) of Sun & Shi: tr(Σ_W Σ_B†) / K, with Σ_B† from the directions in which the class means differ.
    _, singular, directions = torch.linalg.svd(centred / CLASSES**0.5, full_matrices=False)
    between = singular**2
    keep = between > 1e-10 * between[0]
    along = (within @ directions[keep].T).square().mean(0)

    simplex = (torch.eye(CLASSES, dtype=torch.float64) - 1 / CLASSES) / math.sqrt(CLASSES - 1)

    def distance(a, b):
        """Between the directions of two matrices: ‖a/‖a‖ − b/‖b‖‖."""
        return float(torch.linalg.norm(a / torch.linalg.norm(a) - b / torch.linalg.norm(b)))

    return {
        "nc1_pinv": float((along / between[keep]).sum() / CLASSES),
        "nc1_trace_ratio": float(within.square().sum() / len(h) / between.sum()),
        "paper_eq13_uncentred": distance(means @ means.T, simplex),  # NC2 as the paper prints it
        "paper_eq14_uncentred": distance(w, means),  # NC3 as the paper prints it
        "nc2_etf_distance": distance(centred @ centred.T, simplex),  # both with the global mean taken off
        "nc3_self_duality": distance(w, centred),
    }


# 6 -- Training --------------------------------------------------------------------------------------------------------


def train(kind, training, test, say):
    """Train one network; the metrics of every second epoch, by epoch."""
    images, labels = training
    test_images, test_labels = test
    network = ResNet(kind)
    history = {}
    optimiser = torch.optim.SGD(network.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    total = EPOCHS * math.ceil(len(images) / BATCH)
    step = 0
    for epoch in range(1, EPOCHS + 1):
        network.train()
        for rows in shuffled(len(images), epoch):
            optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / total)) / 2  # falls to 0
            logits, _, residual = network(images[rows])
            keep = logits.isfinite().all(dim=1) & (residual <= 0.1)  # images without an equilibrium do not count
            losses = F.cross_entropy(torch.where(keep[:, None], logits, 0.0), labels[rows], reduction="none")
            loss = torch.where(keep, losses, 0.0).sum() / keep.sum().clamp_min(1)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            if nn.utils.clip_grad_norm_(network.parameters(), 1.0).isfinite():
                optimiser.step()
            step += 1
        if epoch % 2 == 0:
            network.eval()
            with torch.no_grad():
                features = torch.cat([network(batch)[1] for batch in images.split(512)])
                right = torch.cat([network(batch)[0] for batch in test_images.split(512)]).argmax(1) == test_labels
            by_class = torch.stack([right[test_labels == k].double().mean() for k in range(CLASSES)])
            history[epoch] = {"accuracy_balanced": float(by_class.mean())}
            history[epoch] |= collapse(features, labels, network.classifier.weight)
            say(f"{kind:>8}  epoch {epoch:2}  accuracy {history[epoch]['accuracy_balanced']:.3f}")
    return network, history


PANELS = {"accuracy_balanced": "test accuracy", "nc1_pinv": "NC1, eq. 12"}
PANELS |= {"nc2_etf_distance": "NC2, centred means", "nc3_self_duality": "NC3, centred means"}


def draw(histories):
    """Accuracy and the three metrics against the epoch, a line for each network."""
    figure, axes = plt.subplots(1, 4, figsize=(12, 3), layout="constrained")
    for ax, (metric, title) in zip(axes, PANELS.items(), strict=True):
        for kind, name in (("explicit", "ResNet-18"), ("deq", "DEQ")):
            ax.plot(histories[kind].keys(), [values[metric] for values in histories[kind].values()], label=name)
        ax.set(title=title, xlabel="epoch", xticks=range(0, EPOCHS + 1, 5))
        ax.set_ylim(None if metric == "accuracy_balanced" else 0)
    axes[0].legend()
    figure.savefig("nano.png", dpi=150)


def main():
    parser = argparse.ArgumentParser(description="Figure 3 on digits: ResNet-18 and a DEQ of its last block.")
    parser.add_argument("--json", action="store_true", help="print the metrics of the last epoch, and draw nothing")
    as_json = parser.parse_args().json
    say = (lambda text: None) if as_json else print
    torch.set_num_threads(1)  # small networks are fastest so, and results do not depend on the number of cores
    torch.use_deterministic_algorithms(True)
    training, test = digits()
    histories = {kind: train(kind, training, test, say)[1] for kind in ("explicit", "deq")}
    last = {kind: history[EPOCHS] for kind, history in histories.items()}
    if as_json:
        print(json.dumps(last, indent=1))
        return
    print(f"\n{'':<22}{'ResNet-18':>10}{'DEQ':>10}")
    for metric in last["deq"]:
        print(f"{metric:<22}{last['explicit'][metric]:10.4f}{last['deq'][metric]:10.4f}")
    draw(histories)
    print("\ndrawn: nano.png")


if __name__ == "__main__":
    main()
