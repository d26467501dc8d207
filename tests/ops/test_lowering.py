"""Dense kernelized softmax holds no N x N array on any platform, found in the lowered programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn_library

from tests.slow import all_but
from vitx.ops import attention
from vitx.ops.kernels import cudnn, tiling
from vitx.ops.kernels.softmax import kernelized_attention


@pytest.fixture(autouse=True)
def no_tracing_cache():
  yield
  jax.clear_caches()


@pytest.fixture
def installed(monkeypatch):
  """cuDNN's kernel can be lowered for CUDA without the card, if its version check is content."""
  monkeypatch.setattr(cudnn_library, "check_cudnn_version", lambda: 91100)


def lower(platform, dtype, n, *, m=None, masked=False, width=64, lengths=False, **given):
  """The gradient program as text."""
  m = n if m is None else m
  q = jax.ShapeDtypeStruct((2, n, 2, width), dtype)
  k = jax.ShapeDtypeStruct((2, m, 2, width), dtype)
  mask = jax.ShapeDtypeStruct((2, m), bool) if masked else None
  held = jax.ShapeDtypeStruct((2,), jnp.int32) if lengths else None

  def loss(q, k, v, mask, held):
    if lengths:
      out = kernelized_attention(q, k, v, key_lengths=held, **given)
    else:
      out, _ = attention(q, k, v, key_mask=mask, implementation="kernelized", **given)
    return jnp.sum(out.astype(jnp.float32) ** 2)

  step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
  return step.trace(q, k, k, mask, held).lower(lowering_platforms=(platform,)).as_text()


def squares(text, n):
  """Types of arrays with two axes of about N, padding and all."""
  sizes = "|".join(str(n + i) for i in range(2))
  return set(re.findall(rf"tensor<(?:\d+x)*(?:{sizes})x(?:\d+x)*(?:{sizes})x[^>]*>", text))


def fused(text):
  return set(re.findall(r"__cudnn\$fmha\w*", text))


def test_the_search_finds_what_the_library_does_by_default():
  q = jax.ShapeDtypeStruct((2, 1025, 2, 64), jnp.bfloat16)
  step = jax.jit(jax.nn.dot_product_attention)
  with jax.numpy_dtype_promotion("standard"):  # the library promotes implicitly
    text = step.trace(q, q, q).lower(lowering_platforms=("cuda",)).as_text()
  assert squares(text, 1025)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", all_but(1025, of=[2048, 1025]))
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_no_square_for_cuda(dtype, n, masked, causal, installed):
  text = lower("cuda", dtype, n, masked=masked, causal=causal)
  assert not squares(text, n)
  assert len(fused(text)) == (2 if dtype == jnp.bfloat16 and not masked else 0)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("n", [2048, 1025])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_no_square_for_tpu(dtype, n, there, request):
  if there:
    request.getfixturevalue("installed")
  for masked in (False, True):
    text = lower("tpu", dtype, n, masked=masked)
    assert not squares(text, n) and not fused(text)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_no_square_in_the_steps_of_an_accelerator(platform, monkeypatch):
  """What is traced on an accelerator's machine has larger tiles."""
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", tiling.ACCELERATOR_STEP_BYTES)
  assert not squares(lower(platform, jnp.float32, 2048), 2048)
  assert not squares(lower(platform, jnp.float32, 1025, masked=True, causal=True), 1025)


def test_what_cudnn_does_not_take_or_is_not_there_for_goes_by_tiles(installed, monkeypatch):
  assert fused(lower("cuda", jnp.float16, 129, width=20))  # padded to 24
  assert fused(lower("cuda", jnp.bfloat16, 128, m=77))
  assert fused(lower("cuda", jnp.bfloat16, 129, lengths=True))
  assert not fused(lower("cuda", jnp.bfloat16, 129, width=136))
  assert not fused(lower("cpu", jnp.bfloat16, 129))

  def missing():
    raise RuntimeError("cuDNN is not detected.")

  jax.clear_caches()
  monkeypatch.setattr(cudnn_library, "check_cudnn_version", missing)
  text = lower("cuda", jnp.bfloat16, 1025)
  assert not fused(text) and not squares(text, 1025)


@pytest.mark.slow
def test_the_padding_around_cudnn_changes_nothing(monkeypatch):
  """The kernel itself is replaced by the library's plain path, which takes the same arguments."""
  plain = jax.nn.dot_product_attention

  def replaced(q, k, v, *, implementation, **given):
    assert implementation == "cudnn" and q.shape[1] % 2 == 0 and k.shape[1] % 2 == 0
    return plain(q, k, v, **given)

  monkeypatch.setattr(jax.nn, "dot_product_attention", replaced)
  keys = jax.random.split(jax.random.key(0), 3)
  shapes = ((2, 9, 2, 20), (2, 9, 2, 20), (2, 9, 2, 12))
  q, k, v = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
  lengths = jnp.array([4, 0])
  for given in ({}, {"causal": True}, {"key_lengths": lengths}):
    found = cudnn.cudnn_attention(q, k, v, scale=0.3, **given)
    expected = kernelized_attention(q, k, v, scale=0.3, **given)
    np.testing.assert_allclose(found, expected, atol=2e-6)
