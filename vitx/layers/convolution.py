"""The convolution of stems, bodies and embeddings."""

import functools

import flax.linen as nn

from vitx.ops.kernels.convolution import convolve

# Parameters and results are those of `nn.Conv`; gradients are as quick inside a loop as outside.
Conv = functools.partial(nn.Conv, conv_general_dilated=convolve)
