"""Initializations against their definitions."""

from functools import cache, partial

import jax
import numpy as np
import pytest

import vitx
from vitx.models import initialize
from vitx.models.initializers import fan_in

IMAGES = np.zeros((1, 8, 8, 3), np.float32)


@cache
def draw(name, seed=0, **options):
  """Returns the parameters that an initialization makes."""
  model = vitx.create_model(
    "vit",
    num_classes=50,
    width=64,
    depth=1,
    num_heads=4,
    mlp_dim=96,
    stem="hybrid",
    initialization={"name": name, **options},
  )
  params = jax.jit(partial(initialize, model))(jax.random.key(seed), IMAGES)["params"]
  named, _ = jax.tree.flatten_with_path(params)
  return {jax.tree_util.keystr(p, simple=True, separator="/"): np.asarray(x) for p, x in named}


def test_pytorch_is_uniform_within_the_root_of_the_inputs():
  params = draw("pytorch")
  for name, inputs in (
    ("stem/conv_1", 9 * 32),
    ("block_0/token_mixer/query", 64),
    ("block_0/token_mixer/out", 64),
    ("block_0/mlp/down", 96),
    ("head", 64),
  ):
    kernel, bound = params[f"{name}/kernel"], inputs**-0.5
    assert fan_in(name.split("/")[-1], kernel.shape) == inputs
    assert 0.97 * bound < np.abs(kernel).max() <= bound, name
    np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.05, err_msg=name)
    assert 0.5 * bound < np.abs(params[f"{name}/bias"]).max() <= bound, name


def test_pytorch_leaves_norms_and_tables():
  params, plain = draw("pytorch"), draw("as_made")
  np.testing.assert_array_equal(params["block_0/mlp_norm/scale"], 1)
  np.testing.assert_array_equal(params["block_0/mlp_norm/bias"], 0)
  np.testing.assert_array_equal(params["posemb/table"], plain["posemb/table"])
  assert not np.array_equal(params["stem/conv_0/kernel"], plain["stem/conv_0/kernel"])


def test_every_parameter_and_every_seed_has_other_numbers():
  params, other = draw("pytorch"), draw("pytorch", seed=1)
  query, key = (params[f"block_0/token_mixer/{name}/kernel"] for name in ("query", "key"))
  assert np.abs(np.corrcoef(query.ravel(), key.ravel())[0, 1]) < 0.1
  assert not np.array_equal(query, other["block_0/token_mixer/query/kernel"])


@pytest.mark.slow  # compiles two initializations
def test_the_truncated_normal_is_cut_at_two():
  params = draw("truncated_normal", stddev=1.0)
  kernel = params["block_0/mlp/up/kernel"]
  assert 1.9 < np.abs(kernel).max() <= 2  # cut at an absolute 2, where PyTorch cuts
  np.testing.assert_allclose(kernel.std(), 0.88, rtol=0.03)  # of a normal cut at two deviations
  np.testing.assert_array_equal(params["head/bias"], 0)
  narrow = draw("truncated_normal")
  np.testing.assert_allclose(narrow["block_0/mlp/up/kernel"].std(), 0.02, rtol=0.05)
  np.testing.assert_allclose(narrow["stem/conv_2/kernel"].std(), (2 / (9 * 64)) ** 0.5, rtol=0.05)


@pytest.mark.slow
def test_xavier_normal_counts_queries_keys_and_values_as_one_map():
  params = draw("xavier_normal")
  for name, both in (
    ("stem/conv_1", 9 * 32 + 64),
    ("block_0/token_mixer/query", 64 + 3 * 64),
    ("block_0/token_mixer/out", 64 + 64),
    ("block_0/mlp/down", 96 + 64),
    ("head", 64 + 50),
  ):
    kernel = params[f"{name}/kernel"]
    np.testing.assert_allclose(kernel.std(), (2 / both) ** 0.5, rtol=0.05, err_msg=name)
    assert np.abs(kernel).max() > 2.5 * kernel.std(), name  # nothing is cut off
    np.testing.assert_array_equal(params[f"{name}/bias"], 0)


@pytest.mark.slow
def test_truncated_normal_may_leave_convolutions_to_pytorch():
  params = draw("truncated_normal", convolutions="pytorch")
  torch, he = draw("pytorch"), draw("truncated_normal")
  assert params.keys() == he.keys()
  for name, value in params.items():
    if name.startswith("stem/conv"):
      assert not np.array_equal(value, he[name])
      bound = np.prod(torch[name.replace("bias", "kernel")].shape[:3]) ** -0.5
      assert 0.5 * bound < np.abs(value).max() <= bound
      if value.size > 500:
        np.testing.assert_allclose(value.std(), bound / 3**0.5, rtol=0.1)
    else:
      np.testing.assert_array_equal(value, he[name])
