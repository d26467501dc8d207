"""Augmentation and evaluation do not depend on the devices, and their errors name a field."""

import dataclasses

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from vitx.config import default_config
from vitx.config.errors import ConfigError
from vitx.config.fields import AugmentSettings
from vitx.data.images.augment import make_eval_preprocess, make_train_augment

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
EVERYTHING = dict(  # except RandAugment and mixup, see RECIPE and DRAWN
  pad_crop=4,
  hflip=0.5,
  vflip=0.5,
  rotate=15.0,
  color_jitter=(0.4, 0.4, 0.4, 0.1),
  random_erasing=0.5,
  cutmix=1.0,
)
RECIPE = dict(  # that of DeiT, without CutMix
  hflip=0.5,
  randaugment=(2, 9),
  randaugment_probability=0.5,
  randaugment_std=0.5,
  randaugment_operations="increasing",
  random_erasing=0.25,
  random_erasing_fill="noise",
  mixup=0.8,
  mixing="batch",
  interpolation="bicubic",
)
DRAWN = dict(  # each stage draws an interpolation
  random_resized_crop=(0.2, 1.0),
  randaugment=(1, 7),
  interpolation="random",
)
CROPPED = dict(
  random_resized_crop=(0.2, 1.0),
  autoaugment=True,
  color_jitter=(0.1, 0.1, 0, 0),
  interpolation="nearest",
)


def batch(count=8, size=16, channels=3, seed=0):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, (count, size, size, channels), dtype=np.uint8)
  return np.arange(count, dtype=np.int32), images, rng.integers(0, 5, count, dtype=np.int32)


def train(augment, size=16, channels=3, smoothing=0.0):
  return make_train_augment(
    augment,
    image_size=size,
    mean=MEAN[:channels],
    std=STD[:channels],
    num_classes=5,
    label_smoothing=smoothing,
  )


def normalized(images):
  channels = images.shape[-1]
  return (np.asarray(images) / 255 - MEAN[:channels]) / STD[:channels]


def evaluate(images, size, **evaluation):
  settings = {"crop_ratio": 1.0, "interpolation": "bilinear", **evaluation}
  channels = images.shape[-1]
  function = make_eval_preprocess(
    settings, image_size=size, mean=MEAN[:channels], std=STD[:channels]
  )
  return np.asarray(jax.jit(function)(images))


@pytest.mark.parametrize("channels", [1, 3])
def test_with_everything_off_images_are_only_normalized_and_no_key_is_used(channels):
  index, images, labels = batch(channels=channels)
  plain = jax.jit(train(default_config().augment, channels=channels))
  out, targets = plain(None, index, images, labels)
  np.testing.assert_allclose(out, normalized(images), atol=1e-5)
  np.testing.assert_array_equal(targets, np.eye(5)[labels])
  assert out.dtype == targets.dtype == np.float32
  np.testing.assert_allclose(out, evaluate(images, 16), atol=1e-6)


def test_a_decode_size_that_differs_is_resized_as_in_evaluation():
  index, images, labels = batch(size=20)
  out, _ = jax.jit(train({}))(None, index, images, labels)
  np.testing.assert_allclose(out, evaluate(images, 16), atol=1e-6)
  padded, _ = jax.eval_shape(train({"pad_crop": 2}), jax.random.key(0), index, images, labels)
  assert padded.shape == out.shape


def test_flips():
  args, axes = batch(2000, size=4), {"hflip": 2, "vflip": 1}
  settings = [{field: chance} for field in axes for chance in (0.3, 1.0)]
  both = jax.jit(lambda *given: [train(each, size=4)(*given)[0] for each in settings])
  expected, found = normalized(args[1]), both(jax.random.key(0), *args)
  for axis, out, always in zip(axes.values(), found[::2], found[1::2], strict=True):
    flipped = np.isclose(out, np.flip(expected, axis), atol=1e-5).all((1, 2, 3))
    assert (flipped | np.isclose(out, expected, atol=1e-5).all((1, 2, 3))).all()
    assert abs(flipped.sum() - 600) < 4 * np.sqrt(2000 * 0.3 * 0.7)
    np.testing.assert_allclose(always, np.flip(expected, axis), atol=1e-5)


