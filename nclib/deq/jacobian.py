"""The Jacobian at a point: products with it, its spectral radius and its size, and the Jacobian of every row."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from nclib.deq.cell import State, flat_rows, packed, vjp
from nclib.methods import is_whole
from nclib.solver import evaluate_cell, own_weights
from nclib.system import compiled

Point = TypeVar("Point", bound=State)


@contextmanager
def _recording() -> Iterator[None]:
    """Gradients are recorded, and compiled code runs eager, whose backward pass could not be repeated."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError("torch.inference_mode() records no Jacobian; write `with torch.no_grad():` instead")
    with torch.enable_grad(), compiled.eager():
        yield


def _linearise(f: Callable[[State], State], z: State, detach: bool, **counts: int) -> tuple[Tensor, Tensor]:
    """f(z) and z, the parts of a state of several tensors one after the other."""
    for name, number in counts.items():
        if not is_whole(number) or number < 1:
            raise ValueError(f"{name}={number!r}: give a whole number of at least 1")
    with _recording():
        _, f, z = packed(f, z)
        z = z if z.requires_grad and not detach else z.detach().requires_grad_()
        return evaluate_cell(f, z, (), len(z)), z


def row_jacobians(f: Callable[..., Tensor | tuple], x: Tensor, *rows: Tensor) -> Tensor:
    """The Jacobian of every row of f(x, *rows) with respect to its row of x, in one backward pass.

    Since rows do not depend on one another, each is repeated as often as the output has numbers, and every copy is
    differentiated for one of them.

    Parameters
    ----------
    f : maps (B, *) to (B, *) row by row: a ``DEQ`` with any gradient rule, whose z* is differentiated, or a function or
        network that holds one. Of the pair that a layer returns, z* is taken. The numbers of several tensors follow one
        another, (B, n). Layers that mix rows, as BatchNorm does in training, give wrong answers here.
    x : (B, *), floating-point.
    rows : further tensors (B, *) that f takes. They are repeated with x.

    Returns
    -------
    (B, *out, *in), where *out is the shape of a row of the output and *in that of a row of x. No graph is kept. An
    equilibrium's is as accurate as its solves are.

    Raises
    ------
    RuntimeError
        Under torch.inference_mode(), which records no Jacobian.

    Notes
    -----
    f sees B · numel(out) rows at once. Torch's own ways need one backward pass for each number of the output
    (torch.autograd.functional.jacobian, which also returns the zeros between different rows) or are refused by the
    layer (torch.func.jacrev, vectorize=True).

    Examples
    --------
    z = A z + x has the Jacobian (I − A)⁻¹.

    >>> import torch
    >>> from nclib import DEQ, Anderson
    >>> from nclib.deq import row_jacobians
    >>> a = torch.tensor([[0.5, 0.25], [0.0, 0.5]], dtype=torch.float64)
    >>> layer = DEQ(lambda z, x: z @ a.T + x, Anderson(tol=1e-9))
    >>> row_jacobians(layer, torch.ones(3, 2, dtype=torch.float64))[0].round(decimals=6).tolist()
    [[2.0, 1.0], [0.0, 2.0]]

    Of a layer with a further tensor in ``args``, here the gain of each row:

    >>> scaled = DEQ(lambda z, x, gain: gain * z + x, Anderson(tol=1e-9))
    >>> gain = torch.tensor([[0.5], [0.75]], dtype=torch.float64)
    >>> row_jacobians(lambda x, gain: scaled(x, args=(gain,)), gain, gain).flatten().round(decimals=6).tolist()
    [2.0, 4.0]
    """

    def value(*given: Tensor) -> Tensor:
        found = f(*given)
        found = found[0] if isinstance(found, tuple) and not isinstance(found[-1], Tensor) else found
        return torch.cat([flat_rows(part) for part in found], 1) if isinstance(found, tuple) else found

    with _recording(), torch.no_grad(), own_weights():
        one = value(*(t[:1].detach() for t in (x, *rows)))
    size = math.prod(one.shape[1:])
    many, *others = (t.detach().repeat_interleave(size, 0) for t in (x, *rows))
    with _recording():
        found = value(many.requires_grad_(), *others)
    which = torch.eye(size, dtype=found.dtype, device=found.device).repeat(len(x), 1).view(found.shape)
    return vjp(found, many, which).view(len(x), *one.shape[1:], *x.shape[1:])


