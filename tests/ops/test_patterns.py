"""Every pattern equals the set written directly from its definition, in plain Python loops."""

import dataclasses
import itertools
from functools import partial

import jax
import numpy as np
import pytest

from tests.ops.pattern_definitions import DEFINITIONS
from tests.slow import all_but
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Causal,
  DilatedWindow,
  ErdosRenyi,
  Fixed,
  Full,
  Global,
  Neighborhood,
  QueryParts,
  RandomBlocks,
  ShiftedWindow,
  Strided,
  WattsStrogatz,
  Window,
  bigbird,
  cycle,
  per_head,
)
from vitx.ops.patterns.examples import HEADS

LAYOUTS = [TokenLayout((7, 9), 1), TokenLayout((8, 7)), TokenLayout((9, 8), 2)]


def edges(pattern, layout, heads=HEADS):
  """Returns the edges, bool (H, N, N), by one call of the pattern's `allows`."""
  index = np.arange(layout.length)
  allowed = pattern.allows(layout, index[:, None], index, np.arange(heads)[:, None, None])
  return np.broadcast_to(allowed, (heads, layout.length, layout.length))


def test_no_pattern_lacks_a_definition():
  assert set(DEFINITIONS) == set(PATTERNS)


@pytest.mark.parametrize("layout", all_but(LAYOUTS[0], of=LAYOUTS), ids=str)
def test_every_pattern_equals_its_definition(layout):
  for name, pattern in PATTERNS.items():
    definition, N = DEFINITIONS[name], range(layout.length)
    expected = [
      [[definition(q, k, h, layout) for k in N] for q in N] for h in range(pattern.head_period)
    ]
    np.testing.assert_array_equal(edges(pattern, layout, len(expected)), expected, name)


# Every fourth pattern runs always, the others with --all.
@pytest.mark.parametrize("first", all_but(0, of=range(4)))
def test_traced_indices_give_equal_edges(first):
  layout, names = LAYOUTS[0], list(PATTERNS)[first::4]
  index = np.arange(layout.length)

  @jax.jit
  def traced(q, k, head):
    return [PATTERNS[name].allows(layout, q, k, head) for name in names]

  masks = traced(index[:, None], index, np.arange(HEADS)[:, None, None])
  for name, allowed in zip(names, masks, strict=True):
    expected = edges(PATTERNS[name], layout)
    np.testing.assert_array_equal(np.broadcast_to(allowed, expected.shape), expected, name)


def test_heads_repeat_after_their_period_and_differ_within():
  for name, pattern in PATTERNS.items():
    period = pattern.head_period
    twice = edges(pattern, LAYOUTS[2], 2 * period)
    np.testing.assert_array_equal(twice[:period], twice[period:], name)
    # BBViT's first and last block attend everything, whatever was drawn.
    alike = period == 1 or name in ("bbvit_random", "bbvit_global", "bbvit_random_global")
    assert (len({head.tobytes() for head in twice}) == 1) == alike, name


def test_patterns_are_equal_by_value():
  for name, pattern in PATTERNS.items():
    same = pattern.at(getattr(pattern, "layer", 0))
    assert hash(pattern) == hash(same) and pattern == same, name


# The unit values of the Sparse Transformer at l = 4, i = 10.
LINE = TokenLayout((16,))


def row(pattern, query, head=0):
  return set(np.flatnonzero(edges(pattern, LINE, head + 1)[head, query]).tolist())


def test_a_dilation_beyond_the_sequence_leaves_the_query_itself():
  assert row(DilatedWindow(3000, (1, 10**6)), 10, head=1) == {10}  # 3e9 steps exceed 32 bits


@pytest.mark.parametrize(
  "pattern, keys",
  [
    (Strided(4, "local", "paper"), {6, 7, 8, 9, 10}),
    (Strided(4, "local", "code"), {7, 8, 9, 10}),
    (Strided(4, "column", "paper"), {2, 6, 10}),
    (Fixed(4, 1, "local"), {8, 9, 10}),
    (Fixed(4, 1, "summary"), {3, 7}),
    (Fixed(4, 2, "summary"), {2, 3, 6, 7, 10}),
    (Fixed(4, 2), {2, 3, 6, 7, 8, 9, 10}),
  ],
)
def test_rows_equal_the_published_ones(pattern, keys):
  assert row(pattern, 10) == keys


