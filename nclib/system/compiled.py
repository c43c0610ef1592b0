"""What torch.compile has compiled: nothing before Dynamo is imported, which takes longer than the rest of torch."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch


def eager() -> AbstractContextManager[None]:
    """Compiled code runs eager within. It calls no hooks, or guesses that there are none, and its backward pass cannot
    be repeated."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def forget() -> None:
    """Have Dynamo start again, which gives code up that it has compiled too often."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
