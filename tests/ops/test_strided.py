"""Strided attention by reshaping equals softmax under the pattern's own definition."""

import functools

import numpy as np
import pytest

from tests.ops import attention_cases as cases
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


@pytest.mark.parametrize(
  ("n", "stride", "form"),
  [
    *((96, 16, form) for form in ("paper", "code", "bidirectional", "axial")),
    *((110, 11, form) for form in ("paper", "bidirectional", "axial")),
    *((20, 32, form) for form in ("code", "axial")),
  ],
)
def test_equals_the_definition(n, stride, form):
  key_mask = cases.seen_keys(2, n) if form != "code" else None
  mask = dense(n, stride, form, "merged")[None, None]
  mask = mask if key_mask is None else mask & key_mask[:, None, None]
  kernel = functools.partial(strided_attention, stride=stride, form=form, key_mask=key_mask)
  cases.check(kernel, cases.inputs(2, n, 2, 16), cases.lse_cotangent(2, n, 2), mask=mask)


@pytest.mark.parametrize("part", ["local", "column"])
@pytest.mark.parametrize("form", ["paper", "bidirectional", "axial"])
def test_one_part_alone(form, part):
  kernel = functools.partial(strided_attention, stride=8, form=form, part=part)
  cases.check(kernel, cases.inputs(1, 50, 2, 16), mask=dense(50, 8, form, part))
