"""Linear attention: φ(q) φ(k)ᵀ v, where each row of φ(q) φ(k)ᵀ is divided by its sum.

The masked path computes the matrix φ(q) φ(k)ᵀ. The kernelized path does without this matrix.
"""

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.shapes import Array, Bool, Float

# The number of tokens in a chunk, whose causal matrix is formed; earlier chunks enter as prefix
# sums of φ(k)ᵀ v.
CHUNK = 128


def linear_attention(
  q: Float[Array, "B N H F"],
  k: Float[Array, "B M H F"],
  v: Float[Array, "B M H D"],
  *,
  key_mask: Bool[Array, "B M"] | None = None,
  causal: bool = False,
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N M"] | None]:
  """Computes linear attention: φ(q) φ(k)ᵀ v, where each row of φ(q) φ(k)ᵀ is divided by its sum.

  (Katharopoulos et al. 2020, equation 5.)

  Args:
    q: The query features φ(q), float32 (B, N, H, F), never negative.
    k: The key features φ(k), float32 (B, M, H, F).
    v: The values, (B, M, H, D).
    key_mask: A boolean mask (B, M), True = may be attended, or `None`.
    causal: Whether a query attends only tokens up to its own position.
    implementation: The path to take: "masked", "kernelized" (linear in N) or "auto".

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the matrix (B, H, N, M) in
    float32, else `None`. If all weights of a query are zero, its output and its row are zero.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=causal)
  picked = resolve_implementation(implementation, "linear", q.shape)
  if picked == "masked":
    return _multiply_matrix(q, k, v, causal)
  return _multiply_sums(q, k, v, causal), None


def _multiply_matrix(q, k, v, causal: bool) -> tuple[jax.Array, jax.Array]:
  """Computes linear attention with the N x M matrix in memory, whose rows sum to one or zero."""
  weights = jnp.einsum("bnhf,bmhf->bhnm", q, k)
  if causal:
    weights = jnp.where(jnp.tri(q.shape[1], k.shape[1], dtype=bool), weights, 0.0)
  matrix = weights / _nonzero(jnp.sum(weights, axis=-1, keepdims=True))
  out = jnp.einsum("bhnm,bmhd->bnhd", matrix, v.astype(jnp.float32))
  return out.astype(v.dtype), matrix


def _multiply_sums(q, k, v, causal: bool) -> jax.Array:
  """Computes linear attention as φ(q) (φ(k)ᵀ v), in time and memory linear in N."""
  # Heads first: the compiler then moves neither features nor sums in memory.
  q, k, v32 = (jnp.swapaxes(x, 1, 2) for x in (q, k, v.astype(jnp.float32)))
  # With a column of ones after the values, the products also compute the normalizer.
  extended = jnp.concatenate([v32, jnp.ones((*v32.shape[:-1], 1))], axis=-1)  # (B, H, M, D + 1)
  if causal:
    out = _causal(q, k, extended, min(CHUNK, q.shape[2]))
  else:
    out = jnp.einsum("bhnf,bhfd->bhnd", q, jnp.einsum("bhmf,bhmd->bhfd", k, extended))
  return jnp.swapaxes(out[..., :-1] / _nonzero(out[..., -1:]), 1, 2).astype(v.dtype)


def _causal(q: jax.Array, k: jax.Array, v: jax.Array, chunk: int) -> jax.Array:
  length = q.shape[2]
  groups = -(-length // chunk)

  def chunks(x: jax.Array) -> jax.Array:  # (B, H, N, F) -> (B, H, G, c, F)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, groups * chunk - length), (0, 0)))
    return x.reshape(*x.shape[:2], groups, chunk, x.shape[-1])

  q, k, v = chunks(q), chunks(k), chunks(v)
  sums = jnp.einsum("bhgmf,bhgmd->bhgfd", k, v)
  # This sums only earlier chunks: subtracting a chunk's own sum would lose digits.
  before = jnp.pad(sums[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))
  weights = jnp.einsum("bhgnf,bhgmf->bhgnm", q, k)
  weights = jnp.where(jnp.tri(chunk, dtype=bool), weights, 0.0)
  out = jnp.einsum("bhgnf,bhgfd->bhgnd", q, jnp.cumsum(before, axis=2))
  out = out + jnp.einsum("bhgnm,bhgmd->bhgnd", weights, v)
  return out.reshape(*out.shape[:2], groups * chunk, out.shape[-1])[:, :, :length]


def _nonzero(total: jax.Array) -> jax.Array:
  return jnp.where(total == 0, 1.0, total)
