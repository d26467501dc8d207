"""Checks the arrays given to an op, and replaces the tokens that a mask hides by zeros."""

from typing import Any

import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout


def check_and_hide(
  q: Any,
  k: Any,
  v: Any,
  key_mask: Any = None,
  *,
  layout: TokenLayout | None = None,
  same_length: bool = False,
  one_head: bool = False,
) -> tuple[Any, Any]:
  """Checks that queries, keys, values and their mask fit each other.

  Args:
    q: The queries, (B, N, H, D).
    k: The keys, (B, M, H, D).
    v: The values, (B, M, H, E).
    key_mask: A boolean mask (B, M), True = may be attended, or `None`.
    layout: The layout of the N = M tokens; `None` for tokens without a layout.
    same_length: Whether N and M must be equal. With a layout they always must.
    one_head: Whether any of q, k and v may have a single head that all heads share.

  Returns:
    The keys and the values, in which the tokens that the mask hides are zeros.
  """
  arrays = (q, k, v)
  fit = all(jnp.issubdtype(x.dtype, jnp.floating) and len(x.shape) == 4 for x in arrays)
  if fit:
    batches, _, heads, _ = map(set, zip(*(x.shape for x in arrays), strict=True))
    fit = len(batches) == 1 and len(heads - {1} if one_head else heads) < 2
    fit = fit and q.shape[3] == k.shape[3] and k.shape[1] == v.shape[1]
  if not fit:
    raise ConfigError(
      f"q, k and v are {', '.join(map(_describe, arrays))}. They must be floats (B, N, H, D),"
      " (B, M, H, D) and (B, M, H, E)."
    )
  length = q.shape[1] if layout is None else layout.length
  if (same_length or layout is not None) and not q.shape[1] == k.shape[1] == length:
    raise ConfigError(
      f"q has {q.shape[1]} tokens and k has {k.shape[1]}; both need {length} (layout={layout})."
    )
  if key_mask is not None and (key_mask.dtype != bool or key_mask.shape != k.shape[:2]):
    raise ConfigError(
      f"key_mask is {_describe(key_mask)}. It must be boolean of shape {k.shape[:2]}, where True"
      " means that a key may be attended. If your mask is additive, with 0 for keys that may be"
      " attended, give mask == 0."
    )
  return hide_tokens(k, key_mask), hide_tokens(v, key_mask)


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
