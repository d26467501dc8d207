"""Stems: the sizes of their token grids, and the operations between their convolutions."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.blocks.stems import STEMS
from vitx.config.errors import ConfigError

IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


@pytest.mark.parametrize(
  ("fields", "grid"),
  [
    ({"name": "linear", "patch": 2}, (4, 4)),
    ({"name": "linear", "patch": 2, "stride": 1}, (7, 7)),
    ({"name": "linear", "patch": 4, "stride": 2}, (3, 3)),
    ({"name": "linear", "patch": 3, "stride": 1}, (6, 6)),  # 3 does not divide 8
    ({"name": "hybrid"}, (8, 8)),
    ({"name": "hybrid", "strides": (2, 1, 1)}, (4, 4)),
    ({"name": "hybrid", "channels": (), "kernel": 7, "strides": (4,)}, (2, 2)),
    ({"name": "shifted_patch", "patch": 2}, (4, 4)),
    ({"name": "cct"}, (2, 2)),
    ({"name": "normalized", "strides": (2, 1, 1), "whitening": 3, "patch": 1}, (3, 3)),
    ({"name": "cct", "channels": (8, 8), "strides": (2, 1, 1), "pool_stride": 1}, (4, 4)),
  ],
)
def test_stems_make_grids_of_these_sizes(fields, grid):
  stem = STEMS[fields["name"]](width=6, **{k: v for k, v in fields.items() if k != "name"})
  tokens, _ = jax.eval_shape(lambda x: stem.init_with_output(jax.random.key(0), x), IMAGES)
  assert tokens.shape == (2, *grid, 6)


def test_the_hybrid_stem_is_an_affine_map():
  """The hybrid stem has convolutions without activations, and so is an affine map."""
  stem = STEMS["hybrid"](width=6)
  variables = draw_variables(stem.init, IMAGES, scale=0.1)
  apply = jax.jit(partial(stem.apply, variables))
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

  vectors = []
  for top in range(0, side, patch):
    for left in range(0, side, patch):
      patches = [
        pixel(row - down * shift, column - across * shift)
        for row in range(top, top + patch)
        for column in range(left, left + patch)
        for down, across in [(0, 0), *moves]
      ]
      vector = np.concatenate(patches)
      vectors.append((vector - vector.mean()) / np.sqrt(vector.var() + 1e-5))
  return np.reshape(vectors, (side // patch, side // patch, -1))


@pytest.mark.parametrize(
  ("fields", "shift", "directions"),
  [
    ({"patch": 4}, 2, "diagonal"),  # Lee et al.
    ({"patch": 4, "shift": 1, "directions": "cardinal"}, 1, "cardinal"),  # vit-pytorch
    ({"patch": 2, "shift": 5, "directions": "all"}, 5, "all"),
  ],
)
def test_shifted_patches_equal_their_definition_by_pixels(fields, shift, directions):
  stem = STEMS["shifted_patch"](width=6, **fields)
  variables = jax.jit(stem.init)(jax.random.key(0), IMAGES)
  weights = variables["params"]["embed"]
  assert set(variables["params"]["norm"]) == {"scale", "bias"}
  for image, tokens in zip(IMAGES, jax.jit(stem.apply)(variables, IMAGES), strict=True):
    patches = shifted(image.astype(np.float64), fields["patch"], shift, directions)
    np.testing.assert_allclose(tokens, patches @ weights["kernel"] + weights["bias"], atol=2e-5)


REFUSED = [
  ("shifted_patch", {"patch": 1}, ConfigError, "shift=0"),
  ("shifted_patch", {"patch": 4, "shift": 8}, ConfigError, "shift=8"),
  ("shifted_patch", {"patch": 3}, ConfigError, "patch=3 does not divide the image of 8 x 8"),
  ("linear", {"patch": 4, "stride": 3}, ConfigError, "at a stride of 3 .* such as 7 or 10,"),
  ("cct", {"channels": (4,), "strides": (2,)}, ValueError, "zip"),
]


@pytest.mark.parametrize(("name", "fields", "error", "message"), REFUSED)
def test_a_stem_that_would_lose_pixels_is_refused(name, fields, error, message):
  with pytest.raises(error, match=message):
    jax.eval_shape(STEMS[name](width=6, **fields).init, jax.random.key(0), IMAGES)
