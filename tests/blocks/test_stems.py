"""Stems: the sizes of their token grids, and the operations between their convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.blocks.stems import STEMS
from vitx.config.errors import ConfigError

IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


@pytest.mark.parametrize(
  ("fields", "grid"),
  [
    ({"name": "linear", "patch": 2}, (4, 4)),
    ({"name": "linear", "patch": 2, "stride": 1}, (7, 7)),
    ({"name": "hybrid"}, (8, 8)),
    ({"name": "hybrid", "strides": (2, 1, 1)}, (4, 4)),
    ({"name": "hybrid", "channels": (), "kernel": 7, "strides": (4,)}, (2, 2)),
    ({"name": "shifted_patch", "patch": 2}, (4, 4)),
    ({"name": "cct"}, (2, 2)),
    ({"name": "cct", "channels": (8, 8), "strides": (2, 1, 1), "pool_stride": 1}, (4, 4)),
  ],
)
def test_grids(fields, grid):
  stem = STEMS[fields["name"]](width=6, **{k: v for k, v in fields.items() if k != "name"})
  tokens, _ = jax.eval_shape(lambda x: stem.init_with_output(jax.random.key(0), x), IMAGES)
  assert tokens.shape == (2, *grid, 6)


def test_the_hybrid_stem_is_bare():
  """The hybrid stem has convolutions without activations, and so is an affine map."""
  stem = STEMS["hybrid"](width=6)
  variables = jax.jit(stem.init)(jax.random.key(0), IMAGES)
  apply = lambda x: stem.apply(variables, x)  # noqa: E731
  a, b = IMAGES[:1], IMAGES[1:]
  np.testing.assert_allclose(apply(a + b) - apply(b), apply(a) - apply(0 * a), atol=1e-5)
  assert set(variables["params"]["conv_2"]) == {"kernel", "bias"}


def shifted(image, patch, shift, directions):
  """Returns the normalized patches of an image and its shifted copies, pixel by pixel."""
  straight, slanted = [(0, 1), (0, -1), (1, 0), (-1, 0)], [(1, 1), (1, -1), (-1, 1), (-1, -1)]
  moves = {"cardinal": straight, "diagonal": slanted, "all": straight + slanted}[directions]
  side, channels = len(image), image.shape[-1]

  def pixel(row, column):
    inside = 0 <= row < side and 0 <= column < side
    return image[row, column] if inside else np.zeros(channels)

  found = []
  for top in range(0, side, patch):
    for left in range(0, side, patch):
      patches = [
        pixel(row - down * shift, column - across * shift)
        for row in range(top, top + patch)
        for column in range(left, left + patch)
        for down, across in [(0, 0), *moves]
      ]
      vector = np.concatenate(patches)
      found.append((vector - vector.mean()) / np.sqrt(vector.var() + 1e-5))
  return np.reshape(found, (side // patch, side // patch, -1))


@pytest.mark.parametrize(
  ("fields", "shift", "directions"),
  [
    ({"patch": 4}, 2, "diagonal"),  # Lee et al.
    ({"patch": 4, "shift": 1, "directions": "cardinal"}, 1, "cardinal"),  # vit-pytorch
    ({"patch": 2, "shift": 5, "directions": "all"}, 5, "all"),
  ],
)
def test_shifted_patches_by_pixel(fields, shift, directions):
  stem = STEMS["shifted_patch"](width=6, **fields)
  variables = jax.jit(stem.init)(jax.random.key(0), IMAGES)
  weights = variables["params"]["embed"]
  assert set(variables["params"]["norm"]) == {"scale", "bias"}
  for image, tokens in zip(IMAGES, jax.jit(stem.apply)(variables, IMAGES), strict=True):
    patches = shifted(image.astype(np.float64), fields["patch"], shift, directions)
    np.testing.assert_allclose(tokens, patches @ weights["kernel"] + weights["bias"], atol=2e-5)


def test_half_a_patch_must_be_a_pixel():
  stem = STEMS["shifted_patch"](width=6, patch=1)
  with pytest.raises(ConfigError, match=r"shift=None is half a patch.*set model.stem.shift=1"):
    jax.eval_shape(stem.init, jax.random.key(0), jnp.asarray(IMAGES))
  stem = STEMS["shifted_patch"](width=6, patch=4, shift=8)
  with pytest.raises(ConfigError, match=r"shift=8 moves all pixels out .* 8 x 8; .* such as 2,"):
    stem.init(jax.random.key(0), np.zeros((1, 8, 8, 1), np.float32))
  stem = STEMS["shifted_patch"](width=6, patch=3)
  with pytest.raises(ConfigError, match=r"patch=3 does not divide the image of 8 x 8"):
    jax.eval_shape(stem.init, jax.random.key(0), jnp.asarray(IMAGES))


@pytest.mark.slow
def test_the_tokenizer_takes_maxima_of_what_is_not_negative():
  stem = STEMS["cct"](width=6, channels=(), pool_stride=1)
  tokens, variables = stem.init_with_output(jax.random.key(0), IMAGES)
  assert set(variables["params"]["conv_0"]) == {"kernel"}
  conv = jax.lax.conv_general_dilated(
    IMAGES,
    variables["params"]["conv_0"]["kernel"],
    (1, 1),
    "SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )
  padded = np.pad(np.maximum(conv, 0), ((0, 0), (1, 1), (1, 1), (0, 0)))
  shifts = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
  np.testing.assert_allclose(tokens, np.max(shifts, axis=0), atol=1e-6)


def test_strides_must_fit():
  stem = STEMS["cct"](width=6, channels=(4,), strides=(2,))
  with pytest.raises(ConfigError, match=r"strides=\(2,\).*one entry.*channels=\(4, 6\)"):
    jax.eval_shape(stem.init, jax.random.key(0), jnp.asarray(IMAGES))
