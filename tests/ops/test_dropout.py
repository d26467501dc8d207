"""Dropout masks depend on the example, not on the device."""

import jax
import numpy as np
import pytest

from vitx.ops.dropout import dropout, example_keys, examples_at


def test_two_halves_draw_the_same_as_the_whole():
  x, key = np.ones((8, 5, 3), np.float32), jax.random.key(0)

  @jax.jit
  def half(x, index):
    with examples_at(index):
      return dropout(x, 0.5, key)

  whole = jax.jit(lambda x: dropout(x, 0.5, key))(x)
  halves = [half(x[:4], np.arange(start, start + 4)) for start in (0, 4)]
  np.testing.assert_array_equal(whole, np.concatenate(halves))
  assert not np.array_equal(*np.asarray(whole)[:2])


def test_dropout_scales_the_kept_entries():
  out = jax.jit(lambda x: dropout(x, 0.3, jax.random.key(1)))(np.ones((100, 1000), np.float32))
  assert set(np.unique(out)) == {0.0, np.float32(1 / 0.7)}
  assert abs(np.mean(np.asarray(out) > 0) - 0.7) < 4 * (0.21 / 1e5) ** 0.5


def test_broadcast_drops_whole_examples():
  drop = jax.jit(lambda x: dropout(x, 0.5, jax.random.key(2), broadcast=(1, 2)))
  per_example = np.asarray(drop(np.ones((64, 4, 3), np.float32))).reshape(64, -1)
  assert np.all(per_example == per_example[:, :1])
  assert 10 < (per_example[:, 0] == 0).sum() < 54


def test_a_zero_rate_drops_nothing():
  x = np.ones((2, 3), np.float32)
  assert dropout(x, 0.0, jax.random.key(0)) is x
  with pytest.raises(ValueError, match="1"):
    dropout(x, 1.0, jax.random.key(0))


def test_an_index_of_another_batch_is_refused():
  with examples_at(np.arange(3)), pytest.raises(ValueError, match="batch of 4"):
    example_keys(jax.random.key(0), 4)
