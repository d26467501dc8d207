"""Arithmetic of efficient attention on arrays, without Flax and without parameters.

    from vitx import ops

    out = ops.attention(q, k, v)  # q, k, v: (B, N, H, D)
    out, matrix = ops.attention_with_weights(q, k, v, pattern, layout, implementation="masked")

Every op takes `implementation`: "masked" keeps the attention matrix in memory, "kernelized" never
does, and "auto" picks the faster of the two. `attention` returns its output; every other op returns
its output and the matrix, or `None` for "kernelized". Patterns, and the functions that combine
them, are in `ops.patterns`.
"""

from typing import TYPE_CHECKING

from vitx.config.registry import Table
from vitx.ops import patterns
from vitx.ops.dispatch import attention, attention_with_weights, dense_mask
from vitx.ops.implementation import recording_implementations
from vitx.ops.layout import TokenLayout

if TYPE_CHECKING:
  from vitx.ops.kernels.fourier import fourier_mixing as fourier_mixing
  from vitx.ops.kernels.linear import linear_attention as linear_attention
  from vitx.ops.kernels.linformer import linformer_attention as linformer_attention
  from vitx.ops.kernels.local_window import local_attention as local_attention
  from vitx.ops.kernels.nystrom import nystrom_attention as nystrom_attention
  from vitx.ops.kernels.predicted import predicted_attention as predicted_attention
  from vitx.ops.kernels.shaped import shaped_attention as shaped_attention
  from vitx.ops.sparse.bilevel import bilevel_attention as bilevel_attention
  from vitx.ops.sparse.plan import plan as plan
  from vitx.ops.sparse.predicted_blocks import (
    predicted_block_attention as predicted_block_attention,
  )

# These are imported at their first use.
_LATER = Table(
  "vitx.ops",
  bilevel_attention="sparse.bilevel:bilevel_attention",
  fourier_mixing="kernels.fourier:fourier_mixing",
  linear_attention="kernels.linear:linear_attention",
  linformer_attention="kernels.linformer:linformer_attention",
  local_attention="kernels.local_window:local_attention",
  nystrom_attention="kernels.nystrom:nystrom_attention",
  plan="sparse.plan:plan",
  predicted_attention="kernels.predicted:predicted_attention",
  predicted_block_attention="sparse.predicted_blocks:predicted_block_attention",
  shaped_attention="kernels.shaped:shaped_attention",
)
if not TYPE_CHECKING:
  __getattr__ = _LATER.attribute

__all__ = ["TokenLayout", "attention", "attention_with_weights", "dense_mask", "patterns"]
__all__ += ["recording_implementations", *_LATER.data]


def __dir__() -> list[str]:
  return sorted(__all__)
