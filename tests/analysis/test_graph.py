"""Graph metrics of patterns: a reference table for 530 tokens, closed forms, and sampling."""

import functools
import math

import numpy as np
import pytest

from tests.slow import all_but
from vitx.analysis import graph
from vitx.analysis.edges import distances, from_matrix, from_pattern
from vitx.analysis.graph import graph_figures
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  PATTERNS,
  Causal,
  ErdosRenyi,
  Full,
  Nothing,
  WattsStrogatz,
  Window,
  bigbird,
)

BBVIT = TokenLayout((23, 23), 1)  # 530 tokens: 53 blocks of 10

# variant: density, path length, diameter, clustering, spectral gap, Laplacian; reach is 1
EXACT = {
  "W": (0.0559, 17.71, 52, 0.763, 0.0012, 0.0012),
  "G": (0.0922, 1.910, 2, 0.966, 0.371, 0.690),
  "W+G": (0.1278, 1.874, 2, 0.888, 0.403, 0.411),
}
# variant, plan: density, reach, path length, diameter, clustering, gap, Laplacian; one random draw
DRAWN = {
  ("R", "uniform"): (0.0755, 0.91, 3.28, 7, 0.46, 0.31, 0.26),
  ("R", "bigbird"): (0.0755, 0.19, 1.76, 3, 0.72, 0.48, 0.37),
  ("R+W", "uniform"): (0.1125, 1, 2.53, 5, 0.40, 0.40, 0.36),
  ("R+W", "bigbird"): (0.1125, 1, 5.05, 14, 0.61, 0.47, 0.40),
  ("R+W+G", "uniform"): (0.1823, 1, 1.819, 2, 0.59, 0.56, 0.50),
  ("R+W+G", "bigbird"): (0.1823, 1, 1.819, 2, 0.74, 0.62, 0.55),
}


@functools.cache
def exact_figures(variant):
  return graph_figures(bigbird(variant, block=10), BBVIT)


@pytest.mark.parametrize("variant", all_but("W+G", of=EXACT))
def test_figures_agree_with_the_reference_table(variant):
  figures = exact_figures(variant)
  density, path, diameter, clustering, gap, laplacian = EXACT[variant]
  assert figures.density == pytest.approx(density, abs=5e-5)
  assert figures.path_length == pytest.approx(path, abs=5e-3 if path > 2 else 5e-4)
  assert (figures.reach, figures.diameter, figures.layers_to_mixing) == (1, diameter, diameter)
  assert figures.clustering == pytest.approx(clustering, abs=5e-4)
  digits = 5e-5 if gap < 0.01 else 5e-4
  assert figures.spectral_gap == pytest.approx(gap, abs=digits)
  assert figures.laplacian == pytest.approx(laplacian, abs=digits)
  assert not figures.sampled


def lengths(variant, plan, seed):
  """Returns the mean path length and the diameter, which vary the most between draws."""
  pattern = bigbird(variant, block=10, plan=plan, seed=seed)
  counts = distances(from_pattern(pattern, BBVIT), np.arange(530))
  return np.average(np.arange(1, counts.size), weights=counts[1:]), counts.size - 1


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "plan"), DRAWN)
def test_random_graphs_agree_with_the_reference_table(variant, plan, monkeypatch):
  monkeypatch.setattr(graph, "DENSE_SPECTRUM", 100)  # Lanczos is exact enough for one draw
  draws = [
    graph_figures(bigbird(variant, block=10, plan=plan, seed=seed), BBVIT) for seed in range(3)
  ]
  density, reach, path, diameter, clustering, gap, laplacian = DRAWN[variant, plan]

  def near(name, published, tolerance):
    values = [getattr(draw, name) for draw in draws]
    assert min(values) - tolerance <= published <= max(values) + tolerance, (name, values)

  near("density", density, 5e-5)
  near("reach", reach, 0.03)
  near("clustering", clustering, 0.02)
  near("spectral_gap", gap, 0.06)
  near("laplacian", laplacian, 0.03)
  assert all((draw.layers_to_mixing == math.inf) == (draw.reach < 1) for draw in draws)
  paths, longest = zip(*(lengths(variant, plan, seed) for seed in range(15)), strict=True)
  assert min(paths) - 5e-4 <= path <= max(paths) + 5e-4
  assert min(longest) <= diameter <= max(longest)


def brute_force(A):
  """Computes path lengths by powers of I + A, and clustering by counting triples."""
  N = len(A)
  reached, counts = np.eye(N, dtype=bool), [N]
  while True:
    further = reached | (reached.astype(int) @ A > 0)
    if (further == reached).all():
      break
    counts.append(int(further.sum() - reached.sum()))
    reached = further
  a = A & ~np.eye(N, dtype=bool)
  u = a | a.T
  local, fagiolo = [], []
  for i in range(N):
    k = u[i].sum()
    closed = (u[i][:, None] & u & u[:, i]).sum()  # pairs (j, m) with edges i j, j m and m i
    local.append(closed / (k * (k - 1)) if k > 1 else 0)
    s = a.astype(int) + a.T
    total, mutual = s[i].sum(), (a[i] & a[:, i]).sum()
    possible = 2 * (total * (total - 1) - 2 * mutual)
    fagiolo.append((s @ s @ s)[i, i] / possible if possible else 0)
  return counts, np.mean(local), np.mean(fagiolo)


