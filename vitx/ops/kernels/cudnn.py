"""cuDNN's fused attention, called through JAX; shapes that cuDNN does not take are padded."""

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as library

from vitx.ops.shapes import Array, Float

MAX_WIDTH = 128  # channels of a head; newer GPUs allow more, but lowering may not know the GPU
DTYPES = (jnp.float16, jnp.bfloat16)


def applies(
  q: Float[Array, "B N H D"], k: Float[Array, "B M H D"], v: Float[Array, "B M H E"]
) -> bool:
  """Returns whether cuDNN is installed and allows the dtypes and widths of q, k, v (B, N, H, D)."""
  widest = max(q.shape[-1], v.shape[-1])
  if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype not in DTYPES or widest > MAX_WIDTH:
    return False
  try:
    library.check_cudnn_version()
  except RuntimeError:  # without cuDNN the call cannot even be traced
    return False
  return True


def cudnn_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H E"],
  *,
  scale: float,
  causal: bool = False,
) -> Float[Array, "B N H E"]:
  """Computes softmax(q kᵀ · scale) v on a CUDA device, forward and backward fused.

  The kernel requires that queries, keys and values have one width, a multiple of 8, and in training
  even lengths. So this function pads arrays with zeros. The causal mask or `key_value_seq_lengths`
  hides the keys that it adds.

  Args:
    q: The queries, (B, N, H, D), float16 or bfloat16.
    k: The keys, (B, M, H, D).
    v: The values, (B, M, H, E).
    scale: The factor of the logits.
    causal: Whether query i sees keys 0 ... i only.

  Returns:
    The output (B, N, H, E).
  """
  (batch, n, _, _), m, width = q.shape, k.shape[1], v.shape[-1]
  most = -(-max(q.shape[-1], width) // 8) * 8
  is_padded = m % 2 and not (causal and n == m)
  return jax.nn.dot_product_attention(
    *(_pad(x, most) for x in (q, k, v)),
    scale=scale,
    is_causal=causal,
    key_value_seq_lengths=jnp.full((batch,), m, jnp.int32) if is_padded else None,
    implementation="cudnn",
  )[:, :n, :, :width]


def _pad(x: jax.Array, width: int) -> jax.Array:
  """Pads (B, N, H, D) with zeros to an even N and to `width` channels."""
  return jnp.pad(x, [(0, 0), (0, x.shape[1] % 2), (0, 0), (0, width - x.shape[-1])])
