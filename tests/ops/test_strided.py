"""Strided attention by reshaping equals softmax under the pattern's own definition."""

import jax
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.analysis.cost import flops
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Strided
from vitx.ops.sparse.attend import attend
from vitx.ops.sparse.plan import plan

pytestmark = pytest.mark.slow  # compiles dozens of programs: minutes in all


def strided_attention(q, k, v, *, stride, form="paper", part="merged", key_mask=None):
  steps = plan(Strided(stride, part, form), TokenLayout((q.shape[1],)))
  return attend(steps, q, k, v, key_mask=key_mask)


def dense(n, stride, form, part):
  i = np.arange(n)
  return Strided(stride, part, form).allows(TokenLayout((n,)), i[:, None], i)


@pytest.mark.parametrize("form", ["paper", "code", "bidirectional", "axial"])
@pytest.mark.parametrize(("n", "stride"), [(96, 16), (110, 11), (20, 32)])
def test_equals_the_definition(n, stride, form):
  q, k, v, d_out = cases.inputs(2, n, 2, 16)
  d_lse = jax.random.normal(jax.random.key(3), (2, 2, n))
  key_mask = jax.random.bernoulli(jax.random.key(7), 0.7, (2, n)) if form != "code" else None
  mask = dense(n, stride, form, "merged")[None, None]
  mask = mask if key_mask is None else mask & key_mask[:, None, None]

  def kernel(q, k, v):
    return strided_attention(q, k, v, stride=stride, form=form, key_mask=key_mask)

  found = cases.everything(kernel, q, k, v, d_out, d_lse)
  cases.assert_close(
    found, cases.everything(lambda *x: cases.masked(*x, mask), q, k, v, d_out, d_lse)
  )


@pytest.mark.parametrize("part", ["local", "column"])
@pytest.mark.parametrize("form", ["paper", "bidirectional", "axial"])
def test_one_part_alone(form, part):
  q, k, v, d_out = cases.inputs(1, 50, 2, 16)
  mask = dense(50, 8, form, part)[None, None]
  found = cases.everything(
    lambda *x: strided_attention(*x, stride=8, form=form, part=part), q, k, v, d_out
  )
  cases.assert_close(found, cases.everything(lambda *x: cases.masked(*x, mask), q, k, v, d_out))


def test_bfloat16():
  mask = dense(130, 16, "paper", "merged")[None, None]
  cases.assert_bfloat16_keeps_up(
    lambda *x: strided_attention(*x, stride=16),
    lambda *x: cases.masked(*x, mask),
    cases.inputs(2, 130, 2, 32),
  )


def test_lowers_for_accelerators():
  cases.check_lowers(lambda *x: strided_attention(*x, stride=16), *[(1, 100, 2, 32)] * 3)


def test_cost_is_n_times_its_square_root():
  lengths, strides = [1024, 4096], [32, 64]

  def kernel(stride):
    return lambda *x: strided_attention(*x, stride=stride)

  work = [
    flops(kernel(s), *[jax.ShapeDtypeStruct((1, n, 1, 32), np.float32)] * 3)
    for n, s in zip(lengths, strides, strict=True)
  ]
  memory = [
    cases.temporaries(kernel(s), *[(1, n, 1, 32)] * 3)
    for n, s in zip(lengths, strides, strict=True)
  ]
  assert abs(cases.exponent(lengths, work) - 1.5) < 0.15, work
  assert cases.exponent(lengths, memory) < 1.5 + 0.15, memory
