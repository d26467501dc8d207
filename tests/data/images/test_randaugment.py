"""The increasing operations agree with timm, and RandAugment has the stated distribution."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.data.examples import GOLDEN
from tests.slow import all_but
from vitx.data.images import randaugment
from vitx.data.images.randaugment import OPERATIONS, Sampler

POLICY = json.loads(str(GOLDEN["policy"]))
PICTURE = GOLDEN["picture"]
TIMM = {
  "autocontrast": "AutoContrast",
  "equalize": "Equalize",
  "invert": "Invert",
  "rotate": "Rotate",
  "posterize": "PosterizeIncreasing",
  "solarize": "SolarizeIncreasing",
  "solarize_add": "SolarizeAdd",
  "color": "ColorIncreasing",
  "contrast": "ContrastIncreasing",
  "brightness": "BrightnessIncreasing",
  "sharpness": "SharpnessIncreasing",
  "shear_x": "ShearX",
  "shear_y": "ShearY",
  "translate_x": "TranslateXRel",
  "translate_y": "TranslateYRel",
}
EXACT = {"posterize", "solarize", "solarize_add", "equalize", "invert"}
SHARES = np.array([0.485, 0.456, 0.406])  # in 8 bits they are POLICY["mean"]


@jax.jit
def operate(name, level, cubic):
  fill = np.array(POLICY["mean"], np.float32)
  return randaugment.operate(jnp.asarray(PICTURE, jnp.float32), name, level, cubic, fill)


def result(name, level, cubic=False):
  return np.asarray(operate(np.int32(OPERATIONS.index(name)), np.float32(level / 10), cubic))


def test_the_policy_matches_timm():
  assert set(OPERATIONS) == {*TIMM, "identity"} and OPERATIONS[-1] == "identity"
  assert set(POLICY["names"]) == set(TIMM.values()) and len(POLICY["names"]) == 15
  settings = {name: POLICY[name] for name in ("count", "magnitude", "magnitude_std", "probability")}
  assert Sampler(**settings) == Sampler(2, 9, 0.5, 0.5)


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", TIMM)
def test_operations_agree_with_timm(name, how):
  for sign in (1, -1):
    recorded = GOLDEN[f"{TIMM[name]}/{how}/{sign}"].astype(int)
    for level, expected in zip(POLICY["levels"], recorded, strict=True):
      out = result(name, sign * level, how == "bicubic")
      error = np.abs(out - expected)
      assert error.max() <= (0 if name in EXACT else 1), level
      # Positions and products in float32 fall on the other side of a whole number now and then.
      assert (error > 0).mean() < 0.03, level
  if name in EXACT | {"autocontrast"}:
    np.testing.assert_array_equal(recorded, GOLDEN[f"{TIMM[name]}/{how}/1"])  # no direction


def test_the_identity_keeps_the_image():
  for cubic in (False, True):
    np.testing.assert_array_equal(result("identity", 9.0, cubic), PICTURE)


@pytest.mark.slow  # compiles 15 operations
@pytest.mark.parametrize("interpolation", all_but("random", of=("bilinear", "bicubic", "random")))
def test_an_interpolation_is_fixed_or_drawn_for_each_operation(interpolation):
  """Each image has one operation; rotations by one angle show how they were sampled."""
  image = jnp.asarray(PICTURE, jnp.float32) / 255

  def one(key):
    return randaugment.increasing(key, image, Sampler(1, 10.0), interpolation, tuple(SHARES))

  out = 255 * np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), 200)))
  counts = {
    how: sum(
      int((np.abs(out - result("rotate", level, how == "bicubic")).mean((1, 2, 3)) < 0.01).sum())
      for level in (10.0, -10.0)
    )
    for how in ("bilinear", "bicubic")
  }
  assert 4 < sum(counts.values()) < 30
  for how, count in counts.items():
    assert (count > 0) == (interpolation in (how, "random"))


def drawn(draws, count=4000):
  keys = jax.random.split(jax.random.key(0), count)
  vmapped = jax.jit(jax.vmap(lambda key: draws(key, 15)))
  return [np.asarray(x).ravel() for x in vmapped(keys)]


def test_operations_strengths_signs_and_chances_are_drawn_independently():
  operations, strengths, applied = drawn(Sampler(2, 9, 0.5, 0.5))
  assert stats.chisquare(np.bincount(operations, minlength=15)).pvalue > 1e-3
  assert abs(applied.mean() - 0.5) < 4 * 0.5 / np.sqrt(8000)
  assert abs((strengths > 0).mean() - 0.5) < 4 * 0.5 / np.sqrt(8000)
  size = np.abs(strengths)
  assert (size[size < 1] >= 0).all() and size.max() == 1
  # Clipped at 1, two deviations above: what lies below is the normal distribution.
  assert abs((size == 1).mean() - stats.norm.sf(2)) < 4 * np.sqrt(0.0228 / 8000)
  below = stats.truncnorm(-18, 2, loc=0.9, scale=0.05)
  assert stats.kstest(size[size < 1].astype(np.float64), below.cdf).pvalue > 1e-3
  for a, b in (
    (operations, size),
    (operations, applied),
    (size, applied),
    (strengths > 0, applied),
  ):
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(8000)


def test_operations_without_noise_have_one_level():
  operations, strengths, applied = drawn(Sampler(2, 7.0), 50)
  assert applied.all() and set(np.abs(strengths)) == {np.float32(0.7)}
  more, _, _ = drawn(Sampler(2, 7.0, 0.5, 0.3), 50)
  np.testing.assert_array_equal(operations, more)  # other draws do not change which operations
