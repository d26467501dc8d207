"""Further parts of a task: constants, intermediates, and losses that modules sow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests import runs
from tests.training import small
from vitx.checkpoints.load import load
from vitx.tasks.classification import Classification
from vitx.tasks.regression import Regression
from vitx.training import loop


class Sowing(nn.Module):
  """A classifier of images with a loss and a state of its own."""

  num_classes: int

  @nn.compact
  def __call__(self, x, *, train):
    calls = self.variable("counters", "calls", lambda: jnp.int32(0))
    if train:
      calls.value = calls.value + 1
    kernel = self.param("kernel", nn.initializers.ones, (self.num_classes,))
    self.sow("losses", "first", 3.0 * jnp.sum(kernel))
    self.sow("losses", "second", jnp.float32(1.0))
    return jnp.mean(x, axis=(1, 2, 3))[:, None] * kernel


class Anchored(Classification):
  """Classification whose loss also reads a constant and the step."""

  def constants(self):
    return {"anchor": np.float32(0.25)}

  def loss(self, params, state, constants, batch, key, step):
    loss, (state, metrics) = super().loss(params, state, constants, batch, key, step)
    metrics = {**metrics, "anchor": constants["anchor"], "at": jnp.float32(step)}
    return loss + constants["anchor"], (state, metrics)


def test_a_collection_of_losses_is_added_and_is_no_state():
  task = small.task({})
  quiet = small.task({})
  object.__setattr__(task, "model", Sowing(small.CLASSES))
  key = jax.random.key(1, impl="threefry2x32")

  @jax.jit
  def run():
    state = dict(task.init(jax.random.key(0), small.batch(0)))
    assert set(state) == {"params", "counters"}
    params = state.pop("params")
    loss = lambda params: task.loss(params, state, {}, small.batch(0), key, jnp.int32(0))  # noqa: E731
    found, gradient = jax.value_and_grad(loss, has_aux=True)(params)
    images, targets = quiet.augment(
      jax.random.fold_in(key, 0), *(small.batch(0)[name] for name in ("index", "image", "label"))
    )
    logits = jnp.mean(images, axis=(1, 2, 3))[:, None] * params["kernel"]
    plain = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))
    return found, gradient, plain

  (value, (new_state, _)), gradient, plain = run()
  assert set(new_state) == {"counters"} and new_state["counters"]["calls"] == 1
  np.testing.assert_allclose(value, plain + 3 * small.CLASSES + 1, rtol=1e-6)
  np.testing.assert_allclose(np.mean(gradient["kernel"]), 3.0, rtol=1e-2)


@pytest.mark.slow  # a whole run
@pytest.mark.usefixtures("whole_runs")
def test_constants_and_the_step_reach_the_loss(tmp_path):
  name = f"task.name={__name__}:Anchored"
  few = ("duration=4 steps", "log_every=1 steps", "schedule=constant", "augment.mixup=0.0")
  loop.train(runs.tiny(*few, name, "token_mixer=levit"), tmp_path)
  rows = [row for row in runs.rows(tmp_path) if row["kind"] == "train"]
  assert [row["anchor"] for row in rows] == [0.25] * 4
  assert [row["at"] for row in rows] == [0, 1, 2, 3]
  # The head starts at zero: the first loss is log(10), and the constant.
  assert rows[0]["loss"] == pytest.approx(np.log(10) + 0.25, abs=1e-5)
  state = runs.final_state(tmp_path)
  assert "anchor" not in str(jax.tree.structure(state)) and "constants" not in state
  norms = load(tmp_path, "latest", trust_code=True).variables["batch_stats"]["block_0"][
    "token_mixer"
  ]
  assert norms.keys() == {f"{name}_norm" for name in ("query", "key", "value", "out")}
  for norm in norms.values():
    assert np.all(np.isfinite(norm["var"])) and np.all(norm["mean"] != 0)


def test_equal_targets_far_from_the_mean_have_no_r2():
  fields = dict(num_classes=1, decode_size=2, image_size=2, channels=1)
  task = Regression(Sowing(1), lambda *_: None, lambda images: images, **fields)
  batch = {"image": np.ones((7, 2, 2, 1), np.float32), "mask": np.ones(7, bool)}
  batch["target"] = np.full(7, 4.3, np.float32)
  sums = task.evaluate({"kernel": np.ones(1)}, {"counters": {"calls": 0}}, {}, batch)["sums"]
  figures = task.summarize(jax.device_get(sums))
  assert (figures["r2"], figures["mae"]) == (None, pytest.approx(3.3))
