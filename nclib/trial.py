"""The trial of a user's cell or network: what a run could not keep is refused before anything is trained.

A run keeps its configuration, its seed and its state_dicts. Code of the user's own may keep more: an attribute, a
global, a name that a function closes over. So two networks are built from one seed, moved, called, put back and called
again, and whatever differs is named.
"""

import inspect
import io
import pickle
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nclib.config import ConfigError, ModelConfig
from nclib.data import Batches, Split
from nclib.models import Classifier, OwnNetwork, build_model, cast, forked, own_module, put_back, seed_all, state_of
from nclib.system import own_code
from nclib.system.files import sha256

TRIAL = 271_828  # a seed that nobody sets


def try_own_code(cfg: ModelConfig, split: Split) -> None:
    """Build a network with a user's cell, or a user's network, and put images through it, two at a time, so that what
    does not fit is refused before anything is trained. Nothing happens where all code is ours.

    Parameters
    ----------
    cfg : the model
    split : what it is to be trained on, of which six images are taken

    Raises
    ------
    ConfigError
        When what it returns has the wrong shape or type, or is what it returned before; when its weights do not follow
        from the seed; when it has state that its state_dict does not have; or when it raises an error.
    OwnCodeError
        When it cannot be imported.
    """
    if (name := cfg.own_code) is None:
        return
    num_classes, rows = len(split.counts), torch.arange(6) % len(split.train_images)
    chosen = Batches(split.train_images[rows], rows, batch_size=2, mean=split.mean, std=split.std)
    pairs = [images for images, _ in chosen.in_order()]
    images, channels = pairs[0], pairs[0].shape[1]
    quiet = warnings.catch_warnings(action="ignore")  # of solves at moved parameters
    with quiet, forked(), torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        model, again = (cast(build_model(cfg, num_classes, channels, TRIAL), torch.float32) for _ in range(2))
        whole = cfg.kind == "network"
        tensors = ((*m.parameters(), *m.buffers()) for m in (model, again))
        one, two = ({t.untyped_storage().data_ptr() for t in own if t.layout == torch.strided} for own in tensors)
        if one & two - {0}:  # a run would begin where another has ended
            raise ConfigError(f"{name} returns what it has returned before: make it anew, or copy.deepcopy it")
        if odd := _differ(_tensors(model), _tensors(again)):
            raise ConfigError(f"{name}: {odd} does not follow from the seed: {_DRAW}")
        if odd := [each for each, value in model.named_parameters() if not value.isfinite().all()]:
            raise ConfigError(f"{name}: {odd[0]} has NaN or infinite values from the start")
        x = images if whole else model.eval().encoder(images)
        try:
            if whole:
                model.eval()(x.flip(0))  # a network may leave the rows of one order in theirs
                value = model(x).features
            else:
                cell = model.eval().block.cell
                value = _seeded(cell, x, x)
            shape = (2, model.classifier.in_features) if whole else tuple(x.shape)
            if not isinstance(value, Tensor) or value.shape != shape or value.dtype != images.dtype:
                found = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
                what = f"{name} {'before its last Linear' if whole else 'at a state'}"
                raise ConfigError(f"{what} returns {found}; it must return a tensor of shape {shape}, {images.dtype}")
            if whole:
                third = cast(own_module(cfg, 3 * TRIAL, num_classes, channels, width=cfg.width), torch.float32)
                if not _is_whole(model, third, x):
                    raise ConfigError(model.refusal)
            _check_state(model, again, name, pairs)
            if not whole and (odd := _is_no_map(cell, x, cfg.kind == "deq")):
                raise ConfigError(f"{name} {odd}")
        except ConfigError:
            raise
        except Exception as bug:  # whatever the user's code raises
            raise ConfigError(f"{name} cannot be called with {tuple(x.shape)}: {type(bug).__name__}: {bug}") from bug


_DRAW = "take random numbers from PyTorch's own random state, and register_buffer in the constructor what calls keep"


def _seeded(part: nn.Module, *inputs: Tensor) -> Any:
    """What a part returns, which may draw in evaluation too."""
    seed_all(0)
    return part(*inputs)


def _is_no_map(cell: nn.Module, x: Tensor, solved: bool) -> str:
    """Why a cell is no map of single rows, "" where it is; one that is ``solved`` is called twice, in both modes."""
    near = {"atol": 1e-4, "equal_nan": True}
    for on in (False, True)[: 1 + solved]:
        cell.train(on)
        value, one, two = (_seeded(cell, h, h) for h in (x, *(x * torch.eye(2).view(2, 2, 1, 1, 1))))
        if not torch.allclose(torch.stack([one[0], two[1]]), value, **near):
            return "mixes rows: where others change, a row gets another value"
        if solved and not torch.allclose(cell(x, x), value, **near):
            return "is another map at each call, as with noise or dropout, and has no equilibrium"
    return ""


def _is_whole(model: OwnNetwork, network: nn.Module, x: Tensor) -> bool:
    """Whether a network gives in both modes what its last Linear gives, also once its parameters have moved: what
    follows the last Linear may do nothing at first."""
    given = []  # compiled code has the hooks that there were at its first call
    network.get_submodule(model.last).register_forward_hook(lambda *call: given.append(call[-1].clone()))
    network.train(False)
    same = torch.allclose(_seeded(network, x), given[-1], atol=1e-4, equal_nan=True)
    _move(network)
    network.get_submodule(model.last).weight *= 1e4  # a bound may lie far above the first logits
    for on in (False, True):
        network.train(on)  # which need not return the network
        same &= torch.allclose(network(x), given[-1], atol=1e-4, equal_nan=True)
    return same


