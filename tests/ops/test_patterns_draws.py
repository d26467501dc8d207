"""Random graphs: where edges may be drawn, how often, and a graph for each step."""

import jax
import numpy as np
import pytest

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import ErdosRenyi, GivenBlocks, RandomBlocks, WattsStrogatz, draw
from vitx.ops.patterns.draws import hash_words, subsets


def test_hash_agrees_between_numpy_and_jax_and_has_fair_bits():
  words = (5, np.arange(-3, 500)[:, None], np.arange(200))
  numbers = hash_words(*words)
  np.testing.assert_array_equal(jax.jit(lambda *w: hash_words(*w))(*words), numbers)
  ones = np.bitwise_count(numbers).mean()
  assert abs(ones - 16) < 0.05  # standard error 0.009
  assert np.unique(numbers).size > 0.9999 * numbers.size
  assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.02


def test_subsets_are_equally_likely():
  drawn = subsets(np.full(60_000, 5), 2, 3, np.arange(60_000))
  pairs, counts = np.unique(np.sort(drawn, axis=-1), axis=0, return_counts=True)
  assert len(pairs) == 10
  # Chi-squared with 9 degrees of freedom: 99.9 % lie below 27.9.
  assert ((counts - 6000) ** 2 / 6000).sum() < 27.9


def test_small_pools_are_drawn_whole():
  drawn = subsets(np.array([0, 1, 2, 3]), 3, 7)
  assert [sorted(row[row >= 0].tolist()) for row in drawn] == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
  "window, anchors", [(0, ()), (3, ()), (3, (0, -1)), (0, (0,)), (5, (1, 4))]
)
def test_uniform_draws_avoid_the_window_and_the_anchors(window, anchors):
  m, heads = 20, 3
  seen = np.zeros((m, m), bool)
  for seed in range(40):
    drawn = draw(m * 4 - 1, 4, 3, heads=heads, seed=seed, window=window, anchors=anchors)
    assert drawn.shape == (heads, m, 3)
    for row in range(m):
      if row in [anchor % m for anchor in anchors]:
        assert (drawn[:, row] == -1).all()
        continue
      for head in range(heads):
        assert len(set(drawn[head, row].tolist()) - {-1}) == 3
      seen[row, drawn[:, row].reshape(-1)] = True
  legal = np.array([[abs(i - j) > window // 2 for j in range(m)] for i in range(m)])
  for anchor in anchors:
    legal[anchor % m] = legal[:, anchor % m] = False
  np.testing.assert_array_equal(seen, legal)  # in 120 draws of 3 of 20, all legal ones occur


def test_published_plan_of_short_inputs_takes_two_ranges():
  """With 10 blocks, a row draws some blocks from a near range and the others from a far one.

  tests/attention/test_golden_transformers.py compares the plan of longer inputs.
  """
  m, r = 10, 3  # r + 5 < m <= 2r + 5
  for seed in range(50):
    drawn = draw(m * 8, 8, r, plan="bigbird", seed=seed)[0]
    near, far = drawn[1:-1, : r // 2], drawn[1:-1, r // 2 :]
    assert ((near == -1) | ((near > 0) & (near < r + 4))).all()
    assert ((far == -1) | ((far >= r + 5) & (far < m - 1))).all()


def test_a_step_draws_its_own_graph_inside_jit():
  layout = TokenLayout((64,))
  pattern = RandomBlocks(2, 4, heads=2, window=3, layer=5)
  redrawn = jax.jit(lambda step: pattern.redraw(layout, 0, step))
  first, second = np.asarray(redrawn(1)), np.asarray(redrawn(2))
  assert (first != second).any()
  np.testing.assert_array_equal(first, pattern.redraw(layout, 0, 1))
  np.testing.assert_array_equal(redrawn(0), pattern.indices(layout))  # step 0 has the fixed graph
  assert (pattern.at(6).indices(layout) != pattern.indices(layout)).any()

  index = np.arange(64)

  @jax.jit
  def mask(step):
    blocks = GivenBlocks(pattern.redraw(layout, 0, step), 4)
    return blocks.allows(layout, index[:, None], index, np.arange(2)[:, None, None])

  edges = GivenBlocks(first, 4).allows(layout, index[:, None], index, np.arange(2)[:, None, None])
  np.testing.assert_array_equal(mask(1), edges)


def test_erdos_renyi_draws_edges_with_their_probability():
  layout, index = TokenLayout((600,)), np.arange(600)
  for p in (0.0, 0.05, 0.5, 1.0):
    edges = ErdosRenyi(p, keep_self=False, heads=2).allows(
      layout, index[:, None], index, np.arange(2)[:, None, None]
    )
    off_diagonal = edges.sum() / (2 * 600 * 599)
    assert abs(off_diagonal - p) <= 5 * (p * (1 - p) / 718_800) ** 0.5
    assert not edges[:, index, index].any()
  symmetric = ErdosRenyi(0.2, symmetric=True).allows(layout, index[:, None], index)
  assert (symmetric == symmetric.T).all() and symmetric[index, index].all()


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_watts_strogatz_moves_links_with_their_probability(beta):
  N, w = 400, 6
  layout, index = TokenLayout((N,)), np.arange(N)
  pattern = WattsStrogatz(w, beta, keep_self=False)
  edges = pattern.allows(layout, index[:, None], index)
  assert (edges == edges.T).all() and not edges[index, index].any()
  apart = np.minimum((index[:, None] - index) % N, (index - index[:, None]) % N)
  near = edges[(apart > 0) & (apart <= w // 2)].mean()
  assert abs(near - (1 - beta)) < 0.1 and (beta > 0 or near == 1)
  # N w / 2 links, minus the links that were drawn twice.
  assert N * w / 2 * 0.99 <= edges.sum() / 2 <= N * w / 2
  targets = pattern.targets(layout)[0]
  assert all(len(set(links)) == w // 2 for links in targets.tolist())
