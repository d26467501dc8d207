"""Decoding token by token equals causal attention, in no more memory than the pattern needs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.slow import all_but
from vitx import ops
from vitx.ops.kernels.decode import decode_step, empty_cache
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  PATTERNS,
  Causal,
  DilatedWindow,
  Fixed,
  Full,
  Strided,
  Window,
  per_head,
)
from vitx.ops.sparse.slots import decode_plan

HEADS = 4


def inputs(n, heads=HEADS, dim=6, value_dim=5):
  random = np.random.default_rng(n)
  sizes = (dim, dim, value_dim)
  return [random.normal(size=(2, n, heads, size)).astype(np.float32) for size in sizes]


def decode(pattern, layout, q, k, v):
  """Returns the outputs at all tokens, (B, N, H, E), by one compiled step."""
  plan = decode_plan(pattern, layout, q.shape[2])

  @jax.jit
  def run(q, k, v):
    cache = empty_cache(plan, q.shape[0], q.shape[-1], v.shape[-1], v.dtype)

    def step(cache, at):
      now = (jax.lax.dynamic_slice_in_dim(x, at, 1, axis=1) for x in (q, k, v))
      out, cache = decode_step(*now, cache, plan, at[None])
      return cache, out[:, 0]

    _, out = jax.lax.scan(step, cache, jnp.arange(layout.length, dtype=jnp.int32))
    return jnp.moveaxis(out, 0, 1)

  return plan, run(q, k, v)


def causal(q, k, v, pattern, layout):
  """Returns the outputs of one call along the edges to keys that are not later than the query."""
  edges = ops.dense_mask(pattern or Full(), layout, q.shape[2])
  return cases.masked(q, k, v, edges & np.tri(layout.length, dtype=bool))[0]


def check(pattern, layout):
  q, k, v = inputs(layout.length)
  plan, output = decode(pattern, layout, q, k, v)
  np.testing.assert_allclose(output, causal(q, k, v, pattern, layout), rtol=2e-5, atol=2e-6)
  return plan


# Plain `pytest` runs the densest and the sparsest pattern; each other one compiles a program.
QUICK = {"causal", "fixed_distinct_summaries", "longformer", "bigbird_R+W+G", "erdos_renyi"}


@pytest.mark.parametrize("name", all_but(*QUICK, of=cases.KINDS))
def test_decoding_equals_causal_attention(name):
  for prefix in (0, 1) if name in QUICK else (1,):
    check(PATTERNS[name], TokenLayout((7, 8), prefix))


def test_a_dense_cache_has_a_slot_for_each_token():
  layout = TokenLayout((23,))
  plan = check(None, layout)
  assert plan.count == 23 and plan.table is None and not plan.keeps_places


# Three strides, and a part of a fourth.
@pytest.mark.parametrize("form", ["paper", "code"])
def test_a_strided_cache_has_a_slot_for_each_key_in_use(form):
  l, n, layout = 8, 29, TokenLayout((29,))  # noqa: E741
  local = check(Strided(l, "local", form), layout)
  assert local.count == (l + 1 if form == "paper" else l)
  column = check(Strided(l, "column", form), layout)
  assert column.table is not None and column.table.shape == (n, 1, -(-n // l))
  assert column.count <= n
  merged = check(Strided(l, "merged", form), layout)
  assert merged.count <= n
  check(per_head(Strided(l, "local", form), Strided(l, "column", form)), layout)


@pytest.mark.parametrize("n", all_but(29, of=(24, 29)))
def test_a_fixed_cache_keeps_the_run_and_the_summaries(n):
  l, c, layout = 8, 2, TokenLayout((n,))  # noqa: E741
  runs = -(-n // l)
  count = max((runs - 2) * c + l, (runs - 1) * c + n - (runs - 1) * l)
  for distinct in (1, 4):
    plan = check(Fixed(l, c, distinct=distinct), layout)
    assert plan.count == count and plan.heads.size == distinct
  assert check(Fixed(l, c, "local"), layout).count == l
  check(Fixed(l, c, "summary", distinct=2), layout)


def test_a_window_needs_as_many_slots_as_keys():
  layout = TokenLayout((30,))
  assert check(Window(6, 0), layout).count == 7
  assert check(Window(6), layout).count == 7  # later keys are never kept
  plan = check(DilatedWindow(3, (4,)), layout)
  assert plan.count == 13 and plan.table is not None and plan.table.shape == (30, 1, 4)
  plan = check(DilatedWindow(2, (1, 5)), layout)
  assert plan.heads.tolist() == [0, 1] and plan.count == 11


def test_a_slot_is_given_on_only_when_no_later_query_reads_it():
  pattern, layout = Fixed(6, 1, distinct=3) | Window(2, 0), TokenLayout((20,))
  plan = decode_plan(pattern, layout, 3)
  q, k = np.arange(20)[:, None], np.arange(20)
  for group, head in enumerate(plan.heads):
    allowed = (pattern & Causal()).allows(layout, q, k, head)
    for query, key in np.argwhere(allowed):
      since = plan.slots[group, key + 1 : query + 1]
      assert plan.slots[group, key] not in since


def test_a_plan_of_twelve_thousand_tokens_needs_few_slots():
  layout = TokenLayout((12288,))
  plan = decode_plan(Strided(128, "local", "code"), layout, 2)
  assert plan.count == 128
  fixed = functools.partial(Fixed, 128, 32, distinct=4)
  assert decode_plan(fixed(part="local"), layout, 8).count == 128


def test_keys_are_kept_in_their_dtype_and_weighed_in_float32():
  layout = TokenLayout((12,))
  q, k, v = (x.astype(jnp.bfloat16) for x in inputs(12))
  _, output = decode(Window(4, 0), layout, q, k, v)
  expected = causal(q, k, v, Window(4, 0), layout)
  assert output.dtype == jnp.bfloat16
  np.testing.assert_array_equal(output, expected.astype(jnp.bfloat16))
