"""The reference for attention kernels: softmax under a mask in NumPy, and its gradients.

`test_softmax.py` tests that the masked path agrees with it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.patterns import PATTERNS

NAMES = ("out", "lse", "dq", "dk", "dv")
# Patterns that are computed in the way of another; test_block_mask.py has their edges.
ALIKE = {
  *("window_one_sided", "window_circular", "window_blocks_circular", "window_causal"),
  *("dilated_window", "dilated_window_causal", "global_blocks", "etc"),
  *(f"bigbird_{sets}" for sets in ("R", "W", "G", "R+W", "W+G", "R+G")),
  *("bigbird_R_without_self", "bigbird_G_without_self", "bigbird_one_draw"),
  *("bbvit_random", "bbvit_window", "bbvit_global"),
  *(f"strided_{part}" for part in ("merged_paper", "merged_bidirectional", "layer_of_cycle")),
  *(f"strided_local_{form}" for form in ("paper", "code", "axial")),
  *(f"strided_column_{form}" for form in ("code", "bidirectional", "axial")),
  *("fixed_local", "axial_rows", "neighborhood_even", "shifted_window_plain"),
  *("erdos_renyi_symmetric", "watts_strogatz_kept"),
}
KINDS = [name for name in PATTERNS if name not in ALIKE]


def inputs(batch, n, heads, dim, seed=0, dtype=np.float32):
  """Returns q, k, v and a cotangent of the output, each (B, N, H, D)."""
  random = np.random.default_rng(seed).normal(size=(4, batch, n, heads, dim))
  return list(random.astype(np.float32).astype(dtype))


def lse_cotangent(batch, n, heads):
  return np.random.default_rng(8).normal(size=(batch, heads, n)).astype(np.float32)


def seen_keys(batch, n, share=0.7):
  """Returns a mask of keys, bool (B, N), of which about a `share` is True."""
  return np.random.default_rng(7).random((batch, n)) < share


def reference(q, k, v, d_out, d_lse=None, *, mask=None, scale=None):
  """Returns out, lse, dq, dk and dv, computed in float64 by the whole attention matrix.

  The `mask` is broadcastable to (B, H, N, M).
  """
  q, k, v, d_out = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v, d_out))
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  logits = q @ k.swapaxes(2, 3) * scale
  logits = logits if mask is None else np.where(mask, logits, -np.inf)
  top = logits.max(axis=-1, keepdims=True)
  top = np.where(top == -np.inf, 0, top)
  weights = np.exp(logits - top)
  total = weights.sum(axis=-1, keepdims=True)
  with np.errstate(divide="ignore"):
    lse = (top + np.log(total))[..., 0]
  p = weights / np.where(total == 0, 1, total)
  dp = d_out @ v.swapaxes(2, 3)
  ds = dp - (p * dp).sum(axis=-1, keepdims=True) + (0 if d_lse is None else d_lse[..., None])
  ds = scale * p * ds
  heads = (p @ v, ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ d_out)
  out, *grads = (x.swapaxes(1, 2) for x in heads)
  return out, lse, *grads


def masked(q, k, v, mask=None, scale=None):
  """Returns out and lse, computed in float64 by the whole attention matrix."""
  return reference(q, k, v, np.zeros((*q.shape[:3], v.shape[-1])), mask=mask, scale=scale)[:2]


def program(function):
  """Compiles a function of (q, k, v, d_out, d_lse) that returns out, lse, dq, dk and dv.

  It returns no lse if `function` returns none.
  """

  @jax.jit
  def run(q, k, v, d_out, d_lse=None):
    result, pull = jax.vjp(function, q, k, v)
    if not isinstance(result, tuple):
      return result, *pull(d_out)
    out, lse = result
    return out, lse, *pull((d_out, jnp.zeros_like(lse) if d_lse is None else d_lse))

  return lambda *arrays: [np.asarray(x, np.float32) for x in run(*arrays)]


def assert_close(results, expected, tolerance=1e-5):
  """Asserts that outputs and gradients agree; lse is left out if `results` has none."""
  names = NAMES if len(results) == len(NAMES) else NAMES[:1] + NAMES[2:]
  if len(expected) > len(results):
    expected = expected[:1] + expected[2:]
  for name, a, b in zip(names, results, expected, strict=True):
    np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), err_msg=name)
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    scale = max(1.0, float(np.abs(b).max()))
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)


def check(kernel, arrays, d_lse=None, *, mask=None, scale=None, tolerance=1e-5):
  """Compares a kernel's outputs and gradients with the reference, and returns them."""
  results = program(kernel)(*arrays, d_lse)
  assert_close(results, reference(*arrays, d_lse, mask=mask, scale=scale), tolerance)
  return results


def assert_bfloat16_keeps_up(kernel, arrays, mask=None):
  """Asserts that a kernel's bfloat16 error is at most twice the masked path's.

  The lse, which is float32, must agree within 1e-5.
  """
  half = [x.astype(jnp.bfloat16) for x in arrays]
  theirs = program(lambda *x: masked_attention(*x, mask=mask)[0])(*half)
  ours, exact = program(kernel)(*half), [*reference(*half, mask=mask)]
  if len(ours) == len(exact):
    np.testing.assert_allclose(ours.pop(1), exact[1], atol=1e-5)
  del exact[1]
  for name, a, b, e in zip(NAMES[:1] + NAMES[2:], ours, theirs, exact, strict=True):
    error, allowed = (np.sqrt(np.mean((x - e) ** 2)) for x in (a, b))
    assert error <= 2 * allowed + 1e-6, name


def gradients(function):
  """Returns a function of q, k and v, the gradients of the sum of a kernel's outputs."""
  return jax.grad(lambda *x: jnp.sum(function(*x)[0]), argnums=(0, 1, 2))


def floats(*shapes):
  return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def dense_edges(mask) -> np.ndarray:
  """Returns the edges of a `BlockMask` as bool (G, N, N), for the G heads with their own edges."""
  R, b = mask.rows, mask.block
  full = np.zeros((mask.heads * R, R, b, b), bool)
  full[mask.queries, mask.keys] = mask.tables[mask.table]
  matrix = full.reshape(mask.heads, R, R, b, b).swapaxes(2, 3)
  return matrix.reshape(mask.heads, R * b, R * b)[:, : mask.length, : mask.length]
