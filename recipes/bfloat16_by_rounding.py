"""Train E1 in bfloat16 on a processor where torch's own convolutions in it are slow.

Without AVX-512 torch convolves bfloat16 numbers with a loop that takes ten times as long as float32.
Here the inputs of a convolution are rounded to bfloat16, multiplied and summed in float32, and the
sum is rounded to bfloat16. A bfloat16 unit does the same; only the order of the sums differs.
Gradients are rounded in the same places, since autograd casts them back through the same casts.

    python recipes/bfloat16_by_rounding.py EXPERIMENT IMAGES RATE

takes the arguments of the frozen clone's companion.neural_collapse.protocol3, in whose environment
recipes/protocol-3.sh starts it. Where torch has fast bfloat16 convolutions it changes nothing.
"""

import runpy
from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode

UNIT = "none, rounded products in float32"
"""What the record of a run names as its bfloat16 unit."""


class RoundedConvolutions(TorchFunctionMode):
    """Within this context, convolutions under CPU autocast to bfloat16 are computed by rounding."""

    sums = torch.float32

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not torch.conv2d or not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        images, weight, *others = args
        rounded = [images.bfloat16().to(self.sums), weight.bfloat16().to(self.sums)]
        with torch.autocast("cpu", enabled=False):
            return function(*rounded, *others, **kwargs).bfloat16()


def main() -> None:
    context = nullcontext()
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        from nclib.system import provenance  # of the frozen clone

        provenance.bfloat16_unit = lambda: UNIT
        context = RoundedConvolutions()
    with context:
        runpy.run_module("companion.neural_collapse.protocol3", run_name="__main__")


if __name__ == "__main__":
    main()
