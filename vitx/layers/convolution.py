"""The convolution of stems, networks and embeddings."""

import functools

import flax.linen as nn

from vitx.ops.kernels.convolution import convolve

# Parameters and results are those of `nn.Conv`, but gradients in a loop are as fast as outside it.
Conv = functools.partial(nn.Conv, conv_general_dilated=convolve)
