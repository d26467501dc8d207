"""Arithmetic of efficient attention on arrays, without Flax and without parameters.

    from vitx import ops

    out = ops.attention(q, k, v)  # q, k, v: (B, N, H, D)
    out, matrix = ops.attention_with_weights(q, k, v, pattern, layout, implementation="masked")

Every op takes `implementation`: "masked" keeps the attention matrix in memory, "kernelized" never
does, and "auto" picks the faster of the two. `attention` returns its output; every other op returns
its output and the matrix, or `None` for "kernelized". Patterns, and the functions that combine
them, are in `ops.patterns`.
"""

from vitx.ops import patterns
from vitx.ops.dispatch import attention, attention_with_weights, dense_mask
from vitx.ops.implementation import recording_implementations
from vitx.ops.kernels.fourier import fourier_mixing
from vitx.ops.kernels.linear import linear_attention
from vitx.ops.kernels.linformer import linformer_attention
from vitx.ops.kernels.local_window import local_attention
from vitx.ops.kernels.nystrom import nystrom_attention
from vitx.ops.kernels.predicted import predicted_attention
from vitx.ops.kernels.shaped import shaped_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.sparse.bilevel import bilevel_attention
from vitx.ops.sparse.plan import plan
from vitx.ops.sparse.predicted_blocks import predicted_block_attention

__all__ = [
  "TokenLayout",
  "attention",
  "attention_with_weights",
  "bilevel_attention",
  "dense_mask",
  "fourier_mixing",
  "linear_attention",
  "linformer_attention",
  "local_attention",
  "nystrom_attention",
  "patterns",
  "plan",
  "predicted_attention",
  "predicted_block_attention",
  "recording_implementations",
  "shaped_attention",
]
