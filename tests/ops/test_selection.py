"""A threshold keeps exactly the keys of `jax.lax.top_k`, even with ties and other rounding."""

import functools

import jax
import numpy as np
import pytest

from vitx.ops.kernels.selection import find_cut, is_kept, keep_first

ROWS = 40
KINDS = (
  *("distinct", "positive", "negative", "many zeros", "zeros between signs", "few values"),
  *("neighboring floats", "mostly hidden", "far apart", "all equal"),
)


def rows(kind, length):
  """Returns scores (ROWS, length) of one kind."""
  rng = np.random.default_rng(length)
  normal = rng.normal(size=(ROWS, length))
  scores = {
    "distinct": normal,
    "positive": np.abs(normal),
    "negative": -np.abs(normal),
    "many zeros": np.where(rng.random(normal.shape) < 0.7, 0, np.abs(normal)),
    "zeros between signs": np.where(rng.random(normal.shape) < 0.5, 0, normal),
    "few values": np.round(normal),
    "neighboring floats": np.float32(1) + rng.integers(0, 4, normal.shape) * np.float32(2) ** -23,
    "mostly hidden": np.where(rng.random(normal.shape) < 0.8, -np.inf, normal),
    "far apart": normal * 10.0 ** rng.integers(-30, 30, normal.shape),
    "all equal": np.full_like(normal, -2),
  }[kind]
  return np.where(scores == 0, 0, scores).astype(np.float32)


@functools.partial(jax.jit, static_argnums=1)
def select(scores, count):
  """Returns two masks: the scores that a threshold keeps, and those of `jax.lax.top_k`."""
  return is_kept(scores, find_cut(scores, count)), keep_first(scores, count)


def first(scores, count):
  """Returns the mask of the `count` largest scores by NumPy; of equal ones, the first.

  A score of -inf is never kept.
  """
  mask = np.zeros(scores.shape, bool)
  np.put_along_axis(mask, np.argsort(-scores, kind="stable")[..., :count], True, axis=-1)
  return mask & (scores > -np.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_the_keys_of_top_k_are_kept(kind):
  for length, count in ((1, 1), (5, 5), (37, 1), (37, 9), (37, 36), (130, 50)):
    scores = rows(kind, length)
    cut, (indices, valid) = select(scores, count)
    expected = first(scores, count)
    np.testing.assert_array_equal(cut, expected, err_msg=f"{count} of {length}")
    named = np.zeros(scores.shape, bool)
    np.put_along_axis(named, np.asarray(indices), np.asarray(valid), axis=-1)
    np.testing.assert_array_equal(named, expected, err_msg=f"{count} of {length}")


def test_another_rounding_keeps_the_same_keys():
  scores = rows("many zeros", 130)
  again = scores * np.float32(1 + 1e-6)
  assert np.any(again != scores)
  a, b = jax.jit(lambda x, y: [is_kept(z, find_cut(x, 20)) for z in (x, y)])(scores, again)
  np.testing.assert_array_equal(a, b)


def test_rows_under_vmap_are_cut_separately():
  scores = np.stack([rows(kind, 40) for kind in ("distinct", "all equal", "many zeros")])
  mask = jax.jit(jax.vmap(lambda x: is_kept(x, find_cut(x, 11))))(scores)
  np.testing.assert_array_equal(mask, first(scores, 11))
