"""Augmentation and evaluation do not depend on the devices, and their errors name a field."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from vitx.config import default_config
from vitx.config.errors import ConfigError
from vitx.config.fields import EvaluationSettings
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
  random_resized_crop=(0.2, 1.0), randaugment=(1, 7), interpolation="random"
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
  channels = images.shape[-1]
  function = make_eval_preprocess(
    EvaluationSettings(**evaluation), image_size=size, mean=MEAN[:channels], std=STD[:channels]
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


def test_flips_happen_with_their_probability():
  args, axes = batch(2000, size=4), {"hflip": 2, "vflip": 1}
  settings = [{field: chance} for field in axes for chance in (0.3, 1.0)]
  both = jax.jit(lambda *arrays: [train(field, size=4)(*arrays)[0] for field in settings])
  expected, outputs = normalized(args[1]), both(jax.random.key(0), *args)
  for axis, out, always in zip(axes.values(), outputs[::2], outputs[1::2], strict=True):
    flipped = np.isclose(out, np.flip(expected, axis), atol=1e-5).all((1, 2, 3))
    assert (flipped | np.isclose(out, expected, atol=1e-5).all((1, 2, 3))).all()
    assert abs(flipped.sum() - 600) < 4 * np.sqrt(2000 * 0.3 * 0.7)
    np.testing.assert_allclose(always, np.flip(expected, axis), atol=1e-5)


def test_images_of_odd_parity_are_flipped_if_flips_alternate():
  arrays, parity = batch(), np.array([0, 1, 1, 0, 1, 0, 0, 1], np.int32)
  out, _ = jax.jit(train({"alternate_flips": True}))(None, *arrays, parity)
  images = [np.flip(x, 1) if p else x for x, p in zip(arrays[1], parity, strict=True)]
  np.testing.assert_allclose(out, normalized(np.stack(images)), atol=1e-5)


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
  ("augment", "channels"), [(EVERYTHING, 3), (CROPPED, 1), (RECIPE, 3), (DRAWN, 3)]
)
def test_an_example_is_augmented_alike_anywhere_in_a_batch(augment, channels):
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
def test_a_batch_draws_one_share_and_pairs_draw_their_own():
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
    weights = np.asarray(targets)[::2][np.arange(32), labels[::2]]
    np.testing.assert_allclose(weights[other], shares[mixing][other], atol=1e-3)
  assert np.ptp(shares["batch"]) < 1e-3 and np.ptp(shares["pair"]) > 0.2


def test_operations_draw_independently():
  index, images, labels = batch(1000, size=4)
  function = jax.jit(train({"hflip": 0.5, "vflip": 0.5}, size=4))
  out, _ = function(jax.random.key(0), index, images, labels)
  for axes in [(), (1,), (2,), (1, 2)]:
    same = np.isclose(out, np.flip(normalized(images), axes), atol=1e-5).all((1, 2, 3))
    assert abs(same.sum() - 250) < 4 * np.sqrt(1000 * 3 / 16)


def test_an_operation_draws_independently_of_other_settings():
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
    (dict(pad_crop=8), r"augment\.pad_crop=8 must be smaller than the image size 8"),
    (dict(random_resized_crop=(0.9, 0.2)), r"random_resized_crop=\(0\.9, 0\.2\)"),
    (dict(pad_crop=2, random_resized_crop=(0.5, 1)), r"pad_crop and random_resized_crop excl"),
    (dict(hflip=0.5, alternate_flips=True), "hflip and alternate_flips exclude each other"),
    (dict(color_jitter=(0.4, 0.4, 0.4)), r"color_jitter=\(0\.4, 0\.4, 0\.4\) must have 4 entries"),
    (dict(color_jitter=(0.4, 0.4, 0.4, 0.7)), r"color_jitter\[3\]=0\.7 .* in \[0, 0\.5\]"),
    (dict(color_jitter=(0, 0, 0.4, 0)), "color_jitter needs 3 channels for saturation"),
    (dict(randaugment=(2, 11)), r"randaugment\[1\]=11 .* must lie in \[0, 10\]"),
    (dict(randaugment=(2, 5), autoaugment=True), "autoaugment and randaugment exclude"),
    (
      dict(randaugment=(2, 9), randaugment_operations="increasing", interpolation="nearest"),
      r"interpolation='nearest' excludes randaugment_operations='increasing'",
    ),
  ],
)
def test_settings_that_cannot_work_are_refused(augment, message):
  with pytest.raises(ConfigError, match=message):
    train(ConfigDict(augment), size=(24, 8), channels=1)


def test_batches_of_another_form_are_refused():
  index, images, labels = batch(5)
  with pytest.raises(TypeError, match="reshape"):  # pairs of an odd batch
    jax.eval_shape(train({"mixup": 0.5}), jax.random.key(0), index, images, labels)
  with pytest.raises(ConfigError, match=r"must be uint8 \(B, height, width, 1\)"):
    train({}, channels=1)(None, index, images, labels)
  with pytest.raises(ConfigError, match=r"images=float32 .* must be uint8"):
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
  output = evaluate(images, (24, 18), crop_ratio=0.75)
  np.testing.assert_allclose(output, normalized(images[:, 4:28, 3:21]), atol=1e-6)
  assert evaluate(images, (12, 18)).shape == (2, 12, 18, 3)
