"""Checks the arrays given to an op, and replaces the tokens that a mask hides by zeros."""

from typing import Any

import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout


def check_inputs(
  q: Any,
  k: Any,
  v: Any,
  key_mask: Any = None,
  *,
  layout: TokenLayout | None = None,
  same_length: bool = False,
  one_head: bool = False,
) -> None:
  """Checks that queries, keys, values and their mask fit each other.

  Args:
    q: The queries, (B, N, H, D).
    k: The keys, (B, M, H, D).
    v: The values, (B, M, H, E).
    key_mask: A boolean mask (B, M), True = may be attended, or `None`.
    layout: The layout of the N = M tokens; `None` for tokens without a layout.
    same_length: Whether N and M must be equal. With a layout they always must.
    one_head: Whether any of q, k and v may have a single head that all heads share.

  Raises:
    ConfigError: An array does not fit. The message names the argument, its dtype and shape, and
      what it should be.
  """
  for name, x in (("q", q), ("k", k), ("v", v)):
    if not jnp.issubdtype(x.dtype, jnp.floating) or len(x.shape) != 4:
      raise ConfigError(
        f"{name} is {_describe(x)}. It must have a floating dtype and four axes: batch,"
        " tokens, heads and features."
      )
  heads = {x.shape[2] for x in (q, k, v)} - ({1} if one_head else set())
  batches = {x.shape[0] for x in (q, k, v)}
  if len(batches) > 1 or len(heads) > 1 or k.shape[1] != v.shape[1] or q.shape[3] != k.shape[3]:
    raise ConfigError(
      f"q, k and v of shapes {q.shape}, {k.shape} and {v.shape} do not fit each other."
      " They must be (B, N, H, D), (B, M, H, D) and (B, M, H, E)."
    )
  if (same_length or layout is not None) and q.shape[1] != k.shape[1]:
    raise ConfigError(
      f"q has {q.shape[1]} tokens, but k has {k.shape[1]}. This op needs equally many."
    )
  if layout is not None and layout.length != q.shape[1]:
    raise ConfigError(
      f"layout={layout} has {layout.length} tokens, and q has {q.shape[1]}. Give the"
      " layout of the tokens of q."
    )
  if key_mask is not None and (key_mask.dtype != bool or key_mask.shape != k.shape[:2]):
    raise ConfigError(
      f"key_mask is {_describe(key_mask)}. It must be boolean of shape {k.shape[:2]}, where True"
      " means that a key may be attended. If your mask is additive, with 0 for keys that may be"
      " attended, give mask == 0."
    )


def hide_tokens(x: jax.Array, key_mask: jax.Array | None) -> jax.Array:
  """Returns an array (B, N, ...) in which the tokens that a mask hides are zeros.

  Hidden tokens then affect no output and no gradient on any path. An attention weight of zero would
  not suffice, because 0 * NaN and 0 * inf are NaN.

  Args:
    x: The tokens, keys or values, (B, N, ...).
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
  """
  if key_mask is None:
    return x
  return jnp.where(jnp.expand_dims(key_mask, tuple(range(2, x.ndim))), x, 0)


def _describe(x: Any) -> str:
  return f"{x.dtype} of shape {x.shape}"
