"""Helpers of the kernels that compute attention tile by tile, and the softmax of one tile.

A tile is some rows of the attention matrix that one step of a loop computes. Tiles are float32 for
inputs of every dtype: a half-precision product would round logits before the softmax, and the CPU's
compiler has no float16 product that accumulates in float32.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vitx.ops.implementation import target
from vitx.ops.shapes import Array, Float, Shaped

# Bytes of logits in one step: they fit the caches of a few CPU cores, and keep accelerators busy.
CPU_STEP_BYTES = 1 << 20
ACCELERATOR_STEP_BYTES = 1 << 28
MOST_ROWS = 512  # the most rows of a tile that has more columns than this


def step_elements() -> int:
  """Returns the number of logits that a step of a loop may compute.

  It depends on the platform for which code is traced (see `target`).
  """
  return (CPU_STEP_BYTES if target() == "cpu" else ACCELERATOR_STEP_BYTES) // 4


def tile_rows(elements: float, columns: int, least: int = 1) -> int:
  """Returns the number of rows of a matrix that a tile may have.

  Args:
    elements: The number of elements that a step may have.
    columns: The number of columns of the matrix.
    least: The least number of rows, even if their elements are more than a step may have.
  """
  most = max(least, int(elements // columns))
  return min(most, MOST_ROWS) if columns > MOST_ROWS else most


def largest_divisor(n: int, at_most: float) -> int:
  """Returns the largest divisor of `n` that is at most `at_most`; 1 if `at_most` is less than 1."""
  return next(d for d in range(max(1, min(n, int(at_most))), 0, -1) if n % d == 0)


def map_groups(function: Callable, arrays: Any, group: int) -> Any:
  """Applies `function` over the leading axis, `group` entries at a time.

  Args:
    function: A function that takes and returns trees of arrays with a leading axis of `group`.
    arrays: A tree of arrays (Z, ...).
    group: The number of entries at a time, a divisor of Z.

  Returns:
    The results with a leading axis of Z.
  """
  total = jax.tree.leaves(arrays)[0].shape[0]
  if total == group:
    return function(arrays)
  if group == 1:  # an axis of length one would make the compiler copy the loop's inputs

    def one(entry: Any) -> Any:
      results = function(jax.tree.map(lambda x: x[None], entry))
      return jax.tree.map(lambda x: x[0], results)

    return jax.lax.map(one, arrays)
  grouped = jax.tree.map(lambda x: x.reshape(total // group, group, *x.shape[1:]), arrays)
  out = jax.lax.map(function, grouped)
  return jax.tree.map(lambda x: x.reshape(total, *x.shape[2:]), out)


def split_rows(
  x: Shaped[Array, "Z N ..."], count: int, size: int
) -> Shaped[Array, "Z count size ..."]:
  """Cuts (Z, N, ...) into (Z, count, size, ...), with zeros after row N; `count * size` >= N."""
  padding = [(0, 0), (0, count * size - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, padding).reshape(x.shape[0], count, size, *x.shape[2:])


def join_rows(x: Shaped[Array, "Z count size ..."], n: int) -> Shaped[Array, "Z N ..."]:
  """Undoes `split_rows`: (Z, count, size, ...) -> (Z, N, ...)."""
  return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])[:, :n]


def heads_first(x: Shaped[Array, "B N H D"]) -> Shaped[Array, "Z N D"]:
  """Moves heads into the batch: (B, N, H, D) -> (B·H, N, D)."""
  batch, n, heads, dim = x.shape
  return jnp.swapaxes(x, 1, 2).reshape(batch * heads, n, dim)


def heads_last(x: Shaped[Array, "Z N D"], heads: int) -> Shaped[Array, "B N H D"]:
  """Moves heads out of the batch: (B·H, N, D) -> (B, N, H, D)."""
  return jnp.swapaxes(x.reshape(-1, heads, *x.shape[1:]), 1, 2)


def fold_heads(tree: Any, heads: int) -> Any:
  """Moves heads into the batch in a tree of arrays: (B, H or 1, N, ...) -> (B·H, N, ...).

  A single head is repeated for all heads.
  """
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x, (x.shape[0], heads, *x.shape[2:])).reshape(-1, *x.shape[2:]), tree
  )


def product(x: Float[Array, "... n d"], y: Float[Array, "... d m"]) -> Float[Array, "... n m"]:
  """Returns x y over leading batch axes in float32: (..., n, d), (..., d, m) -> (..., n, m)."""
  return jnp.matmul(x.astype(jnp.float32), y.astype(jnp.float32))


def product_transposed(
  x: Float[Array, "... n d"], y: Float[Array, "... m d"]
) -> Float[Array, "... n m"]:
  """Returns x yᵀ over leading batch axes in float32: (..., n, d), (..., m, d) -> (..., n, m)."""
  return product(x, jnp.swapaxes(y, -1, -2))


def softmax_tile(
  logits: jax.Array, v: jax.Array, weigh: Callable = product
) -> tuple[jax.Array, jax.Array]:
  """Computes attention of some queries over all the keys they may see.

  Args:
    logits: The logits, (..., n, m) float32, -inf where a query may not attend.
    v: The values, (..., m, D), or other data from which `weigh` gets the values.
    weigh: A function that takes weights (..., n, m) and `v`, and returns the weighted sums of the
      values, (..., n, D).

  Returns:
    The output (..., n, D) float32 and lse (..., n), the logarithm of a row's sum of exponentials. A
    row whose logits are all -inf has output zero and lse -inf.
  """
  top = jnp.max(logits, axis=-1, keepdims=True)
  top = jnp.where(top == -jnp.inf, 0.0, top)
  weights = jnp.exp(logits - top)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  out = weigh(weights, v) / jnp.where(total == 0, 1.0, total)
  return out, (top + jnp.log(total))[..., 0]


def backward_statistics(
  out: Float[Array, "... n D"],
  lse: Float[Array, "... n"],
  d_out: Float[Array, "... n D"],
  d_lse: jax.Array | float,
) -> tuple[Float[Array, "... n"], Float[Array, "... n"]]:
  """Returns the numbers lse and delta of each query, from which `logit_gradient` gets gradients.

  The gradient of a logit is p · (dp − delta), where p = exp(logit − lse) is its probability and dp
  the cotangent of p.

  Args:
    out, d_out: The output and its cotangent, (..., n, D).
    lse, d_lse: The logarithm of the sum of exponentials and its cotangent, (..., n); `d_lse` is 0.0
      if no result depends on `lse`.

  Returns:
    lse (..., n) and delta (..., n). A query that sees no key has lse +inf, so that its
    probabilities are exactly zero.
  """
  delta = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1) - d_lse
  empty = lse == -jnp.inf
  return jnp.where(empty, jnp.inf, lse), jnp.where(empty, 0.0, delta)


def logit_gradient(
  logits: Float[Array, "... n m"],
  products: Float[Array, "... n m"],
  lse: jax.Array,
  delta: jax.Array,
) -> tuple[Float[Array, "... n m"], Float[Array, "... n m"]]:
  """Returns the probabilities of one tile and the gradient of its logits, (..., n, m) each.

  Args:
    logits: The logits, (..., n, m), -inf where a query may not attend.
    products: The products of the output's cotangent with the values, (..., n, m).
    lse, delta: The results of `backward_statistics`, broadcastable to (..., n, m).
  """
  weights = jnp.exp(logits - lse)
  return weights, weights * (products - delta)
