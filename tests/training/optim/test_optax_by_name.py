"""optax's optimizers by name: equal to those that vitx has, or refused if they cannot train."""

import jax
import numpy as np
import pytest

from tests.training.optim.directions import close, directions, network, norm, settings
from vitx.config.errors import ConfigError
from vitx.training.optim.optimizers import make_optimizer


@pytest.mark.parametrize(
  ("spec", "ours", "mask"),
  [
    (
      dict(name="optax:lion", b1=0.8, weight_decay=0.1),
      dict(name="lion", b1=0.8, weight_decay=0.1),
      "matrices",
    ),
    (dict(name="optax:adamw", weight_decay=0.3), dict(name="adamw", weight_decay=0.3), "all"),
    (dict(name="optax:adam", b2=0.99), dict(name="adam", b2=0.99), "matrices"),
    ("optax:scale_by_adam", dict(name="adam"), "all"),
    (dict(name="optax:sgd", momentum=0.5), dict(name="sgd", momentum=0.5), "all"),
  ],
)
def test_an_optimizer_of_optax_gives_the_directions_of_ours(spec, ours, mask):
  """The sign is turned if optax descends, and optax's weight decay has vitx's mask."""
  params, grads = network(), network(1)
  theirs, _ = directions(settings(optimizer=spec, weight_decay_mask=mask), params, grads, 3)
  expected, _ = directions(settings(optimizer=ours, weight_decay_mask=mask), params, grads, 3)
  close(theirs, expected)


@pytest.mark.parametrize(
  "spec",
  [
    dict(name="optax:lars", weight_decay=0.1),
    dict(name="optax:adafactor", weight_decay_rate=0.1),
    dict(name="optax:contrib.muon", weight_decay=0.1),
  ],
)
def test_decay_of_optax_follows_our_mask(spec):
  """Without a gradient, only the parameters that decay move."""
  params = {"a": {"kernel": np.ones((4, 4), np.float32), "embedding": np.ones((4, 4), np.float32)}}
  gradient = jax.tree.map(np.zeros_like, params)
  moved, _ = directions(settings(optimizer=spec), params, gradient)
  assert np.all(moved["a"]["kernel"] > 0) and not np.any(moved["a"]["embedding"])


@pytest.mark.parametrize(
  "name", ["optax:adabelief", "optax:lamb", "optax:contrib.muon", "optax:adan"]
)
def test_other_optimizers_of_optax_descend(name):
  full = lambda *shape, of: np.full(shape, of, np.float32)  # noqa: E731
  params = {"a": {"kernel": full(4, 4, of=2)}, "b": {"bias": full(4, of=-3)}}
  optimizer = make_optimizer(settings(optimizer=dict(name=name)), params)

  @jax.jit
  def descend(params):
    state = optimizer.init(params)
    for _ in range(10):
      updates, state = optimizer.update(params, state, params)  # the gradient of params² / 2
      params = jax.tree.map(lambda p, u: p - 0.05 * u, params, updates)
    return params

  assert norm(jax.tree.leaves(descend(params))) < norm(jax.tree.leaves(params))


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    (dict(name="optax:lionn"), r"optimizer\.name='optax:lionn'.*Did you mean 'lion'"),
    (dict(name="optax:nowhere.lion"), r"nowhere\.lion"),
    (dict(name="optax:_src.utils.contextlib.os.popen", cmd="exit"), r"has no .*os\.popen"),
    (dict(name="optax:lion", b3=0.5), r"optimizer\.b3=0\.5"),
    (dict(name="optax:lion", learning_rate=0.5), r"optimizer\.learning_rate=0\.5"),
    (dict(name="optax:lion", b1=-1), r"optimizer\.b1=-1.*\[0, 1\)"),
    (dict(name="optax:adabelief", eps_root=float("nan")), r"optimizer\.eps_root=nan"),
    (dict(name="optax:sgd", nesterov=3), r"optimizer\.nesterov=3"),
    (
      dict(name="optax:novograd", weight_decay=0.1),
      r"optimizer\.weight_decay=0\.1 decays every.*weight_decay_mask=all",
    ),
    (dict(name="optax:contrib.muon", adam_weight_decay=0.1), r"optimizer\.adam_weight_decay=0\.1"),
    (dict(name="optax:contrib.prodigy"), "prodigy.*no schedule"),
  ],
)
def test_optimizers_of_optax_that_cannot_work_are_refused(spec, message):
  with pytest.raises(ConfigError, match=message) as error:
    make_optimizer(settings(optimizer=spec), network())
  assert "\n" not in str(error.value)