def spectral_radius(
    f: Callable[[Point], Point], z: Point, num_iters: int = 80, generator: torch.Generator | None = None
) -> Tensor:
    """Largest modulus of an eigenvalue of J = ∂f/∂z, for each row.

    Arnoldi's method on Jᵀ, which has the eigenvalues of J, from a random start; the eigenvalues of the small Hessenberg
    matrix are complex where they have to be, so rotations and pairs ±λ cost nothing extra.

    Exact once ``num_iters`` reaches the number of features; with fewer a lower estimate where J is normal, and off to
    either side elsewhere. For 0.9 times an orthogonal matrix, the worst of 64 rows: −4.8 % after 40 products and −1.5 %
    after 80 at 512 features, −5.9 and −2.1 % at 1024, −2.9 % after 80 at 8192; of 8 rows after 120 and 160 at 512 and
    1024: −0.5 and −0.3 %, −1.0 and −0.5 %. Give more where a value just below 1 decides. A defective eigenvalue of
    index k is only found to the k-th root of the rounding error.
    Source: Saad 2011, Numerical Methods for Large Eigenvalue Problems, §6.2.

    Parameters
    ----------
    f : maps (B, *) to (B, *) row by row, or a tuple of such tensors to a tuple of them
    z : (B, *), in float64 for full accuracy; or a tuple of such tensors, which are one state
    num_iters : products with Jᵀ; as many states are kept, in float64
    generator : of the random start; left out, torch's own, whose state changes the last digits

    Returns
    -------
    Tensor
        (B,) float64, in [0, ∞); below 1 the plain iteration contracts near z.

    Raises
    ------
    RuntimeError
        Under torch.inference_mode(), which records no Jacobian.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> weight = torch.diag(torch.tensor([0.9, -0.5, 0.1], dtype=torch.float64))
    >>> radius = nc.spectral_radius(lambda z: z @ weight, torch.zeros(1, 3, dtype=torch.float64))
    >>> round(float(radius[0]), 6)
    0.9
    """
    fz, z = _linearise(f, z, detach=True, num_iters=num_iters)
    batch, size = len(z), math.prod(z.shape[1:])
    num_iters = min(num_iters, size)
    tiny = math.sqrt(torch.finfo(z.dtype).eps)
    v = torch.randn(batch, size, dtype=z.dtype, device=z.device, generator=generator).double()
    basis = v.new_zeros(batch, num_iters + 1, size)
    hessenberg = v.new_zeros(batch, num_iters + 1, num_iters)
    basis[:, 0] = v / v.norm(dim=1, keepdim=True)
    for k in range(num_iters):
        w = flat_rows(vjp(fz, z, basis[:, k].view(z.shape)).detach()).double()
        before = w.norm(dim=1)
        for _ in range(2):  # once is not orthogonal enough
            along = torch.bmm(basis[:, : k + 1], w.unsqueeze(2))
            w = w - torch.bmm(basis[:, : k + 1].mT, along).squeeze(2)
            hessenberg[:, : k + 1, k] += along.squeeze(2)
        norm = w.norm(dim=1)
        norm = torch.where(norm > tiny * before, norm, 0)  # an invariant subspace: its eigenvalues are all there
        hessenberg[:, k + 1, k] = norm
        basis[:, k + 1] = w * torch.where(norm > 0, 1 / norm, 0).unsqueeze(1)
    return torch.linalg.eigvals(hessenberg[:, :-1]).abs().amax(1)


def jacobian_frobenius_sq(
    f: Callable[[Point], Point], z: Point, num_probes: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Unbiased estimate of ‖J‖_F² = E‖Jᵀv‖² for J = ∂f/∂z and random signs v, for each row.

    As a regulariser, give z*.detach() unless the gradient through z* is wanted as well.
    Source: Hutchinson 1990; as a regulariser of equilibria, Bai, Koltun & Kolter 2021, §4.

    Parameters
    ----------
    f : maps (B, *) to (B, *) row by row, or a tuple of such tensors to a tuple of them
    z : (B, *), or a tuple of such tensors, which are one state
    num_probes : independent v, at least 1
    generator : of the v; left out, torch's own

    Returns
    -------
    Tensor
        (B,) ≥ 0, differentiable in z and in what f depends on while torch records gradients; 0 for a constant map.

    Raises
    ------
    RuntimeError
        Under torch.inference_mode(), which records no Jacobian.

    Examples
    --------
    >>> import torch
    >>> import nclib as nc
    >>> found = nc.jacobian_frobenius_sq(lambda z: 0.5 * z, torch.zeros(2, 4))
    >>> found
    tensor([1., 1.])
    """
    recorded = torch.is_grad_enabled()
    fz, z = _linearise(f, z, detach=False, num_probes=num_probes)
    total = z.new_zeros(len(z), dtype=torch.promote_types(z.dtype, torch.float32))
    for _ in range(num_probes):
        signs = torch.randint(0, 2, z.shape, device=z.device, generator=generator)
        w = vjp(fz, z, (2 * signs - 1).to(z.dtype), create_graph=recorded)
        total = total + flat_rows(w).to(total.dtype).square().sum(1)
    return total / num_probes
