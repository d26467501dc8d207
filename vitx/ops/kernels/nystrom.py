"""Nyström approximation of softmax attention (Xiong et al. 2021)."""

import math

import jax
import jax.numpy as jnp

from vitx.config.checks import check_choice
from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.softmax import masked_softmax
from vitx.ops.kernels.tiling import split_rows
from vitx.ops.shapes import Array, Bool, Float

PINV_SCALES = ("example", "batch")
HIGHEST = jax.lax.Precision.HIGHEST
BLOCK = 64  # tokens per product of `depthwise_convolution`


def nystrom_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H D"],
  landmarks: int,
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  iterations: int = 6,
  pinv_scale: str = "example",
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N N"] | None]:
  """Computes softmax(q k̃ᵀ) pinv(softmax(q̃ k̃ᵀ)) softmax(q̃ kᵀ) v (Xiong et al. 2021, equation 13).

  The landmarks q̃ and k̃ are means of consecutive queries and keys. Logits are scaled by
  1 / sqrt(D), which the formula leaves out.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    landmarks: The largest number M of landmarks.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    iterations: The number of iterations of the pseudo-inverse.
    pinv_scale: The scope of the maxima that scale the first guess of the pseudo-inverse: "example"
      for those of each matrix, "batch" for those of all matrices. See `pseudo_inverse`.
    implementation: The path to take: "masked", "kernelized" (linear in N) or "auto".

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the matrix (B, H, N, N) in
    float32, whose rows sum to one up to the error of the inverse, else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=True)
  picked = resolve_implementation(implementation, "nystrom", q.shape)
  near, inverse, far = _factors(q, k, landmarks, key_mask, iterations, pinv_scale)
  if picked == "masked":
    matrix = jnp.matmul(jnp.matmul(near, inverse), far)
    out = jnp.einsum("bhnm,bmhd->bnhd", matrix, v.astype(jnp.float32))
    return out.astype(v.dtype), matrix
  # Multiplied from the right, no product is larger than N x M.
  seen = jnp.matmul(far, jnp.swapaxes(v, 1, 2).astype(jnp.float32))
  out = jnp.swapaxes(jnp.matmul(near, jnp.matmul(inverse, seen)), 1, 2)
  return out.astype(v.dtype), None


def segment_means(
  x: Float[Array, "B N H D"], landmarks: int, *, mask: Bool[Array, "B N"] | None = None
) -> tuple[Float[Array, "B M H D"], Bool[Array, "B M"]]:
  """Computes landmarks: the means of ceil(N / landmarks) consecutive tokens each.

  The last segment may be short. If N is no multiple of `landmarks`, fewer segments may cover all
  tokens; there are no empty segments. (Xiong et al. 2021, section 4.2.)

  Args:
    x: The tokens, (B, N, H, D).
    landmarks: The largest number of segments.
    mask: A boolean mask (B, N) or `None`; masked tokens are left out of the means.

  Returns:
    The means of the M segments, (B, M, H, D) in float32, zero if all tokens of a segment are
    masked, and a boolean array (B, M), False for these segments.
  """
  batch, length = x.shape[:2]
  segment = math.ceil(length / landmarks)
  count = math.ceil(length / segment)
  weight = jnp.ones((batch, length), bool) if mask is None else mask
  weight, x = (split_rows(y, count, segment) for y in (weight, x.astype(jnp.float32)))
  total = jnp.sum(jnp.where(weight[..., None, None], x, 0.0), axis=2)
  tokens = jnp.sum(weight, axis=2, dtype=jnp.float32)  # (B, M)
  return total / jnp.maximum(tokens, 1)[..., None, None], tokens > 0


def pseudo_inverse(
  a: Float[Array, "B H M M"], iterations: int = 6, *, scale: str = "example"
) -> Float[Array, "B H M M"]:
  """Computes the Moore-Penrose inverse by a third-order iteration (Xiong et al. 2021, equation 11).

  Products are float32 at the highest precision: with half-precision products the result grows worse
  from about the sixth iteration on.

  Args:
    a: The matrices, (B, H, M, M), never negative.
    iterations: The number of iterations. Near the inverse, each one triples the number of correct
      digits.
    scale: The scope of the maxima in the first guess aᵀ / (max row sum * max column sum).
      "example": the maxima of each matrix. "batch": the maxima over all matrices, as in the
      authors' code; an example's output then depends on the other examples.

  Returns:
    The inverses, float32 (B, H, M, M).
  """
  check_choice(scale, "pinv_scale", PINV_SCALES)
  a = a.astype(jnp.float32)
  axes: tuple[int, ...] | int = -1 if scale == "example" else tuple(range(a.ndim - 1))
  rows = jnp.max(jnp.sum(jnp.abs(a), axis=-1), axis=axes, keepdims=True)[..., None]
  columns = jnp.max(jnp.sum(jnp.abs(a), axis=-2), axis=axes, keepdims=True)[..., None]
  size = rows * columns
  z = jnp.swapaxes(a, -1, -2) / jnp.where(size == 0, 1.0, size)
  eye = jnp.eye(a.shape[-1], dtype=jnp.float32)
  for _ in range(iterations):
    y = jnp.matmul(a, z, precision=HIGHEST)
    inner = 15 * eye - jnp.matmul(y, 7 * eye - y, precision=HIGHEST)
    inner = 13 * eye - jnp.matmul(y, inner, precision=HIGHEST)
    z = jnp.matmul(z, inner, precision=HIGHEST) / 4
  return z


def _factors(
  q: jax.Array, k: jax.Array, landmarks: int, mask, iterations: int, pinv_scale: str
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the three factors for M landmarks: (B, H, N, M), (B, H, M, M) and (B, H, M, N)."""
  scale = 1 / math.sqrt(q.shape[-1])
  q, k = q.astype(jnp.float32) * scale, k.astype(jnp.float32)
  q_means, valid = segment_means(q, landmarks, mask=mask)
  k_means, _ = segment_means(k, landmarks, mask=mask)
  rows = columns = pairs = None
  if mask is not None:
    columns = valid[:, None, None, :]  # (B, 1, 1, M)
    pairs = columns & valid[:, None, :, None]
    rows = valid[:, None, :, None] & mask[:, None, None, :]  # (B, 1, M, N)
  # This puts heads first once; otherwise every product would move them in memory.
  q, k = jnp.swapaxes(q, 1, 2), jnp.swapaxes(k, 1, 2)
  near = masked_softmax(jnp.einsum("bhnd,bmhd->bhnm", q, k_means), columns)
  middle = masked_softmax(jnp.einsum("bnhd,bmhd->bhnm", q_means, k_means, precision=HIGHEST), pairs)
  far = masked_softmax(jnp.einsum("bnhd,bhmd->bhnm", q_means, k), rows)
  return near, pseudo_inverse(middle, iterations, scale=pinv_scale), far


