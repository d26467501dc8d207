"""Feature maps φ such that φ(q)·φ(k) replaces a kernel of q and k.

All features are computed and returned in float32: their exponentials overflow half precision, and
the later sums over N tokens would lose precision.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from vitx.config.checks import check_choice
from vitx.ops.inputs import hide_tokens
from vitx.ops.shapes import Array, Bool, Float

STABILIZERS = ("example", "batch", "none")
LARGEST_EXPONENT = 25.0  # with "none", a sum of a million squared features stays finite
KERNELS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "relu": jax.nn.relu,
  "exp": jnp.exp,
  "sigmoid": jax.nn.sigmoid,
  "softplus": jax.nn.softplus,
  "square": jnp.square,
  "abs": jnp.abs,
}


def default_count(head_dim: int) -> int:
  """Returns the published number of random features: floor(D ln D), at least 1.

  (Choromanski et al. 2021, section 4.)
  """
  return max(1, math.floor(head_dim * math.log(head_dim)))


def orthogonal_gaussian(key: jax.Array, count: int, head_dim: int) -> Float[Array, "M D"]:
  """Draws Gaussian rows, orthogonal in blocks of D (Choromanski et al. 2021, section 2.4).

  Directions are uniform (Haar) and independent between blocks; lengths have the distribution of
  independent D-dimensional Gaussian vectors.

  Args:
    key: The random key, the only source of randomness.
    count: The number M of rows.
    head_dim: The width D of a row.

  Returns:
    The rows, float32 (M, D).
  """
  direction_key, length_key = jax.random.split(key)
  blocks = -(-count // head_dim)
  gaussian = jax.random.normal(direction_key, (blocks, head_dim, head_dim), jnp.float32)
  q, r = jnp.linalg.qr(gaussian)
  # QR fixes the sign of each column by a convention. Undoing it makes the directions uniform.
  q = q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[:, None, :]
  rows = jnp.swapaxes(q, -1, -2).reshape(blocks * head_dim, head_dim)[:count]
  lengths = jnp.linalg.norm(jax.random.normal(length_key, (count, head_dim), jnp.float32), axis=1)
  return rows * lengths[:, None]


def softmax_query_features(
  q: Float[Array, "B N H D"], projection: Float[Array, "M D"], *, eps: float = 1e-4
) -> Float[Array, "B N H M"]:
  """Returns positive random features of the softmax kernel exp(q·k / sqrt(D)), for queries.

  They are M^(-1/2) (exp(Wx - |x|²/2 - max(Wx)) + eps) with x = q / D^(1/4). Subtracting the maximum
  over a query's features scales the query's row, which changes normalized attention only through
  eps. (Choromanski et al. 2021, lemma 1 and equation 8.)

  Args:
    q: The queries, (B, N, H, D).
    projection: The matrix W, (M, D), shared by the heads.
    eps: A constant that keeps every feature positive.

  Returns:
    The features, float32 (B, N, H, M).
  """
  logits, half_square = _exponent(q, projection)
  top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  phi = (jnp.exp(logits - half_square - top) + eps) * projection.shape[0] ** -0.5
  return jnp.swapaxes(phi, 1, 2)


def softmax_key_features(
  k: Float[Array, "B N H D"],
  projection: Float[Array, "M D"],
  *,
  mask: Bool[Array, "B N"] | None = None,
  stabilizer: str = "example",
  eps: float = 1e-4,
) -> Float[Array, "B N H M"]:
  """Returns positive random features of the softmax kernel exp(q·k / sqrt(D)), for keys.

  They are M^(-1/2) (exp(Wx - |x|²/2 - max(Wx)) + eps) with x = k / D^(1/4). All keys of a query
  must share one maximum. (Choromanski et al. 2021, lemma 1 and equation 8.)

  Args:
    k: The keys, (B, N, H, D).
    projection: The matrix W, (M, D).
    mask: A boolean mask (B, N), True = may be attended. Masked tokens do not affect the maximum.
      Their features have no meaning, and `linear_attention` hides them.
    stabilizer: The scope of the maximum. "example": one maximum for each example and head. "batch":
      one maximum for all examples and heads, as in the authors' first code; an example's output
      then depends on the other examples through eps. "none": no maximum is subtracted. This is for
      causal attention, where a maximum would leak later tokens to earlier ones through eps. The
      exponents are then capped at `LARGEST_EXPONENT`. They are at most |W|²/2 and hardly ever reach
      the cap.
    eps: A constant that keeps every feature positive.

  Returns:
    The features, float32 (B, N, H, M).
  """
  check_choice(stabilizer, "stabilizer", STABILIZERS)
  logits, half_square = _exponent(hide_tokens(k, mask), projection)
  seen = jnp.bool_(True) if mask is None else mask[:, None, :, None]  # (B, 1, N, 1)
  if stabilizer == "none":
    exponent = jnp.minimum(logits - half_square, LARGEST_EXPONENT)
  else:
    axes = (2, 3) if stabilizer == "example" else (0, 1, 2, 3)
    top = jnp.max(jnp.where(seen, logits, -jnp.inf), axes, keepdims=True, initial=-jnp.inf)
    exponent = logits - half_square - jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
  # Hidden keys are zeros, whose exponents may exceed the maximum and overflow: 0.0 replaces them.
  phi = (jnp.exp(jnp.where(seen, exponent, 0.0)) + eps) * projection.shape[0] ** -0.5
  return jnp.swapaxes(phi, 1, 2)


def generalized_features(
  x: Float[Array, "B N H D"],
  projection: Float[Array, "M D"],
  kernel: Callable[[jax.Array], jax.Array] = jax.nn.relu,
  *,
  mask: Bool[Array, "B N"] | None = None,
  eps: float = 1e-3,
) -> Float[Array, "B N H M"]:
  """Returns the features f(W x / D^(1/4)) + eps of queries or keys, for any function f >= 0.

  (Choromanski et al. 2021, section 2.2.)

  Args:
    x: The queries or keys, (B, N, H, D).
    projection: The matrix W, (M, D).
    kernel: The function f, elementwise and never negative.
    mask: A boolean mask (B, N), True = may be attended; the features of masked tokens are those of
      zeros.
    eps: A constant that keeps the normalizer positive.

  Returns:
    The features, float32 (B, N, H, M).
  """
  return jnp.swapaxes(kernel(_exponent(hide_tokens(x, mask), projection)[0]) + eps, 1, 2)


def elu_features(
  x: Float[Array, "B N H D"], *, mask: Bool[Array, "B N"] | None = None
) -> Float[Array, "B N H D"]:
  """Returns elu(x) + 1 (Katharopoulos et al. 2020, equation 7).

  Args:
    x: The queries or keys, (B, N, H, D).
    mask: A boolean mask (B, N), True = may be attended; the features of masked tokens are those of
      zeros.

  Returns:
    The features, float32 (B, N, H, D).
  """
  return jax.nn.elu(hide_tokens(x, mask).astype(jnp.float32)) + 1


def _exponent(x: jax.Array, projection: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns W x / D^(1/4), (B, H, N, M), and |x|² / (2 sqrt(D)), (B, H, N, 1), in float32."""
  # Heads come before tokens, as the later products need it, so only the small `x` is transposed.
  x = jnp.swapaxes(x, 1, 2).astype(jnp.float32) * x.shape[-1] ** -0.25
  projected = jnp.einsum("bhnd,md->bhnm", x, projection.astype(jnp.float32))
  return projected, jnp.sum(x * x, axis=-1, keepdims=True) / 2
