"""What the attention kernels are compared with: the masked reference, its lse, its gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.kernels.softmax import masked_attention


def inputs(batch, n, heads, dim, seed=0, dtype=jnp.float32):
  """q, k, v and a cotangent of the output."""
  keys = jax.random.split(jax.random.key(seed), 4)
  return [jax.random.normal(key, (batch, n, heads, dim)).astype(dtype) for key in keys]


def masked(q, k, v, mask=None, scale=None):
  """(out, lse) through the matrix; mask broadcastable to (B, H, N, M)."""
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  out, _ = masked_attention(q, k, v, mask=mask, scale=scale)
  logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32) * scale
  if mask is None:
    return out, jax.nn.logsumexp(logits, axis=-1)
  mask = jnp.broadcast_to(mask, logits.shape)
  seen = mask.any(-1)
  # A row without edges borrows one, so that its gradient is not NaN, and is then replaced.
  lse = jax.nn.logsumexp(jnp.where(mask | ~seen[..., None], logits, -jnp.inf), axis=-1)
  return out, jnp.where(seen, lse, -jnp.inf)


def everything(function, q, k, v, d_out, d_lse=None):
  """out, lse, dq, dk, dv as float32 NumPy; the loss weighs out and (finite) lse."""

  def loss(q, k, v):
    out, lse = function(q, k, v)
    value = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32))
    if d_lse is not None:
      value = value + jnp.sum(jnp.where(jnp.isfinite(lse), lse * d_lse, 0.0))
    return value, (out, lse)

  def run(q, k, v):
    grads, aux = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    return *aux, *grads

  return [np.asarray(x, np.float32) for x in jax.jit(run)(q, k, v)]


def assert_close(found, expected, tolerance=1e-5):
  for name, a, b in zip(("out", "lse", "dq", "dk", "dv"), found, expected, strict=True):
    np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), err_msg=name)
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    scale = max(1.0, float(np.abs(b).max()))
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)


def assert_bfloat16_keeps_up(kernel, reference, arrays):
  """The kernel's bfloat16 error against float32 is at most twice the masked path's."""
  half = [x.astype(jnp.bfloat16) for x in arrays]
  exact = everything(reference, *(x.astype(jnp.float32) for x in half))
  ours, theirs = everything(kernel, *half), everything(reference, *half)
  for name, a, b, e in zip(("out", "lse", "dq", "dk", "dv"), ours, theirs, exact, strict=True):
    finite = np.isfinite(e)
    error, allowed = (np.sqrt(np.mean((x[finite] - e[finite]) ** 2)) for x in (a, b))
    assert error <= 2 * allowed + 1e-6, name


def temporaries(function, *shapes):
  """Bytes of temporaries of the forward and backward pass, compiled and not run."""

  def run(q, k, v):
    return jax.grad(lambda *x: jnp.sum(function(*x)[0]), argnums=(0, 1, 2))(q, k, v)

  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return jax.jit(run).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


def assert_linear(lengths, values):
  """Grows with exponent 1 at most; working sets of constant size may make it look less."""
  assert 0.5 < exponent(lengths, values) < 1.15, values


def exponent(lengths, values):
  """The slope of log(value) over log(N)."""
  return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def check_lowers(function, *shapes):
  """Lowers the forward and backward pass for platforms that are not here."""

  def run(q, k, v):
    return jax.grad(lambda *x: jnp.sum(function(*x)[0]), argnums=(0, 1, 2))(q, k, v)

  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  exported = jax.export.export(jax.jit(run), platforms=("cuda", "tpu"))(*arrays)
  assert exported.platforms == ("cuda", "tpu")
