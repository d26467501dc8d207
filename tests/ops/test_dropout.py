"""Dropout draws by example, not by device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.ops.dropout import dropout, example_keys, examples_at


def test_halves_draw_what_the_whole_draws():
  x, key = jnp.ones((8, 5, 3)), jax.random.key(0)
  whole = dropout(x, 0.5, key)
  halves = []
  for start in (0, 4):
    with examples_at(jnp.arange(start, start + 4)):
      halves.append(dropout(x[:4], 0.5, key))
  np.testing.assert_array_equal(whole, np.concatenate(halves))
  assert not np.array_equal(whole[0], whole[1])


def test_rate_and_scale():
  x = jnp.ones((100, 1000))
  out = dropout(x, 0.3, jax.random.key(1))
  assert set(np.unique(out)) == {0.0, np.float32(1 / 0.7)}
  kept = float((out > 0).mean())
  assert abs(kept - 0.7) < 4 * (0.21 / 1e5) ** 0.5


def test_broadcast_drops_an_example_whole():
  out = dropout(jnp.ones((64, 4, 3)), 0.5, jax.random.key(2), broadcast=(1, 2))
  per_example = np.asarray(out).reshape(64, -1)
  assert np.all(per_example == per_example[:, :1])
  assert 10 < (per_example[:, 0] == 0).sum() < 54


def test_zero_rate_is_the_identity_and_bad_rates_raise():
  x = jnp.arange(6.0).reshape(2, 3)
  assert dropout(x, 0.0, jax.random.key(0)) is x
  with pytest.raises(ValueError, match="1"):
    dropout(x, 1.0, jax.random.key(0))


def test_index_must_fit_the_batch():
  with examples_at(jnp.arange(3)), pytest.raises(ValueError, match="batch of 4"):
    example_keys(jax.random.key(0), 4)
