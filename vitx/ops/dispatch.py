"""Softmax attention, dense or along a pattern, by the implementation that suits the call."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.implementation import resolve_implementation, target
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Causal, Full, MaskFunction, Pattern
from vitx.ops.patterns.indices import namespace
from vitx.ops.shapes import Array, Bool, Float


def attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H E"],
  pattern: Pattern | Callable | None = None,
  layout: TokenLayout | None = None,
  *,
  key_mask: Bool[Array, "B M"] | None = None,
  scale: float | None = None,
  causal: bool = False,
  dropout: float = 0.0,
  key: jax.Array | None = None,
  implementation: str = "auto",
  tile: int | None = None,
) -> Float[Array, "B N H E"]:
  """Computes softmax(q kᵀ · scale) v over all pairs of tokens, or over the edges of a pattern.

  The kernelized path has derivatives in reverse mode only (`jax.grad`, not `jax.jvp`).

  Args:
    q: The queries (B, N, H, D).
    k: The keys (B, M, H, D); with a pattern M = N.
    v: The values (B, M, H, E).
    pattern: The edges as a `Pattern`, or as a function `mask_mod(b, h, q_idx, k_idx) -> bool` as in
      FlexAttention. The function is elementwise on index arrays and must not use b. `None` means
      that every query attends every key.
    layout: The arrangement of the N tokens; `None` for a sequence. Only patterns use it.
    key_mask: A boolean array (B, M), True = may be attended; `None` for all keys. A key that may
      not be attended affects no output and no gradient, even if it is NaN or infinite. (Keys that
      only the pattern or `causal` hides must be finite: their weight is 0, and 0 * NaN is NaN.)
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    causal: Whether query i attends only keys 0 ... i, among those that the pattern allows.
    dropout: The rate at which probabilities are dropped if `key` is given. The kernelized path
      cannot drop any.
    key: The random key of the dropout; `None` outside training.
    implementation: The path to take. "masked" keeps the matrix (B, H, N, M) in memory.
      "kernelized" works on tiles, or on the blocks that contain edges. "auto" picks the faster.
    tile: The number of tokens in a block of the kernelized path; `None` for the size that suits the
      pattern. It does not change the output.

  Returns:
    The output (B, N, H, E) in the dtype of `v`. A query without edges has output 0 and no gradient.

  Raises:
    ConfigError: The implementation is unknown, or is "kernelized" with dropout; the pattern does
      not fit the layout, or its function uses b; or arrays, mask and layout do not fit each other.
  """
  out, _ = attention_with_weights(
    q,
    k,
    v,
    pattern,
    layout,
    key_mask=key_mask,
    scale=scale,
    causal=causal,
    dropout=dropout,
    key=key,
    implementation=implementation,
    tile=tile,
  )
  return out


def attention_with_weights(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H E"],
  pattern: Pattern | Callable | None = None,
  layout: TokenLayout | None = None,
  *,
  key_mask: Bool[Array, "B M"] | None = None,
  scale: float | None = None,
  causal: bool = False,
  dropout: float = 0.0,
  key: jax.Array | None = None,
  implementation: str = "auto",
  tile: int | None = None,
) -> tuple[Float[Array, "B N H E"], Float[Array, "B H N M"] | None]:
  """Computes `attention`, and returns the probabilities too if the masked path runs.

  The arguments are those of `attention`.

  Returns:
    The output (B, N, H, E), and the probabilities (B, H, N, M) in float32 before dropout. The
    kernelized path never has all probabilities in memory, and returns `None` for them.
  """
  same = causal or pattern is not None
  k, v = check_and_hide(
    q, k, v, key_mask, layout=None if pattern is None else layout, same_length=same
  )
  if pattern is None or layout is None:
    layout = TokenLayout((q.shape[1],))
  steps, family = None, "dense"
  edges: Pattern = Causal() if causal else Full()
  if pattern is not None:
    edges = pattern if isinstance(pattern, Pattern) else MaskFunction(pattern, q.shape[2])
    edges = edges & Causal() if causal else edges
  if edges in (Full(), Causal()) and target() == "gpu":  # cuDNN's kernel for dense attention
    pattern, causal = None, edges == Causal()
  if pattern is not None:
    # Dense attention needs none of these modules.
    from vitx.ops.sparse.attend import attend
    from vitx.ops.sparse.plan import plan
    from vitx.ops.sparse.triton_attention import find_tiles

    kernel = find_tiles(q, k, v)
    steps = plan(edges, layout, tile, most=kernel.block if kernel else None)
    family = steps.family
  picked = resolve_implementation(implementation, family, q.shape, dropout=dropout)
  if picked == "kernelized":
    out = _splash(q, k, v, edges, layout, key_mask, scale)
    if out is None and steps is not None:
      out, _ = attend(steps, q, k, v, key_mask=key_mask, scale=scale)
    elif out is None:
      out = kernelized_attention(q, k, v, key_mask=key_mask, scale=scale, causal=causal)
    return out, None
  if steps is None:
    mask = jnp.tri(q.shape[1], dtype=bool) if causal else None
  else:
    mask = jnp.asarray(dense_mask(edges, layout, q.shape[2]))[None]
  randomness: dict[str, Any] = {"dropout_rate": dropout, "key": key}
  return masked_attention(q, k, v, mask=mask, key_mask=key_mask, scale=scale, **randomness)


def _splash(q, k, v, pattern: Pattern, layout: TokenLayout, key_mask, scale) -> jax.Array | None:
  """Returns the output of the splash kernel for TPUs, or `None` if it cannot serve this call."""
  if target() != "tpu" or key_mask is not None:
    return None
  from vitx.ops.sparse import splash  # importing it takes a quarter of a second

  if not splash.applies(q, k, v, pattern, layout):
    return None
  return splash.splash_attention(q, k, v, pattern, layout, scale=scale)


def dense_mask(
  pattern: Pattern, layout: TokenLayout, num_heads: int
) -> Bool[np.ndarray | Array, "G N N"]:
  """Returns a pattern's edges as an array, for the masked path, tests and pictures.

  Args:
    pattern: The pattern of one layer.
    layout: The arrangement of the N tokens.
    num_heads: The number of heads H.

  Returns:
    A boolean array (G, N, N), True = the query may attend the key. G is 1 if all heads have equal
    edges, else H. It is a NumPy array, or a JAX array if the pattern was drawn while tracing.
  """
  heads, N = 1 if pattern.head_period == 1 else num_heads, layout.length
  head, q, k = np.ogrid[:heads, :N, :N]
  allowed = pattern.allows(layout, q, k, head)
  return namespace(allowed).broadcast_to(allowed, (heads, N, N))
