"""Softmax attention, dense or along a pattern: the op decides which implementation runs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.implementation import resolve_implementation, target
from vitx.ops.inputs import check_inputs
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Causal, Full, MaskFunction, Pattern
from vitx.ops.patterns.indices import namespace
from vitx.ops.sparse.attend import attend
from vitx.ops.sparse.plan import plan


def attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  pattern: Pattern | Callable | None = None,
  layout: TokenLayout | None = None,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
  causal: bool = False,
  dropout: float = 0.0,
  key: jax.Array | None = None,
  implementation: str = "auto",
  tile: int | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Computes softmax(q kᵀ · scale) v over all pairs of tokens, or over the edges of a pattern.

  Args:
    q: (B, N, H, D).
    k: (B, M, H, D); with a pattern M = N.
    v: (B, M, H, E).
    pattern: the edges; or a function `mask_mod(b, h, q_idx, k_idx) -> bool` as FlexAttention has
      it, elementwise on index arrays and with b = 0; or None, which attends all.
    layout: how the N tokens lie; None for a sequence. Only a pattern needs it.
    key_mask: boolean (B, M), True = may be attended.
    scale: of the logits; None for 1 / sqrt(D).
    causal: query i sees keys 0 ... i only, of those that the pattern allows.
    dropout: rate at which probabilities are dropped, where there is a `key`; only the masked path
      can.
    key: for the dropout; None outside training.
    implementation: "masked" holds the matrix; "kernelized" never does: it works on tiles, or on the
      blocks that hold edges; "auto" is the faster.
    tile: tokens in a block of the kernelized path, no part of the result; None for what suits the
      pattern.

  The kernelized path has derivatives in reverse mode only (`jax.grad`, not `jax.jvp`).

  Returns:
    The output (B, N, H, E) in the dtype of `v`; and on the masked path the probabilities
    (B, H, N, M) in float32, as they were before dropout, else None. A query without edges has
    output 0 and no gradient.

  Raises:
    ConfigError: unknown implementation, "kernelized" with dropout, a pattern that does not fit the
      layout, or arrays, a mask or a layout that do not fit each other.
  """
  laid_out = pattern is not None
  check_inputs(
    q, k, v, key_mask, layout=layout if laid_out else None, same_length=causal or laid_out
  )
  if tile is not None and tile < 1:
    raise ConfigError(f"tile={tile} must be at least 1")
  if pattern is None:
    picked = resolve_implementation("attention", implementation, "dense", q.shape, dropout=dropout)
    if picked == "kernelized":
      every, line = Causal() if causal else Full(), TokenLayout((q.shape[1],))
      out = _splash(q, k, v, every, line, key_mask, scale)
      if out is None:
        out = kernelized_attention(q, k, v, key_mask=key_mask, scale=scale, causal=causal)
      return out, None
    mask = jnp.tri(q.shape[1], dtype=bool) if causal else None
    return _masked(q, k, v, mask, key_mask, scale, dropout, key)
  if not isinstance(pattern, Pattern):
    pattern = MaskFunction(pattern, q.shape[2])
  pattern = pattern & Causal() if causal else pattern
  layout = TokenLayout((q.shape[1],)) if layout is None else layout
  steps = plan(pattern, layout, tile)
  picked = resolve_implementation(
    "attention", implementation, steps.family, q.shape, dropout=dropout
  )
  if picked == "kernelized":
    out = _splash(q, k, v, pattern, layout, key_mask, scale)
    if out is None:
      out, _ = attend(steps, q, k, v, key_mask=key_mask, scale=scale)
    return out, None
  mask = jnp.asarray(dense_mask(pattern, layout, q.shape[2]))[None]
  return _masked(q, k, v, mask, key_mask, scale, dropout, key)


def _splash(q, k, v, pattern: Pattern, layout: TokenLayout, key_mask, scale) -> jax.Array | None:
  """Returns the output of a TPU's own kernel, None where it is not for this call."""
  if target() != "tpu" or key_mask is not None:
    return None
  from vitx.ops.sparse import splash  # a quarter of a second that others need not wait

  if not splash.applies(q, k, v, pattern, layout):
    return None
  return splash.splash_attention(q, k, v, pattern, layout, scale=scale)


def dense_mask(pattern: Pattern, layout: TokenLayout, num_heads: int):
  """Returns the edges as an array, for the masked path, tests and pictures.

  Args:
    pattern: of one layer.
    layout: of the N tokens.
    num_heads: H.

  Returns:
    bool (G, N, N), True = query may attend key; G is 1 if the heads do not differ, else H. NumPy,
    or JAX for a pattern that was drawn while tracing.
  """
  heads, N = 1 if pattern.head_period == 1 else num_heads, layout.length
  head, q, k = np.ogrid[:heads, :N, :N]
  allowed = pattern.allows(layout, q, k, head)
  return namespace(allowed).broadcast_to(allowed, (heads, N, N))


def _masked(q, k, v, mask, key_mask, scale, dropout, key):
  """Attends under a mask broadcastable to (B, H, N, M), or None, and a mask of keys, or None."""
  if key_mask is not None:
    keys = key_mask[:, None, None, :]
    mask = keys if mask is None else mask & keys
  return masked_attention(q, k, v, mask=mask, scale=scale, dropout_rate=dropout, key=key)
