"""The block lists of a pattern hold its edges, and are found without evaluating all blocks."""

import dataclasses

import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.slow import all_but
from vitx.config.errors import ConfigError
from vitx.ops import TokenLayout, dense_mask
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Causal,
  DilatedWindow,
  ErdosRenyi,
  Full,
  Global,
  Neighborhood,
  Nothing,
  Pattern,
  ShiftedWindow,
  Strided,
  WattsStrogatz,
  Window,
  bigbird,
  per_head,
)
from vitx.ops.patterns.examples import HEADS
from vitx.ops.sparse.block_mask import BlockMask

LAYOUTS = [TokenLayout((8, 8)), TokenLayout((7, 9), 1), TokenLayout((9, 8), 2)]


def edges(pattern, layout):
  return np.broadcast_to(dense_mask(pattern, layout, HEADS), (HEADS, *[layout.length] * 2))


@pytest.mark.parametrize("block", [4, 5, 16])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_mask_contains_the_edges_of_its_pattern(layout, block):
  for name, pattern in PATTERNS.items():
    mask = BlockMask.from_pattern(pattern, layout, block, HEADS)
    expected = edges(pattern, layout)
    assert mask.heads == (1 if pattern.head_period == 1 else HEADS), name
    np.testing.assert_array_equal(
      np.broadcast_to(cases.dense_edges(mask), expected.shape), expected, name
    )
    check_form(mask)


def check_form(mask):
  N, b, R = mask.length, mask.block, mask.rows
  assert mask.offsets.shape == (mask.heads * R + 1,) and mask.offsets[-1] == mask.keys.size
  assert mask.offsets.dtype == mask.keys.dtype == mask.table.dtype == np.int32
  for row in range(mask.heads * R):
    keys = mask.keys[mask.offsets[row] : mask.offsets[row + 1]]
    assert (np.diff(keys) > 0).all()
  assert mask.tables[0].all()
  assert len({table.tobytes() for table in mask.tables}) == len(mask.tables)
  assert set(mask.table.tolist()) | {0} == set(range(len(mask.tables)))
  last = N - (R - 1) * b
  for query, key, table in zip(mask.queries % R, mask.keys, mask.table, strict=True):
    inside = mask.tables[table][: last if query == R - 1 else b, : last if key == R - 1 else b]
    assert inside.any() and inside.all() == (table == 0)


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_a_transposed_mask_exchanges_queries_and_keys(layout):
  for name, pattern in PATTERNS.items():
    mask = BlockMask.from_pattern(pattern, layout, 8, HEADS)
    other = mask.transpose()
    np.testing.assert_array_equal(
      cases.dense_edges(other), cases.dense_edges(mask).swapaxes(1, 2), name
    )
    check_form(other)
    assert other.transpose() == mask, name


def test_the_digest_depends_on_the_content_alone():
  layout = TokenLayout((7, 9), 1)
  mask = BlockMask.from_pattern(PATTERNS["bigbird_R+W+G"], layout, 8, HEADS)
  again = BlockMask.from_pattern(PATTERNS["bigbird_R+W+G"], layout, 8, HEADS)
  assert mask == again and hash(mask) == hash(again) and mask.digest == again.digest
  others = [
    BlockMask.from_pattern(PATTERNS["bigbird_R+W"], layout, 8, HEADS),
    BlockMask.from_pattern(PATTERNS["bigbird_R+W+G"], layout, 4, HEADS),
    BlockMask.from_pattern(PATTERNS["bigbird_R+W+G"].at(1), layout, 8, HEADS),
    dataclasses.replace(mask, length=63),
  ]
  assert len({mask, *others}) == 5
  assert mask.digest.startswith("c63f79e48f76b76f")  # computed in another process


def test_a_mask_may_have_no_edges_or_all():
  layout = TokenLayout((10,))
  none = BlockMask.from_pattern(Nothing(), layout, 4, 2)
  assert none.keys.size == 0 and not cases.dense_edges(none).any()
  assert none.transpose() == none
  full = BlockMask.from_pattern(Full(), layout, 4, 2)
  assert cases.dense_edges(full).all() and (full.table == 0).all()
  with pytest.raises(ConfigError, match="block=0"):
    BlockMask.from_pattern(Full(), layout, 0, 2)


@dataclasses.dataclass(frozen=True)
class Counting(Pattern):
  """A pattern that counts the elements at which its edges are evaluated."""

  inner: Pattern
  looked_at: list = dataclasses.field(default_factory=list, hash=False)

  def allows(self, layout, q, k, head=0):
    self.looked_at.append(np.broadcast(q, k).size)
    return self.inner.allows(layout, q, k, head)

  def candidates(self, layout, first, last, block, head):
    return self.inner.candidates(layout, first, last, block, head)

  @property
  def head_period(self):
    return self.inner.head_period


LONG = TokenLayout((100, 250), 1)  # 25,001 tokens

LOCAL = [
  (Window(64), 3),
  (Window(64, circular=True), 4),
  (Window(10, block=8), 5),
  (DilatedWindow(8, (1, 100)) | Global(prefix=True), 21),
  (bigbird(block=64, heads=2), 3 + 3 + 2 + 2),
  (bigbird(block=64, plan="bigbird"), 3 + 3 + 2 + 2),
  (Axial(-1), 17),
  (Neighborhood(7) | Global(prefix=True), 9 * 4 + 2),
  (ShiftedWindow(7, 3), 8 * 3),
  (Strided(64, "local") | Strided(500, "local"), 10),
  (per_head(Window(3), ShiftedWindow(4)), 12),
  (WattsStrogatz(4, 0.1), 40),
  (Window(500) & ErdosRenyi(0.1) & Causal(), 9),
]
QUICK = (LOCAL[0][0], LOCAL[5][0])


@pytest.mark.parametrize(("pattern", "tiles_per_row"), all_but(*QUICK, of=LOCAL), ids=str)
def test_local_patterns_evaluate_only_near_blocks(pattern, tiles_per_row):
  """With 391 blocks in a row, a few tiles of each row are evaluated, and not hundreds."""
  counting, b = Counting(pattern), 64
  mask = BlockMask.from_pattern(counting, LONG, b, 2)
  looked_at = sum(counting.looked_at) / b**2
  assert mask.keys.size <= looked_at <= tiles_per_row * mask.heads * mask.rows
  assert max(counting.looked_at) <= 2**20  # never an N x N array
