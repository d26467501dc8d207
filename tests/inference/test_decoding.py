"""Sampling with a cache gives the logits of the whole sequence; draws depend on the seed alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cli.density_models import make, text
from vitx.inference.decoding import Sampling, next_logits, sample_tokens


@pytest.mark.parametrize(
  "mixer",
  [
    pytest.param({"name": "softmax"}, marks=pytest.mark.slow),
    {"name": "strided", "form": "code", "stride": 8, "arrangement": "layers"},
    pytest.param(
      {"name": "fixed", "stride": 8, "summary": 2, "distinct": 2, "arrangement": "merged"},
      marks=pytest.mark.slow,
    ),
    pytest.param({"name": "longformer", "window": 7}, marks=pytest.mark.slow),
  ],
  ids=lambda mixer: mixer["name"],
)
def test_cached_logits_agree_with_the_whole_sequence(mixer):
  loaded = make(mixer=mixer)
  tokens = np.random.default_rng(0).integers(0, 17, (3, 64)).astype(np.int32)
  whole = jax.jit(loaded.model.apply)(loaded.variables, tokens)

  def step(cache, inputs):
    previous, at = inputs
    variables = loaded.variables
    logits, cache = next_logits(loaded.model, variables, cache, previous[:, None], at[None])
    return cache, logits

  previous = np.roll(tokens.T, 1, axis=0)  # The token before place 0 is ignored.
  places = jnp.arange(64, dtype=jnp.int32)
  run = jax.jit(lambda cache: jax.lax.scan(step, cache, (previous, places))[1])
  logits = run(loaded.model.init_cache(3))
  np.testing.assert_allclose(logits.swapaxes(0, 1), whole, rtol=2e-5, atol=2e-5)


def draw(loaded, prompts, sampling=Sampling(), **options):  # noqa: B008, a frozen value
  length = loaded.task.length
  return sample_tokens(loaded.model, loaded.variables, prompts, length, sampling, **options)


@pytest.mark.slow
def test_a_low_temperature_takes_the_most_probable_token():
  loaded = text()
  prompt = np.array([[104, 105, 0]], np.int32)
  tokens = draw(loaded, prompt, Sampling(temperature=1e-4))
  logits = jax.jit(loaded.model.apply)(loaded.variables, tokens)
  np.testing.assert_array_equal(tokens[:, :3], prompt)
  np.testing.assert_array_equal(tokens[:, 3:], np.argmax(logits, axis=-1)[:, 3:])


@pytest.mark.slow
def test_a_sample_depends_on_its_number_and_seed():
  loaded = make()
  none = np.zeros((6, 0), np.int32)
  six = draw(loaded, none, seed=3)
  assert len(np.unique(six, axis=0)) == 6
  np.testing.assert_array_equal(draw(loaded, none[:2], seed=3, first=4), six[4:])
  done = []
  assert not np.array_equal(draw(loaded, none, seed=4, progress=done.append), six)
  assert sum(done) == 64 and len(done) > 10


@pytest.mark.slow
def test_draws_have_the_probabilities_of_the_model():
  loaded = make(grid=(1, 2, 1))
  tokens = draw(loaded, np.zeros((4000, 0), np.int32))[:, 0]
  logits = jax.jit(loaded.model.apply)(loaded.variables, np.zeros((1, 2), np.int32))[0, 0]
  expected = 4000 * np.exp(logits) / np.exp(logits).sum()
  counts = np.bincount(tokens, minlength=17)
  assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 3)


def test_top_k_and_top_p_exclude_tokens():
  logits = np.log(np.array([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], np.float32))

  def keep(**options):
    return np.isfinite(jax.jit(Sampling(**options).scale)(logits)).tolist()

  assert keep(top_k=2) == [[False, True, False, True], [True] * 4]  # All of the second row tie.
  assert keep(top_k=9) == [[True] * 4] * 2
  assert keep(top_p=0.05)[0] == [False, True, False, False]
  assert keep(top_p=0.69)[0] == [False, True, False, True]
  assert keep(top_p=0.71)[0] == [False, True, True, True]
  assert keep(top_p=1.0) == [[True] * 4] * 2
  np.testing.assert_allclose(Sampling(temperature=0.5).scale(logits), 2 * logits)