def test_rotation_angles_are_within_the_limit_and_go_both_ways():
  # One bright pixel on the middle line, seven pixels right of the center, shows the angle.
  images = np.zeros((500, 17, 17, 1), np.uint8)
  images[:, 8, 15] = 255
  numbers = np.arange(500, dtype=np.int32)
  rotate = jax.jit(train({"rotate": 30.0}, size=17, channels=1))
  out, _ = rotate(jax.random.key(0), numbers, images, 0 * numbers)
  weight = np.asarray(out[..., 0]) * STD[0] + MEAN[0]
  rows, columns = np.mgrid[:17, :17] - 8
  angle = np.rad2deg(np.arctan2((weight * -rows).sum((1, 2)), (weight * columns).sum((1, 2))))
  assert np.abs(angle).max() < 31 and angle.max() > 27 and angle.min() < -27
  assert abs(angle.mean()) < 4 * 60 / np.sqrt(12 * 500)


def test_erasing_fills_with_the_mean_and_leaves_the_rest():
  index, images, labels = batch(50)
  out, _ = jax.jit(train({"random_erasing": 1.0}))(jax.random.key(0), index, images, labels)
  out = np.asarray(out)
  erased = (out == 0).all(-1)
  assert erased.any((1, 2)).all()
  np.testing.assert_allclose(out[~erased], normalized(images)[~erased], atol=1e-5)


@pytest.mark.slow  # compiles whole recipes
@pytest.mark.parametrize(
  ("augment", "channels"),
  [(EVERYTHING, 3), (CROPPED, 1), (RECIPE, 3), (DRAWN, 3)],
)
def test_a_share_of_a_batch_is_augmented_as_elsewhere_and_the_key_decides(augment, channels):
  """An example is augmented alike wherever it is in a device's share of the batch."""
  args = batch(12, size=20, channels=channels)
  with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
    function = jax.jit(train(augment, channels=channels, smoothing=0.1))
    (images, targets), later, other = (
      [np.asarray(x) for x in function(jax.random.key(seed), *(x[start : start + 8] for x in args))]
      for seed, start in ((7, 0), (7, 4), (8, 0))
    )
  assert images.shape == (8, 16, 16, channels) and images.dtype == targets.dtype == np.float32
  np.testing.assert_allclose(later[0][:4], images[4:], atol=1e-5)
  np.testing.assert_allclose(later[1][:4], targets[4:], atol=1e-6)
  np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)
  assert (np.abs(images - other[0]).max((1, 2, 3)) > 0.1).mean() > 0.7


@pytest.mark.slow  # compiles two augmentations
def test_a_batch_draws_one_share_where_pairs_draw_their_own():
  index, _, labels = batch(64, size=8)
  images = (np.arange(64) * 4).astype(np.uint8)[:, None, None, None]
  images = np.broadcast_to(images, (64, 8, 8, 3))
  shares = {}
  for mixing in ("pair", "batch"):
    function = jax.jit(train({"cutmix": 1.0, "mixing": mixing}, size=8))
    out, targets = function(jax.random.key(4), index, images, labels)
    # The mean of the pixels shows the share of a pair's first image that was kept.
    value = (np.asarray(out) * STD + MEAN).mean((1, 2, 3)) * 255
    shares[mixing] = 1 - (value[::2] - 8 * np.arange(32)) / 4
    other = labels[::2] != labels[1::2]
    own = np.asarray(targets)[::2][np.arange(32), labels[::2]]
    np.testing.assert_allclose(own[other], shares[mixing][other], atol=1e-3)
  assert np.ptp(shares["batch"]) < 1e-3 and np.ptp(shares["pair"]) > 0.2


@pytest.mark.slow  # compiles for two devices
def test_what_a_batch_draws_is_the_same_on_two_devices():
  augment = dict(hflip=0.5, cutmix=1.0, mixing="batch", random_erasing=0.5)
  function, args = train(augment | {"random_erasing_fill": "noise"}, size=8), batch(8, size=8)
  one, two = jax.jit(function), jax.pmap(function, in_axes=(None, 0, 0, 0))
  halves = [x.reshape(2, 4, *x.shape[1:]) for x in args]
  for key in map(jax.random.key, (1, 2)):
    for a, b in zip(one(key, *args), two(key, *halves), strict=True):
      np.testing.assert_allclose(np.asarray(b).reshape(a.shape), a, atol=1e-5)


