"""The Pareto front and its picture."""

import itertools

import numpy as np
import pytest

from vitx.analysis.figures import pareto, style

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
def test_a_front_by_hand(more, front):
  assert pareto.find_front(FEW, more) == front


@pytest.mark.parametrize("more", DIRECTIONS)
def test_whoever_is_not_on_the_front_is_beaten_by_it(more):
  points = {str(i): tuple(x) for i, x in enumerate(np.random.default_rng(0).normal(size=(50, 2)))}
  sign = np.where(more, 1, -1)
  front = pareto.find_front(points, more)
  assert 0 < len(front) < 50
  for name, point in points.items():
    gains = [(np.array(points[other]) - point) * sign for other in front if other != name]
    assert (name in front) != any((gain >= 0).all() for gain in gains)


@pytest.mark.parametrize("more", DIRECTIONS)
def test_every_row_of_the_front_is_named_and_no_name_covers_another(more):
  random = np.random.default_rng(1)
  points = {f"row_{i}": (10 ** random.uniform(0, 3), random.uniform(1, 2)) for i in range(12)}
  canvas = pareto.plot_pareto(points, ("x", "y"), more, "Told.")
  (axes,) = canvas.axes
  assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
  named = [text.get_text() for text in axes.texts]
  assert set(pareto.find_front(points, more)) <= set(named) and len(set(named)) == len(named)
  boxes = [text.get_window_extent() for text in axes.texts]
  assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))


def test_one_row_is_a_picture(tmp_path):
  canvas = pareto.plot_pareto({"a": (0.0, 1.0)}, ("x", "y"), (False, True), "Told.")
  path = style.save(canvas, tmp_path, "one")
  assert path == tmp_path / "one.png" and path.read_bytes().startswith(b"\x89PNG")
