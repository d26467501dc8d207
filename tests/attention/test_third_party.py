"""A user's own mixer keeps the contract, which names the fault of a broken one.

tests/test_extension.py trains, resumes and evaluates a run with such a mixer.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import vitx
from tests.attention.third_party import CosineAttention
from tests.slow import all_but
from vitx.attention.base import Properties
from vitx.config.errors import ConfigError
from vitx.testing import check_token_mixer

NAME = "tests.attention.third_party:CosineAttention"


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"rotary": "axial", "relative_bias": "axial"}])
def test_a_mixer_of_a_user_keeps_the_contract(fields):
  placed = Properties(accepts_causal=True, flops_exponent=2.0) if fields else None
  check_token_mixer(CosineAttention, properties=placed, pairwise=bool(fields), **fields)


def test_an_unknown_field_is_refused():
  with pytest.raises(ConfigError, match="Did you mean 'temperature'"):
    vitx.create_model("vit", num_classes=3, token_mixer={"name": NAME, "temprature": 5.0})


class Mean(nn.Module):
  """The smallest token mixer: a Flax module with the fields that a model sets."""

  num_heads: int
  dtype: jnp.dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    if mask is not None:
      raise ConfigError("Mean takes no mask")
    x = nn.Dense(x.shape[-1], dtype=self.dtype)(x)
    return jnp.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)


class ForgetsItsMask(Mean):
  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    return super().__call__(x, layout, train=train)


def test_a_module_of_flax_alone_is_a_mixer():
  check_token_mixer(Mean, pairwise=True)
  model = vitx.create_model("vit", num_classes=3, depth=1, token_mixer={"name": f"{__name__}:Mean"})
  shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
  assert "Dense_0" in shapes["params"]["block_0"]["token_mixer"]


class IgnoresTheMask(CosineAttention):
  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    return super().__call__(x, layout, train=train)


class MasksInOnePath(CosineAttention):
  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    mask = mask if self.implementation == "masked" else None
    return super().__call__(x, layout, mask=mask, train=train)


class ReturnsFloat32(CosineAttention):
  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    return super().__call__(x, layout, mask=mask, train=train).astype(jnp.float32)


class LeavesHeadsApart(CosineAttention):
  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    out = super().__call__(x, layout, mask=mask, train=train)
    return out.reshape(*x.shape[:2], self.num_heads, -1)


class KnowsPlaces(CosineAttention):
  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    places = jnp.arange(x.shape[1], dtype=x.dtype)[:, None]
    return super().__call__(x + places, layout, mask=mask, train=train)


BROKEN = [
  (IgnoresTheMask, "masked tokens change outputs"),
  (MasksInOnePath, "masked and kernelized differ with a mask"),
  (ReturnsFloat32, "dtype=bfloat16 returns float32"),
  (LeavesHeadsApart, r"returns \(4, 17, 2, 8\) for tokens \(4, 17, 16\)"),
  (ForgetsItsMask, "a mask must raise ConfigError"),
  (KnowsPlaces, "permuted tokens do not give permuted outputs"),
]


@pytest.mark.parametrize(("broken", "message"), all_but(ForgetsItsMask, of=BROKEN))
def test_the_contract_names_the_fault(broken, message):
  with pytest.raises(AssertionError, match=message):
    check_token_mixer(broken, pairwise=True)
