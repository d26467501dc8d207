"""A cut keeps exactly what `jax.lax.top_k` names, ties included, and survives another rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.ops.kernels.selection import find_cut, is_kept, keep_first
from vitx.ops.kernels.top_k import kept_mask

ROWS = 40


def rows(kind, length):
  """Scores (ROWS, length) of one kind."""
  rng = np.random.default_rng(length)
  normal = rng.normal(size=(ROWS, length))
  found = {
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
  return jnp.asarray(np.where(found == 0, 0, found), jnp.float32)


def kept(scores, count):
  return np.asarray(jax.jit(lambda x: is_kept(x, find_cut(x, count)))(scores))


@pytest.mark.parametrize(
  "kind",
  all_but(
    *("distinct", "zeros between signs", "mostly hidden", "all equal"),
    of=(
      *("distinct", "positive", "negative", "many zeros", "zeros between signs", "few values"),
      *("neighboring floats", "mostly hidden", "far apart", "all equal"),
    ),
  ),
)
def test_what_top_k_names_is_kept(kind):
  for length, count in ((1, 1), (5, 5), (37, 1), (37, 9), (37, 36), (130, 50)):
    scores = rows(kind, length)
    expected = kept_mask(*keep_first(scores, count), length)
    np.testing.assert_array_equal(kept(scores, count), expected, err_msg=f"{count} of {length}")


def test_another_rounding_is_cut_in_the_same_place():
  scores = rows("many zeros", 130)
  cut = find_cut(scores, 20)
  again = jnp.where(scores == 0, 0, scores * (1 + 1e-6))
  assert np.any(np.asarray(again) != np.asarray(scores))
  np.testing.assert_array_equal(is_kept(again, cut), is_kept(scores, cut))


def test_under_vmap_rows_stop_apart():
  scores = jnp.stack([rows("distinct", 40), rows("all equal", 40), rows("many zeros", 40)])
  found = jax.vmap(lambda x: is_kept(x, find_cut(x, 11)))(scores)
  np.testing.assert_array_equal(found, kept_mask(*keep_first(scores, 11), 40))


def test_lowers_for_accelerators():
  shape = jax.ShapeDtypeStruct((3, 40), jnp.float32)
  exported = jax.export.export(jax.jit(lambda x: find_cut(x, 7)), platforms=("cuda", "tpu"))(shape)
  assert exported.platforms == ("cuda", "tpu")