@pytest.mark.parametrize("name", PATTERNS)
def test_figures_agree_with_brute_force(name):
  layout = TokenLayout((7, 7), 1)
  index = np.arange(layout.length)
  A = np.broadcast_to(PATTERNS[name].allows(layout, index[:, None], index, 1), (50, 50))
  counts, local, fagiolo = brute_force(A)
  figures = graph_figures(PATTERNS[name], layout, head=1)
  np.testing.assert_array_equal(distances(from_matrix(A), index), counts)
  assert figures == graph_figures(A)
  assert figures.edges == A.sum()
  assert figures.out_degree == (A.sum(1).min(), pytest.approx(A.sum() / 50), A.sum(1).max())
  assert figures.in_degree == (A.sum(0).min(), pytest.approx(A.sum() / 50), A.sum(0).max())
  assert figures.clustering == pytest.approx(local)
  assert figures.clustering_directed == pytest.approx(fagiolo)


@pytest.mark.slow  # paths of 800 tokens
def test_figures_agree_with_closed_forms(monkeypatch):
  monkeypatch.setattr(graph, "DENSE_SPECTRUM", 400)
  full = graph_figures(Full(), TokenLayout((40,)))
  assert (full.clustering, full.transitivity, full.clustering_directed) == (1, 1, 1)
  assert (full.spectral_gap, full.layers_to_mixing) == (pytest.approx(1), 1)
  assert full.laplacian == pytest.approx(40 / 39)
  none = graph_figures(Nothing(), TokenLayout((40,)))
  assert (none.reach, none.density, none.layers_to_mixing) == (0, 0, math.inf)
  assert math.isnan(none.path_length)
  # A ring of w neighbors: C = 3 (w - 2) / (4 (w - 1)) (Watts and Strogatz 1998).
  ring = graph_figures(WattsStrogatz(10, 0.0), TokenLayout((200,)))
  assert ring.clustering == pytest.approx(3 * 8 / (4 * 9))
  assert ring.transitivity == pytest.approx(3 * 8 / (4 * 9))
  # The walk on a ring: eigenvalues are means of cosines.
  walk = (1 + 2 * np.cos(2 * np.pi * np.arange(1, 6) / 200).sum()) / 11
  assert ring.spectral_gap == pytest.approx(1 - walk)
  # Erdős–Rényi: C = p, and paths (ln n - 0.5772) / ln(n p) + 1/2 (Fronczak et al. 2004).
  random = graph_figures(ErdosRenyi(0.03, symmetric=True, keep_self=False), TokenLayout((800,)))
  assert random.clustering == pytest.approx(0.03, abs=0.004)
  assert random.path_length == pytest.approx(
    (math.log(800) - 0.5772) / math.log(24) + 0.5, rel=0.05
  )


@pytest.mark.parametrize(("pattern", "gap"), [(Window(4) & Causal(), 0.5), (Nothing(), 1.0)])
def test_a_walk_without_later_keys_needs_no_iterations(pattern, gap, monkeypatch):
  monkeypatch.setattr(graph, "DENSE_SPECTRUM", 100)
  edges = from_pattern(pattern, TokenLayout((300,)))
  assert graph.compute_spectral_gap(edges) == pytest.approx(gap)


def test_weights_of_a_matrix_drive_the_walk():
  lazy = np.array([[0.9, 0.1], [0.1, 0.9]])
  assert graph_figures(lazy).spectral_gap == pytest.approx(0.2)
  assert graph_figures(lazy > 0).spectral_gap == pytest.approx(1)
  assert graph_figures(lazy, threshold=0.5).edges == 2


@pytest.mark.parametrize("variant", all_but("W+G", of=("W", "W+G", "R+W+G")))
def test_samples_estimate_the_exact_figures(variant, monkeypatch):
  pattern = bigbird(variant, block=10)
  exact = exact_figures(variant)
  monkeypatch.setattr(graph, "EXACT", 100)
  monkeypatch.setattr(graph, "DENSE_SPECTRUM", 100)
  sampled = graph_figures(pattern, BBVIT, seed=1)
  assert sampled.sampled
  for name in ("density", "edges", "out_degree", "in_degree", "reach"):
    assert getattr(sampled, name) == getattr(exact, name)
  for name in ("spectral_gap", "laplacian"):
    assert getattr(sampled, name) == pytest.approx(getattr(exact, name), rel=1e-4)
  for name in ("path_length", "clustering", "clustering_directed"):
    assert getattr(sampled, name) == pytest.approx(getattr(exact, name), rel=0.05)
  assert exact.diameter - 1 <= sampled.diameter <= exact.diameter
