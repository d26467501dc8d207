"""Fixed and strided patterns, computed by runs and reshaping, equal their definitions."""

import pytest

from tests.ops import attention_cases as cases
from vitx.analysis.cost import flops
from vitx.ops import dense_mask
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Causal, Fixed, Strided, per_head
from vitx.ops.sparse.attend import attend
from vitx.ops.sparse.plan import plan


def run(pattern, key_mask=None):
  def kernel(q, k, v):
    steps = plan(pattern, TokenLayout((q.shape[1],)))
    return attend(steps, q, k, v, key_mask=key_mask)

  return kernel


def cores(pattern, n):
  return [[part.core for part in parts] for parts in plan(pattern, TokenLayout((n,))).heads]


@pytest.mark.parametrize(
  ("pattern", "n"),
  [
    # The last run is shorter; slow, since a quick case has a part of this pattern.
    pytest.param(Fixed(8, 2, distinct=4), 61, marks=pytest.mark.slow),
    pytest.param(Fixed(8, 2, distinct=2) & Causal(), 64, marks=pytest.mark.slow),
    (Fixed(8, 1, "summary", distinct=3), 61),
    (Fixed(8, 2, "local"), 30),
    (Fixed(8, 2), 8),  # one run: no summaries before it
    (Fixed(8, 2), 9),
    *(
      pytest.param(Strided(stride, part, form), n, marks=pytest.mark.slow)
      for n, stride, part, form in (
        *((96, 16, "merged", form) for form in ("paper", "bidirectional")),
        *((110, 11, "merged", "axial"), (20, 32, "merged", "code")),
        *((50, 8, "local", "axial"), (50, 8, "column", "paper")),
      )
    ),
  ],
  ids=str,
)
def test_fixed_attention_equals_its_definition(pattern, n):
  arrays, d_lse = cases.inputs(2, n, 6, 8), cases.lse_cotangent(2, n, 6)
  key_mask = cases.seen_keys(2, n)  # six heads share four sub-runs unevenly
  key_mask[1] = False
  mask = dense_mask(pattern, TokenLayout((n,)), 6)[None] & key_mask[:, None, None]
  cases.check(run(pattern, key_mask), arrays, d_lse, mask=mask)


@pytest.mark.parametrize(
  "pattern", [Strided(8, "local", "axial"), Strided(8, "column", "bidirectional")], ids=str
)
def test_a_shorter_last_run_hides_its_padding(pattern):
  """Without a key mask, nothing but the length says which keys of the last run are padding."""
  mask = dense_mask(pattern, TokenLayout((29,)), 2)
  cases.check(run(pattern), cases.inputs(1, 29, 2, 8), mask=mask)


@pytest.mark.slow  # large enough for several rectangles of the staircase, both ways
def test_several_bands_make_a_staircase():
  pattern = Fixed(8, 2, distinct=2)
  mask = dense_mask(pattern, TokenLayout((804,)), 2)
  cases.check(run(pattern), cases.inputs(1, 804, 2, 8), mask=mask)


@pytest.mark.parametrize(
  ("pattern", "expected"),
  [
    (Fixed(8, 2, distinct=4), [["block_diagonal", "summaries"]]),
    (Fixed(8, 2, distinct=4) & Causal(), [["block_diagonal", "summaries"]]),
    (Fixed(8, 2, "local", causal=False) & Causal(), [["block_diagonal"]]),
    (Fixed(8, 2, causal=False), [["block_sparse"]]),
    (Fixed(64, 2), [["block_diagonal"]]),
    (
      per_head(Fixed(8, 2, "local"), Fixed(8, 2, "summary")) & Causal(),
      [["block_diagonal"], ["block_sparse", "summaries"]],
    ),
  ],
  ids=str,
)
def test_a_plan_has_these_parts(pattern, expected):
  assert cores(pattern, 64) == expected


def test_work_grows_with_the_edges():
  """Runs of 128 tokens with 32 summaries have a quarter of the edges of causal attention."""
  shapes = cases.floats(*[(1, 12_288, 2, 64)] * 3)

  def work(pattern):
    return flops(cases.gradients(run(pattern)), *shapes)

  edges = sum((i // 128) * 32 + i % 128 + 1 for i in range(12_288))
  assert abs(edges / (12_288 * 12_289 / 2) - 0.258) < 0.001
  ratio = work(Fixed(128, 32, distinct=4)) / work(Causal())
  assert ratio < 0.27
