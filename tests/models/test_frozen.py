"""Frozen modules: their statistics do not change, and their outputs do not depend on the batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.attention.performer import Performer
from vitx.layers.norms import BatchNorm
from vitx.models.frozen import freeze, is_frozen, keep_state
from vitx.ops.layout import TokenLayout
from vitx.training.parameters import parameter_names

X = np.random.default_rng(0).normal(2.0, 3.0, size=(8, 5, 4)).astype(np.float32)
OURS = "ours/scale", "ours/bias"
NAMES = (*OURS, "block_0/flax/scale", "block_0/flax/bias", "block_0/dense/kernel", "head/kernel")


@pytest.mark.parametrize(
  ("module", "frozen", "expected"),
  [
    ("ours", OURS, True),
    ("ours", OURS[:1], False),
    ("block_0/flax", ("block_0/flax/scale", "block_0/flax/bias"), True),
    (
      "block_0/bare",
      ("block_0/flax/scale", "block_0/flax/bias"),
      False,
    ),  # the statistics of its block, which has more of them
    ("block_0/bare", tuple(name for name in NAMES if name.startswith("block_0")), True),
    ("elsewhere", OURS, False),
    ("", NAMES, True),
  ],
)
def test_state_belongs_to_the_innermost_module_with_parameters(module, frozen, expected):
  assert is_frozen([part for part in module.split("/") if part], NAMES, frozen) == expected


class Block(nn.Module):
  """A block with Flax's batch norms, one without parameters.

  A field or an argument sets their evaluation mode.
  """

  @nn.compact
  def __call__(self, x, train):
    x = nn.BatchNorm(use_running_average=not train, name="flax")(x)
    x = nn.BatchNorm(name="argument")(x, use_running_average=not train)
    return nn.BatchNorm(not train, use_scale=False, use_bias=False, name="bare")(x)


class Network(nn.Module):
  """A batch norm of vitx, and two blocks."""

  @nn.compact
  def __call__(self, x, train):
    x = BatchNorm(name="ours")(x, train)
    for i in range(2):
      x = Block(name=f"block_{i}")(x, train)
      self.sow("intermediates", f"after_{i}", x)
    return x


def test_frozen_normalization_runs_as_in_evaluation_and_the_rest_trains():
  network = Network()

  @jax.jit
  def run(key, x):
    variables = network.init(key, x, False)
    names = parameter_names(variables["params"])
    frozen = [name for name in names if not name.startswith("block_1")]
    with freeze(names, frozen):
      both = [
        network.apply(variables, batch, True, mutable=["batch_stats", "intermediates"])[1]
        for batch in (x, jnp.concatenate([x[:2], 100 + x[2:]]))
      ]
    return variables["batch_stats"], both

  before, (one, other) = run(jax.random.key(0), X)
  for name in ("ours", "block_0"):
    for after in (one["batch_stats"], other["batch_stats"]):
      jax.tree.map(np.testing.assert_array_equal, before[name], after[name])
  for name in ("flax", "argument", "bare"):
    assert not np.array_equal(one["batch_stats"]["block_1"][name]["mean"], [0] * 4)
  # In the frozen part, an image's output does not depend on the others in its batch.
  first, second = (
    [sown["intermediates"][f"after_{i}"][0] for i in range(2)] for sown in (one, other)
  )
  np.testing.assert_array_equal(first[0][:2], second[0][:2])
  assert np.abs(first[1][:2] - second[1][:2]).max() > 0.1


def test_state_of_frozen_modules_is_kept_and_of_others_is_new():
  names = ("mine/gain", "other/gain")
  old = {"count": {"mine": {"calls": 1}, "other": {"calls": 1}}, "mean": {"mine": {"x": {"m": 2}}}}
  new = jax.tree.map(lambda x: x + 1, old)
  state = keep_state(old, new, names, names[:1])
  assert state == {
    "count": {"mine": {"calls": 1}, "other": {"calls": 2}},
    "mean": {"mine": {"x": {"m": 2}}},
  }
  assert keep_state(old, new, names, ()) is new


def test_features_of_a_frozen_performer_are_not_redrawn():
  mixer, layout = Performer(num_heads=2, redraw=1), TokenLayout((5,))

  def run(key, x):
    variables = mixer.init(key, x, layout, train=False)
    names = parameter_names(variables["params"])
    states = []
    for frozen in (names, ()):
      state = variables["features"]
      for _ in range(2):
        with freeze(names, frozen):
          inputs = {"params": variables["params"], "features": state}
          _, new = mixer.apply(inputs, x, layout, train=True, mutable=["features"])
        state = new["features"]
      states.append(state["projection"])
    return variables["features"]["projection"], states

  before, (held, moved) = jax.jit(run)(jax.random.key(0), X)
  np.testing.assert_array_equal(held, before)
  assert not np.array_equal(moved, before)
