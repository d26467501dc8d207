"""The convolution of stems, networks and embeddings."""

import functools

import flax.linen as nn

from vitx.ops.kernels.convolution import convolve

# It has the parameters and results of `nn.Conv`, but its gradients are also fast in a loop.
Conv = functools.partial(nn.Conv, conv_general_dilated=convolve)
