"""`Conv`, the convolution of all networks: Flax's `nn.Conv` with gradients of its own.

These gradients are fast on a CPU in loops too, see `vitx.ops.kernels.convolution`.
"""

import functools

import flax.linen as nn

from vitx.ops.kernels.convolution import convolve

# Its parameters and results are those of `nn.Conv`.
Conv = functools.partial(nn.Conv, conv_general_dilated=convolve)
