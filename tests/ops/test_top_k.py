"""Attention over kept keys: three paths agree, and what is not kept does not exist."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.slow import all_but
from vitx.analysis.cost import flops
from vitx.ops.kernels import tiling
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.kernels.top_k import fastest, kept_keys_attention, kept_mask

SLOW = pytest.mark.slow  # compiles a lot
METHODS = ["gathered", "chunked"]
B, N, M, H, D = 2, 65, 41, 2, 16  # nothing divides anything


def kept(heads, count, queries=N, keys=M, seed=0):
  """Indices and which of them count; query 3 keeps nothing, and nobody keeps key 5."""
  rng = np.random.default_rng(seed)
  scores = rng.random((B, heads, queries, keys))
  scores[..., 5] = 2
  indices = np.argsort(scores, axis=-1)[..., :count].astype(np.int32)
  valid = rng.random(indices.shape) < 0.8
  valid[:, :, 3] = False
  # What does not count may hold anything that fits.
  return np.where(valid, indices, rng.integers(0, keys, indices.shape)).astype(np.int32), valid


def arrays(seed=0):
  q, _, _, d_out = cases.inputs(B, N, H, D, seed)
  _, k, v, _ = cases.inputs(B, M, H, D, seed + 1)
  return q, k, v, d_out


def everything(function, q, k, v, d_out):
  """out, dq, dk, dv in float32."""

  def run(q, k, v):
    out, vjp = jax.vjp(function, q, k, v)
    return out, *vjp(d_out.astype(out.dtype))

  return [np.asarray(x, np.float32) for x in jax.jit(run)(q, k, v)]


def kernel(indices, valid, method, scale=None):
  return lambda q, k, v: kept_keys_attention(q, k, v, indices, valid, scale=scale, method=method)


def reference(indices, valid, scale=None):
  mask = kept_mask(jnp.asarray(indices), valid, M)
  return lambda q, k, v: masked_attention(q, k, v, mask=mask, scale=scale)[0]


def test_mask_holds_exactly_the_kept():
  indices, valid = kept(2, 7)
  mask = np.zeros((B, 2, N, M), bool)
  for place in np.ndindex(indices.shape):
    if valid[place]:
      mask[(*place[:3], indices[place])] = True
  np.testing.assert_array_equal(kept_mask(jnp.asarray(indices), jnp.asarray(valid), M), mask)
  assert not mask[..., 5].any() and not mask[:, :, 3].any()
  # As many as are named, whatever their scores: a threshold at the last would let ties in.
  ties = jax.lax.top_k(jnp.zeros((3, 9)), 4)[1]
  np.testing.assert_array_equal(kept_mask(ties, None, 9).sum(-1), 4)


@pytest.mark.parametrize("method", all_but("chunked", of=METHODS))
@pytest.mark.parametrize(
  ("heads", "count", "step", "scale"),
  [(2, 7, 1 << 13, None), (1, 1, 1 << 20, None), (1, 5, 1 << 20, 0.7)],
)
def test_equals_the_reference(heads, count, step, scale, method, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", step)  # several tiles, or all heads at once
  indices, valid = kept(heads, count)
  q, k, v, d_out = arrays()
  found = everything(kernel(indices, valid, method, scale), q, k, v, d_out)
  expected = everything(reference(indices, valid, scale), q, k, v, d_out)
  for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, np.abs(b).max()), err_msg=name)
  out, dq, dk, dv = found
  for array in (out[:, 3], dq[:, 3], dk[:, 5], dv[:, 5]):
    np.testing.assert_array_equal(array, 0)


@pytest.mark.parametrize("method", METHODS)
def test_gradient_reaches_exactly_the_kept(method):
  indices, valid = kept(1, 6)
  q, k, v, _ = arrays()
  mask = np.asarray(kept_mask(jnp.asarray(indices), valid, M))[:, 0]
  function = kernel(indices, valid, method)
  for query in (0, 20):
    loss = lambda k, v, query=query: jnp.sum(function(q, k, v)[:, query] ** 2)  # noqa: E731
    for grad in jax.jit(jax.grad(loss, argnums=(0, 1)))(k, v):
      np.testing.assert_array_equal(np.abs(grad).sum((2, 3)) > 0, mask[:, query])


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_kept_changes_nothing(method):
  indices, valid = kept(2, 7)
  q, k, v, d_out = arrays()
  run = functools.partial(everything, kernel(indices, valid, method))
  changed = run(q, k.at[:, 5].mul(-30), v.at[:, 5].set(1e9), d_out)
  for a, b in zip(run(q, k, v, d_out), changed, strict=True):
    np.testing.assert_array_equal(a, b)


@SLOW
@pytest.mark.parametrize("method", METHODS)
def test_all_keys_kept_is_softmax_and_valid_may_be_left_out(method):
  indices = np.stack([np.random.default_rng(i).permutation(M) for i in range(B * N)])
  indices = indices.reshape(B, 1, N, M)
  q, k, v, d_out = arrays()
  found = everything(kernel(indices, None, method), q, k, v, d_out)
  expected = everything(lambda *x: cases.masked(*x)[0], q, k, v, d_out)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, np.abs(b).max()))


@SLOW
@pytest.mark.parametrize("method", METHODS)
def test_bfloat16(method):
  indices, valid = kept(2, 7)
  half = [x.astype(jnp.bfloat16) for x in arrays()]
  out = kept_keys_attention(*half[:3], indices, valid, method=method)
  assert out.dtype == jnp.bfloat16
  exact = everything(reference(indices, valid), *(x.astype(jnp.float32) for x in half))
  ours = everything(kernel(indices, valid, method), *half)
  theirs = everything(reference(indices, valid), *half)
  for name, a, b, e in zip(("out", "dq", "dk", "dv"), ours, theirs, exact, strict=True):
    error, allowed = (np.sqrt(np.mean((x - e) ** 2)) for x in (a, b))
    assert error <= 2 * allowed, name


@SLOW
@pytest.mark.parametrize("method", METHODS)
def test_without_jit_and_under_vmap(method):
  indices, valid = kept(2, 7)
  q, k, v, d_out = arrays()
  expected = everything(kernel(indices, valid, method), q, k, v, d_out)[0]
  plain = kept_keys_attention(q, k, v, jnp.asarray(indices), jnp.asarray(valid), method=method)
  one = jax.vmap(lambda *x: kept_keys_attention(*(y[None] for y in x), method=method)[0])
  for found in (plain, one(q, k, v, jnp.asarray(indices), jnp.asarray(valid))):
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_auto_gathers_few_keys():
  assert fastest(1025, 32) == fastest(4096, 409) == "gathered"
  assert fastest(1025, 128) == fastest(4096, 512) == "chunked"
  indices, valid = kept(2, 4)
  q, k, v, _ = arrays()
  programs = {
    method: str(jax.make_jaxpr(kernel(indices, valid, method))(q, k, v))
    for method in ("auto", *METHODS)
  }
  assert programs["auto"] == programs["gathered"] != programs["chunked"]


def test_refusals():
  indices, valid = kept(2, 4)
  q, k, v, _ = arrays()
  with pytest.raises(ValueError, match="valid: auto, gathered, chunked"):
    kept_keys_attention(q, k, v, indices, valid, method="sparse")
  with pytest.raises(ValueError, match=r"\(2, 2 or 1, 65, K\)"):
    kept_keys_attention(q, k, v, indices[:, :, 1:], valid)


def growing(n, method):
  """The gradient at n tokens that keep 32 keys each, as a function and its inputs' shapes."""
  x = jax.ShapeDtypeStruct((1, n, 2, 32), jnp.float32)
  indices = jax.ShapeDtypeStruct((1, 2, n, 32), jnp.int32)

  def loss(q, k, v, indices):
    return jnp.sum(kept_keys_attention(q, k, v, indices, method=method))

  return jax.grad(loss, argnums=(0, 1, 2)), (x, x, x, indices)


@SLOW
@pytest.mark.parametrize(("method", "power"), [("gathered", 1), ("chunked", 2)])
def test_cost(method, power):
  lengths = [1024, 2048, 4096, 8192]
  memory, work = [], []
  for n in lengths:
    function, shapes = growing(n, method)
    program = jax.jit(function).lower(*shapes).compile()
    memory.append(program.memory_analysis().temp_size_in_bytes)
    work.append(flops(function, *shapes))
  cases.assert_linear(lengths, memory)
  assert abs(cases.exponent(lengths, work) - power) < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_lowers_for_accelerators(method):
  function, shapes = growing(300, method)
  exported = jax.export.export(jax.jit(function), platforms=("cuda", "tpu"))(*shapes)
  assert exported.platforms == ("cuda", "tpu")