def test_two_steps_join_everything_before():
  for first, second in [
    (Strided(4, "local"), Strided(4, "column")),
    (Fixed(4, 1, "local"), Fixed(4, 1, "summary")),
  ]:
    a, b = edges(first, LINE, 1)[0], edges(second, LINE, 1)[0]
    # A path of at most two steps: j in A1(a), a in A2(i), or either step alone.
    joined = (b.astype(int) @ a) + a + b > 0
    np.testing.assert_array_equal(joined, np.tril(np.ones((16, 16), bool)))


def test_distinct_summaries_cover_the_run():
  """With l = 128 and c = 32, each of four heads has a part of the run, together the whole run."""
  layout = TokenLayout((256,))
  summaries = edges(Fixed(128, 32, "summary", causal=False, distinct=4), layout, 4)
  assert (summaries.sum(axis=0) == 1).all()


@pytest.mark.parametrize("pattern", [Strided(), Fixed()])
def test_a_stride_is_a_row_by_default_also_of_images_with_channels(pattern):
  image, row, line = (edges(pattern, TokenLayout(x), 1) for x in ((4, 5, 3), (4, 15), (60,)))
  np.testing.assert_array_equal(image, row)
  np.testing.assert_array_equal(
    line, edges(dataclasses.replace(pattern, stride=60), TokenLayout((60,)), 1)
  )


def test_axial_attention_works_on_three_axes():
  layout = TokenLayout((3, 4, 5), 1)
  points = list(itertools.product(range(3), range(4), range(5)))
  mask = edges(Axial(1), layout, 1)[0]
  for (q, a), (k, b) in itertools.product(enumerate(points, 1), repeat=2):
    assert mask[q, k] == (a[0] == b[0] and a[2] == b[2])


def test_cycles_pick_a_layer_and_draws_differ_between_layers():
  layers = cycle(Strided(part="column"), Strided(part="local"), Strided(part="local"))
  assert [layers.at(layer).part for layer in range(4)] == ["column", "local", "local", "column"]
  bigbird = PATTERNS["bigbird_R+W+G"]
  assert not (edges(bigbird.at(0), LAYOUTS[0]) == edges(bigbird.at(1), LAYOUTS[0])).all()
  mixed = per_head(cycle(Causal(), Full()), Window(1)).at(1)
  assert edges(mixed, LINE, 2)[0].all()


def test_class_tokens_can_be_global_in_any_pattern():
  layout = TokenLayout((8, 7), 2)
  for pattern in PATTERNS.values():
    mask = edges(pattern | Global(prefix=True), layout)
    assert mask[:, :2].all() and mask[:, :, :2].all()
    np.testing.assert_array_equal(mask[:, 2:, 2:], edges(pattern, layout)[:, 2:, 2:])


WRONG = [
  lambda: Window(-1),
  lambda: Global(),
  lambda: Strided(4, form="papr"),
  lambda: Strided(4, "columns"),
  lambda: Fixed(4, 1, "summaries"),
  lambda: Strided(0),
  lambda: Fixed(4, 3, distinct=2).allows(LINE, 0, 0),
  lambda: Neighborhood(7, 3).allows(LINE, 0, 0),
  lambda: ShiftedWindow(4, 4).allows(LINE, 0, 0),
  lambda: ErdosRenyi(1.5),
  lambda: WattsStrogatz(3),
  lambda: WattsStrogatz(8).allows(LINE, 0, 0),
  lambda: RandomBlocks(plan="published").indices(LINE),
  lambda: QueryParts(("windw",)),
  lambda: DilatedWindow(2, (0,)),
  *(partial(bigbird, variant) for variant in ("R+X", "W+W")),
  lambda: bigbird(window=2),
]
# Mistakes that Python itself finds.
IMPOSSIBLE = [
  lambda: Global(tokens=(16,)).allows(LINE, 0, 0),
  lambda: Axial(2).allows(LINE, 0, 0),
  lambda: cycle(Causal(), Full()).allows(LINE, 0, 0),
]


@pytest.mark.parametrize("make", WRONG)
def test_a_pattern_that_would_lose_edges_is_refused(make):
  with pytest.raises(ConfigError):
    make()


@pytest.mark.parametrize("make", IMPOSSIBLE)
def test_an_impossible_pattern_fails(make):
  with pytest.raises((KeyError, IndexError, TypeError, NotImplementedError)):
    make()
