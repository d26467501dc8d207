"""Prediction: files and arrays of every kind, and the same answers as the evaluation's."""

import csv
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vitx
from tests import runs
from vitx.cli import predict
from vitx.cli.evaluate import evaluate
from vitx.data.images.decode import resize
from vitx.data.sources import open_source
from vitx.errors import ConfigError
from vitx.tasks import build_task


@pytest.fixture(scope="module")
def run(finished_run):
  return finished_run[0]


@pytest.fixture(scope="module")
def loaded(run):
  return vitx.load(run)


@pytest.fixture(scope="module")
def color(loaded):
  """An untrained model of RGB images."""
  config = loaded.config.copy_and_resolve_references()
  config.data.update(channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.2))
  task = build_task(config)
  variables = task.init(jax.random.key(0), {"image": np.zeros((1, 8, 8, 3), np.uint8)})
  return dataclasses.replace(loaded, task=task, config=config, variables=variables)


@pytest.fixture(scope="module")
def digits(run):
  """uint8 (359, 8, 8, 1)."""
  test = open_source(runs.tiny().data, seed=0).test
  return np.stack([test[i]["image"] for i in range(len(test))])


def test_agrees_with_the_evaluation(run, loaded, digits, tmp_path):
  evaluate(run, predictions=tmp_path / "p.csv")
  with open(tmp_path / "p.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  expected = np.array([[row[f"p({name})"] for name in loaded.class_names] for row in rows], float)
  result = vitx.predict(loaded, digits)  # 359 images: several chunks, the last not full
  assert result.probabilities.shape == (359, 10) and result.probabilities.dtype == np.float32
  np.testing.assert_allclose(result.probabilities, expected, rtol=1e-5, atol=1e-7)
  assert result.classes == [row["prediction"] for row in rows]
  assert len(set(result.classes)) > 1


def test_a_workdir_a_list_a_path_and_one_array_say_the_same(run, loaded, digits, tmp_path):
  chosen = digits[:5]
  expected = vitx.predict(loaded, chosen).probabilities
  paths = [tmp_path / f"{i}.png" for i in range(5)]
  for path, image in zip(paths, chosen, strict=True):
    Image.fromarray(image[..., 0]).save(path)
  mixed = [str(paths[0]), chosen[1], chosen[2][..., 0], jnp.asarray(chosen[3]), Path(paths[4])]
  for model, images in (
    (run, chosen),
    (str(run), list(chosen)),
    (loaded, jnp.asarray(chosen)),
    (loaded, paths),
    (loaded, tuple(mixed)),
  ):
    np.testing.assert_array_equal(vitx.predict(model, images).probabilities, expected)


def test_each_image_is_predicted_alone(loaded, digits):
  together = vitx.predict(loaded, digits[:70]).probabilities
  for i in (0, 3, 63, 64, 69):
    alone = vitx.predict(loaded, digits[i : i + 1]).probabilities
    np.testing.assert_allclose(alone[0], together[i], rtol=1e-5, atol=1e-7)


def test_images_of_various_sizes_are_resized_as_in_training(loaded):
  rng = np.random.default_rng(0)
  images = [rng.integers(0, 256, (h, w, 1), np.uint8) for h, w in ((8, 8), (31, 12), (5, 40))]
  square = np.stack([resize(image, 8, "center") for image in images])
  np.testing.assert_array_equal(
    vitx.predict(loaded, images).probabilities, vitx.predict(loaded, square).probabilities
  )


@pytest.mark.slow
def test_files_of_every_mode(loaded, color, tmp_path):
  gray = np.random.default_rng(1).integers(0, 256, (10, 12), np.uint8)
  rgb = np.random.default_rng(2).integers(0, 256, (10, 12, 3), np.uint8)
  image = Image.fromarray(rgb)
  image.putalpha(Image.fromarray(gray))
  image.save(tmp_path / "alpha.png")
  Image.fromarray(gray).save(tmp_path / "gray.png")
  Image.fromarray(gray).convert("P").save(tmp_path / "palette.png")
  opaque = np.dstack([rgb, np.full((10, 12), 255, np.uint8)])
  Image.fromarray(opaque).save(tmp_path / "opaque.png")
  Image.fromarray(rgb).save(tmp_path / "rgb.bmp")
  predict = lambda model, *images: vitx.predict(model, images).probabilities  # noqa: E731
  as_files = predict(color, *(tmp_path / f"{n}.png" for n in ("gray", "palette", "opaque")))
  as_arrays = predict(color, np.repeat(gray[..., None], 3, 2), np.dstack([gray] * 3), rgb)
  np.testing.assert_array_equal(as_files, as_arrays)
  share = gray[..., None] / 255
  on_white = np.round(rgb * share + 255 * (1 - share)).astype(np.uint8)
  np.testing.assert_allclose(
    predict(color, tmp_path / "alpha.png"), predict(color, on_white), atol=1e-3
  )
  two = predict(loaded, tmp_path / "gray.png", tmp_path / "rgb.bmp")  # color becomes gray
  luma = np.asarray(Image.fromarray(rgb).convert("L"))
  np.testing.assert_array_equal(two, predict(loaded, gray, luma))


def test_photographs_are_turned_upright(color, tmp_path):
  rgb = np.random.default_rng(3).integers(0, 256, (8, 8, 3), np.uint8)
  exif = Image.Exif()
  exif[0x0112] = 3  # upside down
  Image.fromarray(rgb[::-1, ::-1]).save(tmp_path / "turned.png", exif=exif)
  np.testing.assert_array_equal(
    vitx.predict(color, [tmp_path / "turned.png"]).probabilities,
    vitx.predict(color, [rgb]).probabilities,
  )


@pytest.mark.parametrize("none", [[], np.zeros((0, 8, 8, 1), np.uint8)])
def test_no_images(loaded, none):
  result = vitx.predict(loaded, none)
  assert result.probabilities.shape == (0, 10) and result.classes == []


def test_a_model_is_compiled_once(loaded, digits, monkeypatch):
  vitx.predict(loaded, digits[:4])
  monkeypatch.setattr(predict.jax, "jit", lambda f: pytest.fail("compiled again"))
  vitx.predict(loaded, digits[:4])


@pytest.mark.parametrize(
  ("images", "message"),
  [
    ([np.zeros((8, 8, 1))], r"image 0 must be uint8 \(height, width, 1\), not float64 \(8, 8, 1\)"),
    (
      [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.uint8)],
      r"image 1 .* not uint8 \(8, 8, 3\)",
    ),
    (np.zeros((2, 8, 8, 3), np.uint8), r"image 0 must be uint8 \(height, width, 1\)"),
    (np.zeros((8, 8, 1), np.uint8), r"array of shape \(8, 8, 1\); one input is a list of one"),
    ("digit.png", r"must be a list .* not 'digit.png'; one input is a list of one"),
    (
      [Image.new("L", (8, 8))],
      r"input 0 must be a dict of arrays or the path of a file, not Image",
    ),
    ([3], r"not int"),
  ],
)
def test_what_is_no_image(loaded, images, message):
  with pytest.raises(ValueError, match=message):
    vitx.predict(loaded, images)


def test_unreadable_files_are_named(loaded, tmp_path):
  with pytest.raises(ConfigError, match=r"absent.png' cannot be read: .*No such file"):
    vitx.predict(loaded, [tmp_path / "absent.png"])
  (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
  with pytest.raises(ConfigError, match=r"torn.png cannot be read as an image"):
    vitx.predict(loaded, [tmp_path / "torn.png"])
  with pytest.raises(ConfigError, match="is no workdir"):
    vitx.predict(tmp_path, [])