def depthwise_convolution(
  x: Float[Array, "B N H D"], taps: Float[Array, "K H"]
) -> Float[Array, "B N H D"]:
  """Convolves along the tokens, with one filter per head and zeros beyond the ends.

  It multiplies by small banded matrices, which is ten times as fast as a grouped convolution on
  CPUs.

  Args:
    x: The tokens, (B, N, H, D).
    taps: The filters, (K, H), K odd; output n is the sum over i of taps[i] * x[n + i - K // 2].

  Returns:
    The result (B, N, H, D) in the dtype of `x`.
  """
  batch, length, heads, dim = x.shape
  size = taps.shape[0]
  reach = size // 2
  count = -(-length // BLOCK)
  blocks = -(-2 * reach // BLOCK)  # how many further blocks a filter reaches
  after = (count + blocks) * BLOCK - length - reach
  padded = jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (reach, after), (0, 0)))
  padded = padded.reshape(batch, heads, count + blocks, BLOCK, dim)
  windows = jnp.concatenate([padded[:, :, i : i + count] for i in range(1 + blocks)], axis=3)
  windows = windows[:, :, :, : BLOCK + size - 1]  # (B, H, G, b + K - 1, D)
  offset = jnp.arange(BLOCK + size - 1)[None, :] - jnp.arange(BLOCK)[:, None]
  inside = (offset >= 0) & (offset < size)
  band = jnp.where(inside, taps.T[:, jnp.clip(offset, 0, size - 1)], 0.0).astype(x.dtype)
  out = jnp.einsum("hij,bhgjd->bhgid", band, windows)
  return jnp.swapaxes(out.reshape(batch, heads, count * BLOCK, dim)[:, :, :length], 1, 2)
