"""Token mixing by the Fourier transform, without attention (FNet)."""

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.shapes import Array, Float


def fourier_mixing(
  x: Float[Array, "B N C"], *, implementation: str = "auto"
) -> tuple[Float[Array, "B N C"], Float[Array, "1 2 N N"] | None]:
  """Computes the real part of the 2-D discrete Fourier transform over tokens and channels.

  (Lee-Thorp et al. 2022, equation 3.)

  Args:
    x: The tokens, (B, N, C).
    implementation: The path to take: "masked" (the transforms' matrices), "kernelized" (the fast
      transform) or "auto".

  Returns:
    The output (B, N, C) in the dtype of `x`, unnormalized: about sqrt(N C / 2) times as large as
    `x`; and on the masked path the cosine and sine matrices over tokens, (1, 2, N, N), else `None`.
  """
  picked = resolve_implementation(implementation, "fourier", (*x.shape[:2], 1))
  if picked == "masked":
    out, matrices = _multiply_matrices(x)
    return out, matrices[None]
  return _transform(x), None


def _dft(size: int) -> tuple[jax.Array, jax.Array]:
  """Returns cosine and sine of 2π i j / size, (size, size) each; i j is first reduced mod size."""
  index = jnp.arange(size)
  turns = (index[:, None] * index[None, :]) % size
  angle = (2 * jnp.pi / size) * turns.astype(jnp.float32)
  return jnp.cos(angle), jnp.sin(angle)


def _multiply_matrices(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Computes cos_N x cos_C - sin_N x sin_C, (B, N, C); also returns cos_N and sin_N, (2, N, N).

  The matrices cos_N and sin_N have the cosine and the sine of 2π i j / N in row i and column j.
  """
  cos, sin = _dft(x.shape[1])
  cos_c, sin_c = _dft(x.shape[2])
  full = x.astype(jnp.float32)
  highest = jax.lax.Precision.HIGHEST
  even = jnp.einsum("nm,bmc,cd->bnd", cos, full, cos_c, precision=highest)
  odd = jnp.einsum("nm,bmc,cd->bnd", sin, full, sin_c, precision=highest)
  return (even - odd).astype(x.dtype), jnp.stack([cos, sin])


@jax.custom_vjp
def _transform(x: jax.Array) -> jax.Array:
  """Computes Re(F_N x F_C) by the fast Fourier transform, in float32.

  For real tokens half of the channels suffice: channel C - c is channel c with its tokens reversed.
  The map is its own transpose, so its gradient is the transform of the cotangent.
  """
  half = jnp.fft.rfft2(x.astype(jnp.float32), axes=(1, 2)).real  # channels 0 ... C // 2
  rest = jnp.flip(half[:, :, 1 : (x.shape[2] + 1) // 2], axis=2)
  rest = jnp.concatenate([rest[:, :1], jnp.flip(rest[:, 1:], axis=1)], axis=1)
  return jnp.concatenate([half, rest], axis=2).astype(x.dtype)


_transform.defvjp(lambda x: (_transform(x), None), lambda _, out: (_transform(out),))