@pytest.mark.slow  # compiles an augmentation of 64 images
def test_a_batch_draws_either_mixing_by_its_key():
  """A batch draws mixup or CutMix for all its images, each equally often."""
  args = batch(4, size=8)
  function = jax.jit(train({"mixup": 1.0, "cutmix": 1.0, "mixing": "batch"}, size=8))
  values = normalized(args[1])
  blended = []
  for seed in range(60):
    out = np.asarray(function(jax.random.key(seed), *args)[0])
    pairs = np.isclose(out, values, atol=1e-5) | np.isclose(out, values[[1, 0, 3, 2]], atol=1e-5)
    blended.append(not pairs.all())
  assert abs(sum(blended) - 30) < 4 * np.sqrt(15)


def test_operations_draw_independently():
  index, images, labels = batch(1000, size=4)
  function = jax.jit(train({"hflip": 0.5, "vflip": 0.5}, size=4))
  out, _ = function(jax.random.key(0), index, images, labels)
  for axes in [(), (1,), (2,), (1, 2)]:
    same = np.isclose(out, np.flip(normalized(images), axes), atol=1e-5).all((1, 2, 3))
    assert abs(same.sum() - 250) < 4 * np.sqrt(1000 * 3 / 16)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["mixup", "cutmix"])
def test_the_two_of_a_global_pair_share_what_they_draw(field):
  index, images, labels = batch(8)
  function = jax.jit(train({field: 1.0}))
  out, targets = map(np.asarray, function(jax.random.key(0), index + 6, images, labels))
  before = normalized(images)
  np.testing.assert_allclose(out[::2] + out[1::2], before[::2] + before[1::2], atol=1e-5)
  assert (np.abs(out - before).max((1, 2, 3)) > 0.01).all()
  onehot = np.eye(5)[labels]
  np.testing.assert_allclose(targets[::2] + targets[1::2], onehot[::2] + onehot[1::2], atol=1e-6)
  moved = index + 12, np.roll(images, 2, axis=0), np.roll(labels, 2)
  np.testing.assert_allclose(function(jax.random.key(0), *moved)[0][:2], out[6:], atol=1e-6)


def test_an_operation_draws_the_same_whatever_else_is_on():
  key, args = jax.random.key(0), batch(64)
  flipped, _ = jax.jit(train({"hflip": 0.5}))(key, *args)
  both, _ = jax.jit(train({"hflip": 0.5, "color_jitter": (0.0, 0.2, 0.0, 0.0), "vflip": 1e-9}))(
    key, *args
  )
  for a, b in zip(flipped, both, strict=True):
    assert np.corrcoef(np.ravel(a), np.ravel(b))[0, 1] > 0.9  # one flip, but for the contrast


@pytest.mark.parametrize(
  ("augment", "message"),
  [
    (dict(rotate=200.0), r"augment\.rotate=200\.0.* must lie in \[0, 180\]"),
    (dict(pad_crop=16), r"augment\.pad_crop=16 must be smaller than the image size 16"),
    (dict(random_resized_crop=(0.5,)), r"random_resized_crop=\(0\.5,\) must have 2 values"),
    (dict(random_resized_crop=(0.9, 0.2)), r"random_resized_crop=\(0\.9, 0\.2\)"),
    (dict(random_resized_crop=(0.0, 1.0)), r"random_resized_crop\[0\]=0\.0 is out of range"),
    (dict(pad_crop=2, random_resized_crop=(0.5, 1)), r"pad_crop=2 and augment.* both on"),
    (dict(color_jitter=(0.4, 0.4, 0.4)), r"color_jitter=\(0\.4, 0\.4, 0\.4\) must have 4 values"),
    (dict(color_jitter=(0.4, 0.4, 0.4, 0.7)), r"color_jitter: hue=0\.7 .* in \[0, 0\.5\]"),
    (dict(randaugment=(2, 11)), r"randaugment: magnitude=11 .* must lie in \[0, 10\]"),
    (dict(randaugment=(0, 5)), r"randaugment: number of operations=0"),
    (
      dict(randaugment=(2, 5), autoaugment=True),
      r"autoaugment=True and augment.*Set autoaugment to False or",
    ),
    (
      dict(randaugment=(2, 9), randaugment_operations="increasing", interpolation="nearest"),
      r"randaugment_operations='increasing'.*augment\.interpolation='nearest'.*bilinear",
    ),
    (dict(cutmiks=1.0), r"augment\.cutmiks=1\.0.*Did you mean 'cutmix'"),
  ],
)
def test_settings_that_cannot_work_are_named(augment, message):
  with pytest.raises(ConfigError, match=message):
    train(ConfigDict(augment))


