"""The distilled vision transformer and LV-ViT: the logits of their heads, and divided branches."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.models import create_model

IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
SMALL = dict(num_classes=5, width=8, depth=1, num_heads=2, mlp_dim=12)
STEM = dict(name="normalized", channels=(4, 4, 4), strides=(1, 1, 1), patch=4)


def make(name, **fields):
  """Returns a network and its variables, of which none is zero."""
  model = create_model(name, **SMALL, **fields)
  return model, draw_variables(model.init, IMAGES)


@partial(jax.jit, static_argnums=0)
def run(model, variables):
  logits, sown = model.apply(variables, IMAGES, mutable=["intermediates"])
  return logits, {name: value[0] for name, value in sown["intermediates"].items() if "log" in name}


@pytest.mark.slow  # compiles a whole network
def test_a_distilled_network_returns_the_mean_of_two_heads():
  model, variables = make("distilled_vit", stem=dict(name="linear", patch=4))
  assert variables["params"]["cls"].shape == (1, 2, 8)
  assert variables["params"]["posemb"]["table"].shape[-2] == 6
  logits, said = run(model, variables)
  mean = np.mean([said["class_logits"], said["distillation_logits"]], axis=0)
  np.testing.assert_allclose(logits, mean, rtol=1e-6)
  head = variables["params"]["head_distillation"]
  head["bias"] = head["bias"] + np.float32(3)
  moved, then = run(model, variables)
  np.testing.assert_allclose(moved, np.asarray(logits) + 1.5, rtol=1e-5)
  np.testing.assert_array_equal(then["class_logits"], said["class_logits"])


@pytest.mark.slow  # compiles a whole network
def test_lv_vit_adds_half_the_largest_of_the_patches():
  model, variables = make("lv_vit", stem=STEM)
  logits, said = run(model, variables)
  assert said["patch_logits"].shape == (2, 4, 5)
  said = jax.device_get(said)
  expected = said["class_logits"] + 0.5 * said["patch_logits"].max(axis=1)
  np.testing.assert_allclose(logits, expected, rtol=1e-6)
  assert not np.allclose(said["patch_logits"][:, 0], said["patch_logits"][:, 1])


def test_masked_patches_do_not_count():
  model, variables = make("lv_vit", stem=dict(name="linear", patch=4))
  mask = np.array([[True, True, False, True, True], [True, *[False] * 4]])
  apply = jax.jit(lambda images: model.apply(variables, images, mask=mask))
  hidden = ~mask[:, 1:].reshape(2, 2, 2).repeat(4, 1).repeat(4, 2)[..., None]
  logits = apply(IMAGES)
  np.testing.assert_array_equal(apply(np.where(hidden, np.float32(np.nan), IMAGES)), logits)
  assert np.all(np.isfinite(logits))


def test_both_branches_are_divided():
  """A branch divisor of 2 has the effect of halving the last linear map of each branch."""
  block = dict(name="pre_norm", branch_divisor=2.0)
  model, variables = make("distilled_vit", stem=dict(name="linear", patch=4), block=block)
  plain = model.clone(block=partial(model.block.func, branch_divisor=1.0))
  params = jax.tree.map(np.array, variables["params"])
  for branch in (params["block_0"]["token_mixer"]["out"], params["block_0"]["mlp"]["down"]):
    branch.update({name: leaf / np.float32(2) for name, leaf in branch.items()})
  logits, expected = run(model, variables)[0], run(plain, {**variables, "params": params})[0]
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # compiles a whole network
def test_the_stem_has_batch_statistics():
  model, variables = make("lv_vit", stem=STEM)
  assert set(variables["batch_stats"]["stem"]) == {"norm_0", "norm_1", "norm_2"}
  train = jax.jit(partial(model.apply, train=True, mutable=["batch_stats"]))
  _, changed = train(variables, IMAGES)
  for name, old in variables["batch_stats"]["stem"].items():
    assert np.all(changed["batch_stats"]["stem"][name]["mean"] != old["mean"])
