"""Dense tiled attention equals the masked reference, in linear memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.analysis.cost import flops
from vitx.ops.kernels import tiling
from vitx.ops.kernels.flash import flash_attention

pytestmark = pytest.mark.slow  # compiles dozens of programs: minutes in all


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "heads", "dim"), [(65, 2, 32), (197, 3, 64), (530, 1, 32)])
def test_equals_the_reference(n, heads, dim, causal, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 17)  # several tiles even here
  q, k, v, d_out = cases.inputs(2, n, heads, dim)
  key_mask = jax.random.bernoulli(jax.random.key(7), 0.8, (2, n)).at[1].set(False)
  d_lse = jax.random.normal(jax.random.key(8), (2, heads, n))
  mask = key_mask[:, None, None]
  if causal:
    mask = mask & jnp.tri(n, dtype=bool)

  def kernel(q, k, v):
    return flash_attention(q, k, v, key_mask=key_mask, causal=causal)

  found = cases.everything(kernel, q, k, v, d_out, d_lse)
  cases.assert_close(
    found, cases.everything(lambda *x: cases.masked(*x, mask), q, k, v, d_out, d_lse)
  )
  out, lse, *grads = found
  np.testing.assert_array_equal(out[1], 0)  # the second example sees no key at all
  np.testing.assert_array_equal(lse[1], -np.inf)
  for grad in grads:
    np.testing.assert_array_equal(grad[1], 0)
  for grad in grads[1:]:
    np.testing.assert_array_equal(grad[0][~np.asarray(key_mask[0])], 0)


def test_without_a_mask_and_between_two_lengths():
  q, _, _, d_out = cases.inputs(2, 30, 2, 16)
  _, k, v, _ = cases.inputs(2, 71, 2, 16, seed=1)
  found = cases.everything(lambda *x: flash_attention(*x, scale=0.3), q, k, v, d_out)
  cases.assert_close(
    found, cases.everything(lambda *x: cases.masked(*x, scale=0.3), q, k, v, d_out)
  )


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16(causal):
  mask = jnp.tri(197, dtype=bool) if causal else None
  cases.assert_bfloat16_keeps_up(
    lambda *x: flash_attention(*x, causal=causal),
    lambda *x: cases.masked(*x, mask),
    cases.inputs(2, 197, 2, 32),
  )


def test_float16_and_dtypes():
  q, k, v, _ = (x.astype(jnp.float16) for x in cases.inputs(1, 40, 2, 16))
  out, lse = flash_attention(q, k, v)
  assert (out.dtype, lse.dtype) == (jnp.float16, jnp.float32)
  expected, _ = cases.masked(*(x.astype(jnp.float32) for x in (q, k, v)))
  np.testing.assert_allclose(out, expected, atol=2e-3)


def test_without_jit_and_under_vmap():
  q, k, v, _ = cases.inputs(3, 33, 2, 16)
  key_mask = jax.random.bernoulli(jax.random.key(7), 0.8, (3, 33))
  expected = jax.jit(lambda *x: flash_attention(*x[:3], key_mask=x[3]))(q, k, v, key_mask)
  plain = flash_attention(q, k, v, key_mask=key_mask)
  one = jax.vmap(lambda q, k, v, m: flash_attention(q[None], k[None], v[None], key_mask=m[None]))
  for found in (plain, jax.tree.map(lambda x: x[:, 0], one(q, k, v, key_mask))):
    for a, b in zip(found, expected, strict=True):
      np.testing.assert_allclose(a, b, atol=2e-6)


def test_causal_lengths_must_agree():
  q, k, v, _ = cases.inputs(1, 8, 1, 4)
  with pytest.raises(ValueError, match="8 queries over 5 keys"):
    flash_attention(q, k[:, :5], v[:, :5], causal=True)


def test_lowers_for_accelerators():
  cases.check_lowers(flash_attention, *[(1, 300, 2, 32)] * 3)


def test_memory_is_linear_and_work_is_quadratic():
  lengths = [1024, 2048, 4096, 8192]
  shapes = [[(1, n, 2, 32)] * 3 for n in lengths]
  memory = [cases.temporaries(flash_attention, *s) for s in shapes]
  cases.assert_linear(lengths, memory)

  def work(causal, n):
    array = jax.ShapeDtypeStruct((1, n, 2, 32), jnp.float32)
    function = jax.grad(lambda *x: jnp.sum(flash_attention(*x, causal=causal)[0]), (0, 1, 2))
    return flops(function, array, array, array)

  full = [work(False, n) for n in lengths]
  # Seven products of 2 N² D: two forward, five backward.
  np.testing.assert_allclose(full, [7 * 2 * n * n * 2 * 32 for n in lengths], rtol=1e-3)
  assert work(True, 4096) < 0.63 * full[2]