def _move(network: nn.Module) -> None:
    for learnt in (parameter for parameter in network.parameters() if parameter.requires_grad):
        learnt += 0.1 * torch.randn_like(learnt) * (learnt.abs() + 0.1)


@own_code.no_imports()
def _check_state(model: Classifier, again: Classifier, name: str, pairs: Sequence[Tensor]) -> None:
    """Refuse what a checkpoint would lose. From the same state_dict and random state a network must give the same, and
    keep the same, after a call with other images as after one with these; one built anew must give that, and so must
    one that was never saved. The parameters are moved, as a head may be zero at first."""

    def called(one: Classifier, pair: int, on: bool, state: Any = None) -> dict[str, str]:
        if state:
            put_back(one.train(), state)  # as runs do: a network may merge weights for its evaluation
        seed_all(pair)
        with torch.set_grad_enabled(on):
            logits = one.train(on)(pairs[pair].clone()).logits
            one.zero_grad()  # here, as runs do: before the call there are the gradients of the last one
            if on:
                logits.sum().backward()
        given = [logits.detach(), *(learnt.grad for learnt in one.parameters() if learnt.grad is not None)]
        kept = _tensors(one) | _kept(one) if one is model and pair else {}
        return {"its output": _written(torch.cat([tensor.to_dense().flatten() for tensor in given]))} | kept

    _move(model.train())
    learnt = [*model.parameters()]
    called(model, 2, True)  # a first step, of which only the state is left
    before = [(tensor, tensor.clone()) for tensor in (*model.parameters(), *model.buffers())]
    unsaved = called(model, 1, False)
    model.train()
    for tensor, value in before:
        tensor.copy_(value)
    state = deepcopy(state_of(model))
    if odd := [key for key, value in state["model"].items() if type(value) is not Tensor]:
        raise ConfigError(f"{name} has a state that is no plain tensor, {odd[0]}: use register_buffer with one")
    for on in (True, False):
        _, two, same, anew = (called(*call, on, state) for call in ((model, 0), (model, 1), (model, 1), (again, 1)))
        if any(one is not two for one, two in zip(learnt, model.parameters(), strict=True)):
            said = "a parameter anew when it is called or loaded, which no optimiser sees: fill it in place"
            raise ConfigError(f"{name} makes {said}")
        if odd := _differ(two, same):
            raise ConfigError(f"{name}: {odd} follows from what a restart would lose: {_DRAW}")
        if _differ(same, anew):
            raise ConfigError(f"{name} is another with the same seed and weights: {_DRAW}")
    if unsaved["its output"] != same["its output"]:
        raise ConfigError(f"{name} computes with other numbers than its state_dict has")


def _tensors(model: Classifier) -> dict[str, str]:
    """Digests of the parameters and buffers."""
    return {name: _written(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _kept(model: Classifier) -> dict[str, str]:
    """Digests of what else its modules keep, however deep, and of what their code does."""
    known = {*map(id, (*model.modules(), *model.parameters(), *model.buffers()))}
    kept = {"something in its code": [*dict.fromkeys(map(type, model.modules()))]}
    for name, module in model.named_modules():
        kept |= {f"{name}.{key}": value for key, value in vars(module).items()}
    return {name: _written(value, known) for name, value in kept.items()}


def _written(value: Any, known: Iterable[int] = ()) -> str:
    writer = _Writer(file := io.BytesIO(), 5)
    writer.known = set(known)
    with suppress(Exception):  # of what is nested too deep
        writer.dump(value)
    return sha256(file.getvalue())


class _Writer(pickle.Pickler):
    """Writes what an object keeps, but for what is known; of the user's classes and modules what is in them, and of the
    user's functions what they close over, name of their module and have; of what cannot be written its type."""

    def persistent_id(self, part: Any) -> Any:
        new = id(part) not in self.known
        if new and not isinstance(part, FunctionType | type | ModuleType):
            return None  # written as it is
        self.known.add(id(part))
        own = [each for each in getattr(part, "__mro__", [part]) if new and own_code.is_made_by_user(each)]
        return getattr(part, "__qualname__", type(part).__qualname__), [*map(_held, own)]

    def reducer_override(self, part: Any) -> Any:
        try:
            if isinstance(part, Tensor):
                return bytes, (part.detach().to_dense().resolve_conj().flatten().view(torch.uint8).numpy().tobytes(),)
            found = part.__reduce_ex__(5)
        except Exception:  # whatever objects raise that cannot be written
            found = type(part).__qualname__
        return (str, (found,)) if isinstance(found, str) else found


def _held(code: FunctionType | type | ModuleType) -> Any:
    if isinstance(code, FunctionType):
        return *inspect.getclosurevars(code)[:2], code.__defaults__, code.__kwdefaults__, vars(code)
    kept = {name: each for name, each in vars(code).items() if name not in ("__slotnames__", "__builtins__")}
    return [(name, getattr(each, "__func__", getattr(each, "fget", each))) for name, each in kept.items()]


def _differ(one: dict[str, str], two: dict[str, str]) -> str | None:
    """The first name under which both have something else."""
    return next((name for name in two if one.get(name, two[name]) != two[name]), None)