@pytest.mark.parametrize("amounts", [(0, 0, 0.4, 0), (0, 0, 0, 0.1)])
def test_one_channel_has_neither_saturation_nor_hue(amounts):
  with pytest.raises(ConfigError, match="needs images of 3 channels, but these have 1"):
    train({"color_jitter": amounts}, channels=1)
  train({"color_jitter": (0.4, 0.4, 0, 0)}, channels=1)


def test_other_errors_name_their_field():
  index, images, labels = batch(5)
  with pytest.raises(ConfigError, match=r"augment\.mixup.*must be even, but it is 5"):
    jax.eval_shape(train({"mixup": 0.5}), jax.random.key(0), index, images, labels)
  with pytest.raises(ConfigError, match=r"data\.mean and data\.std have 1 values.*3 channels"):
    train({}, channels=1)(None, index, images, labels)
  with pytest.raises(ValueError, match=r"images=float32 .* must be uint8"):
    evaluate(images.astype(np.float32), 16)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_agrees_with_pillow(interpolation, channels):
  _, images, _ = batch(2, size=40, channels=channels)
  out = evaluate(images, 28, crop_ratio=0.875, interpolation=interpolation)
  method = getattr(Image.Resampling, interpolation.upper())
  for c in range(channels):
    for before, after in zip(images[..., c].astype(np.float32), out[..., c], strict=True):
      resized = Image.fromarray(before).resize((32, 32), method)
      expected = np.clip(np.asarray(resized)[2:30, 2:30], 0, 255)
      np.testing.assert_allclose(255 * (after * STD[c] + MEAN[c]), expected, atol=0.01)


VALUES = (-1, 0, 1e9, float("nan"), "text", True, (-1.0, 2.0), (float("nan"),) * 4, ("a", "b"))
FIELDS = [field.name for field in dataclasses.fields(AugmentSettings)]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", VALUES)
def test_any_value_of_any_field_traces_or_is_named(field, value):
  try:
    out, _ = jax.eval_shape(train({field: value}), jax.random.key(0), *batch(2))
  except ConfigError as error:
    assert f"augment.{field}" in str(error) and "\n" not in str(error)
  else:
    assert out.shape == (2, 16, 16, 3)


@pytest.mark.slow  # compiles the sampler of beta shares
def test_mixing_shares_of_a_huge_alpha_are_halves():
  out, targets = jax.jit(train({"mixup": 1e9}))(jax.random.key(0), *batch(2))
  targets = np.asarray(targets)
  np.testing.assert_allclose(targets.sum(0) / 2, targets[0], atol=1e-3)
  assert np.isfinite(out).all()


@pytest.mark.parametrize("field", ["crop_ratio", "interpolation"])
@pytest.mark.parametrize("value", VALUES)
def test_any_value_of_evaluation_is_named(field, value):
  with pytest.raises(ConfigError, match=rf"^evaluation\.{field}=[^\n]*$"):
    evaluate(batch(2)[1], 16, **{field: value})


def test_an_evaluation_that_memory_cannot_hold_is_refused():
  with pytest.raises(ConfigError, match=r"evaluation\.crop_ratio=0\.001: an image of 256,000,000"):
    evaluate(batch(2)[1], 16, crop_ratio=0.001)


@pytest.mark.parametrize("stored", [(24, 16), (30, 50)])
@pytest.mark.parametrize("settings", [{}, EVERYTHING, RECIPE, DRAWN, CROPPED])
def test_rectangles_pass_every_stage(stored, settings):
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (8, *stored, 3), dtype=np.uint8)
  labels = index = np.arange(8, dtype=np.int32) % 5
  apply = train(settings, (24, 16))
  out, _ = jax.eval_shape(apply, jax.random.key(0), index, images, labels)
  assert out.shape == (8, 24, 16, 3)


def test_evaluation_cuts_the_middle_of_a_rectangle():
  images = np.random.default_rng(0).integers(0, 256, (2, 32, 24, 3), dtype=np.uint8)
  found = evaluate(images, (24, 18), crop_ratio=0.75)
  np.testing.assert_allclose(found, normalized(images[:, 4:28, 3:21]), atol=1e-6)
  assert evaluate(images, (12, 18)).shape == (2, 12, 18, 3)


def test_a_rectangle_is_cropped_by_less_than_its_short_side():
  train({"pad_crop": 7}, (24, 8))
  with pytest.raises(ConfigError, match=r"augment\.pad_crop=8 must be smaller than"):
    train({"pad_crop": 8}, (24, 8))
