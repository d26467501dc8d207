"""ResNet and ConvMixer: sizes, depths, shortcuts, batch statistics, one and two devices.

tests/configs/test_recipes.py counts ResNet-20 and ResNet-56.
"""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import vitx
from tests.drawn import draw_variables
from tests.training import small
from vitx.analysis.counting import count_parameters
from vitx.models.resnet import ResidualBlock


def test_convmixer_has_the_parameters_of_the_paper():
  """Eight layers of a depthwise and a pointwise convolution, each with a batch norm."""
  model = vitx.create_model("convmixer", num_classes=10, patch=1, kernel=9)
  layer = (9 * 9 + 1) * 256 + (256 + 1) * 256 + 4 * 256
  outside = (3 + 1) * 256 + 2 * 256 + (256 + 1) * 10
  assert count_parameters(model, (1, 32, 32, 3)).total == 8 * layer + outside == 706_570


def test_the_shortcut_is_every_other_pixel_and_zeros():
  x = np.random.default_rng(0).random((2, 4, 6, 3), np.float32)
  block = ResidualBlock(6, stride=2)
  shapes = jax.eval_shape(lambda: block.init(jax.random.key(1), x, False))
  variables = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)  # the branch gives nothing
  out = jax.jit(lambda x: block.apply(variables, x, False))(x)
  np.testing.assert_array_equal(out[..., :3], x[:, ::2, ::2])
  assert not out[..., 3:].any()


SMALL = {"resnet": {"depth": 8, "width": 4}, "convmixer": {"width": 8, "depth": 1, "kernel": 3}}


def model_of(name):
  return vitx.create_model(name, num_classes=small.CLASSES, **SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_an_image_is_evaluated_alone_and_trained_in_its_batch(name):
  model, random = model_of(name), np.random.default_rng(0)
  images = random.normal(size=(4, 8, 8, 3)).astype(np.float32)
  variables = draw_variables(model.init, images)

  @jax.jit
  def run(images):
    trained, state = model.apply(variables, images, train=True, mutable=["batch_stats"])
    return model.apply(variables, images)[0], trained[0], state["batch_stats"]

  (alone, one, after), (same, other, _) = run(images), run(np.r_[images[:1], images[1:] + 1])
  np.testing.assert_allclose(alone, same, rtol=1e-4, atol=1e-5)
  assert np.abs(one - other).max() > 1e-3
  assert all(
    np.any(a != b)
    for a, b in zip(*map(jax.tree.leaves, (variables["batch_stats"], after)), strict=True)
  )


@pytest.mark.slow  # compiles two steps
def test_training_on_two_devices_equals_training_on_one():
  task = dataclasses.replace(small.task({}), model=model_of("convmixer"))
  # Plain descent, since Adam would turn the rounding of vanishing gradients into whole steps.
  step = small.make_step(task, optimizer=optax.identity(), schedule=lambda step: 0.1)
  (losses, one), (same, two) = (small.run(step, 4, devices) for devices in (1, 2))
  np.testing.assert_allclose(losses, same, rtol=1e-5)
  assert losses[-1] < losses[0]
  leaves = (jax.tree.leaves((state.params, state.model_state)) for state in (one, two))
  for a, b in zip(*leaves, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
