"""The Pareto front and its picture."""

import itertools

import numpy as np
import pytest

from vitx.analysis.figures import pareto

DIRECTIONS = list(itertools.product((False, True), repeat=2))
FEW = {"a": (1.0, 1.0), "b": (2.0, 3.0), "c": (3.0, 2.0), "d": (2.0, 3.0), "e": (1.0, 0.5)}


@pytest.mark.parametrize(
  ("more", "front"),
  [
    ((False, False), ["e"]),
    ((False, True), ["a", "b", "d"]),  # Two equal rows do not beat each other.
    ((True, False), ["e", "c"]),
    ((True, True), ["b", "d", "c"]),
  ],
)
def test_the_front_agrees_with_values_by_hand(more, front):
  assert pareto.find_front(FEW, more) == front


@pytest.mark.parametrize("more", DIRECTIONS)
def test_every_row_of_the_front_is_named_once(more):
  random = np.random.default_rng(1)
  points = {f"row_{i}": (10 ** random.uniform(0, 3), random.uniform(1, 2)) for i in range(12)}
  canvas = pareto.plot_pareto(points, ("x", "y"), more, "Told.")
  named = [text.get_text() for text in canvas.axes[0].texts]
  assert set(pareto.find_front(points, more)) <= set(named) and len(set(named)) == len(named)
