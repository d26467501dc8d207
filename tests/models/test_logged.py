"""Tracing finds the parameters that modules declare as logged; their log names have the block."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.models import create_model, logged, names
from vitx.models.stacked import stack

SIZES = dict(num_classes=3, width=8, depth=2, num_heads=2, mlp_dim=8)


class Weighed(nn.Module):
  """A user's own mixer without a base class, with one scalar that is logged and one that is not."""

  logged = ("weight",)

  num_heads: int
  dtype: jax.typing.DTypeLike = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    start = nn.initializers.constant(self.layer + 1.0)
    return x * self.param("weight", start, ()) + self.param("other", start, ())


def trace(**fields):
  model = create_model("vit", **SIZES, **fields)
  images = jnp.zeros((1, 8, 8, 1))
  with logged.collect_names() as names:
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), images, train=False))["params"]
  return names, params


def test_a_mixer_of_a_user_declares_its_logged_parameters():
  names, params = trace(token_mixer=f"{__name__}:Weighed")
  assert names == {"block_0/token_mixer/weight", "block_1/token_mixer/weight"}
  values = jax.tree_util.tree_map_with_path(lambda path, x: jnp.full(x.shape, len(path)), params)
  values["block_1"]["token_mixer"]["weight"] = jnp.float32(7)
  assert logged.means(values, tuple(names)) == {"weight/block_00": 3.0, "weight/block_01": 7.0}


@pytest.mark.parametrize("mixer", ["softmax", "performer"])
def test_an_undeclared_parameter_is_not_logged(mixer):
  names, params = trace(token_mixer=mixer)
  assert not names and logged.means(params, ()) == {}


def test_heads_are_averaged_and_a_block_logs_too():
  names, params = trace(token_mixer="shaped", block="sas")
  values = jax.tree.map(lambda x: np.arange(x.size, dtype=np.float16).reshape(x.shape), params)
  means = logged.means(values, tuple(names))
  assert {name.split("/")[0] for name in means} == {
    *("alpha", "beta", "gamma", "mixer_gain", "mlp_gain", "skip_gain")
  }
  assert means["alpha/block_01"] == 0.5 and means["alpha/block_01"].dtype == np.float32


def test_stacked_layers_are_logged_separately():
  params = {f"block_{i}": {"token_mixer": {"alpha": jnp.full(2, i)}} for i in range(12)}
  ends = ("token_mixer/alpha",)
  expected = {f"alpha/block_{i:02}": i for i in range(12)}
  assert logged.means(params, ends) == logged.means(stack(params, 3), ends) == expected
  assert list(logged.means(params, ends)) == list(expected)


@pytest.mark.parametrize(
  ("name", "figure"),
  [
    ("block_3/token_mixer/alpha", "alpha/block_03"),
    ("stage_1_block_10/token_mixer/beta", "beta/stage_01_block_10"),
    ("block_0/mlp_gain", "mlp_gain/block_00"),
    ("block_0/token_mixer/inner/gain", "gain/block_00/token_mixer/inner"),
  ],
)
def test_a_parameter_is_logged_under_this_name(name, figure):
  assert names.name_figure(name) == figure
