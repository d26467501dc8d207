"""A user's own folder of images: training, evaluation and prediction."""

import dataclasses

import jax
import numpy as np
import pytest
from PIL import Image

import vitx
from tests import runs
from vitx.config.errors import ConfigError
from vitx.config.settings import change
from vitx.tasks.base import find_layout
from vitx.training import compilation, loop
from vitx.training.experiment import make_experiment

CLASSES = ("bright", "dark", "striped")
PER_CLASS = 24


def pixels(class_name, rng):
  """Returns an image, uint8 (height, width, 3), with sides from 9 to 40."""
  height, width = rng.integers(9, 41, 2)
  level = {"bright": 215, "dark": 40, "striped": 128}[class_name]
  image = np.full((height, width, 3), level) + rng.integers(-25, 26, (height, width, 3))
  if class_name == "striped":
    image[: height // 2] += 90
    image[height // 2 :] -= 90
  return image.clip(0, 255).astype(np.uint8)


def write(path, image, kind):
  """Writes an image as one of the kinds of files that users have."""
  path.parent.mkdir(parents=True, exist_ok=True)
  picture = Image.fromarray(image)
  if kind == "rgba.png":
    picture.putalpha(255)
  elif kind != "rgb.jpg":
    mode = {"cmyk.jpg": "CMYK", "gray.jpeg": "L", "palette.png": "P", "gray.PNG": "L"}[kind]
    picture = picture.convert(mode)
  picture.save(path.with_name(f"{path.name}-{kind}"))


def draw(directory, per_class=PER_CLASS, seed=0):
  rng = np.random.default_rng(seed)
  kinds = ("rgb.jpg", "rgba.png", "cmyk.jpg", "gray.jpeg", "palette.png", "gray.PNG")
  for class_name in CLASSES:
    for i in range(per_class):
      write(directory / class_name / str(i), pixels(class_name, rng), kinds[i % len(kinds)])
  (directory / "bright" / "notes.txt").write_text("no image")
  return directory


# Constants that do not follow from the images, so that the runs below share a compiled program.
STATISTICS = ("data.mean=(0.5,0.5,0.5)", "data.std=(0.3,0.3,0.3)")


def config(folder, *overrides):
  return runs.tiny(
    f"dataset=folder:{folder}",
    "data.image_size=16",
    "batch_size=8",
    "learning_rate=1e-2",
    *runs.PLAIN,
    "evaluation.every=20 steps",
    "checkpoint.every=20 steps",
    *overrides,
  )


@pytest.mark.slow  # begins a run twice; `tests/data/test_readable.py` names broken examples
def test_all_broken_images_are_named_before_compiling(tmp_path, monkeypatch):
  for split in ("train", "val", "test"):
    draw(tmp_path / "images" / split, per_class=3)
  settings = config(tmp_path / "images", *STATISTICS)
  monkeypatch.setattr(compilation, "compile_steps", lambda *a: pytest.fail("compiled"))
  images = {path: path.read_bytes() for path in tmp_path.glob("images/*/dark/1-rgba.png")}
  for path, whole in images.items():
    path.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ConfigError, match="3 examples cannot be read") as error:
    loop.train(settings, tmp_path / "run")
  assert all(f"{path} cannot be read as an image" in str(error.value) for path in images)
  for path, whole in images.items():
    path.write_bytes(whole)
  with pytest.raises(pytest.fail.Exception, match="compiled"):  # so the command can be repeated
    loop.train(settings, tmp_path / "run")


# DeiT's, as `configs/imagenet.py` has it, for images of 16 pixels.
RECIPE = (
  "data.resize_mode=random",
  "data.interpolation=bicubic",
  "data.repeats=3",
  "augment.randaugment=(2,9)",
  "augment.randaugment_operations=increasing",
  "augment.randaugment_std=0.5",
  "augment.randaugment_probability=0.5",
  "augment.random_erasing=0.25",
  "augment.random_erasing_fill=noise",
  "augment.mixup=0.8",
  "augment.cutmix=1.0",
  "augment.mixing=batch",
  "augment.interpolation=bicubic",
  "task.label_smoothing=0.1",
  "evaluation.crop_ratio=0.8",
  "evaluation.interpolation=bicubic",
  "evaluation.weights=('raw','ema')",
  "weight_decay_mask=rank",
  "ema_warmup=False",
  "model.initialization={'name':'truncated_normal','convolutions':'pytorch'}",
  "schedule={'name':'epoch_cosine','warmup':'1 epochs','start':1e-3,'final':0.01,'delay':1}",
)


@pytest.mark.slow
def test_deits_whole_recipe_is_a_function_of_the_seed(tmp_path):
  """Batches do not depend on the number of threads.

  Training sees crops of 16 pixels; evaluation sees the center of images of 20 pixels.
  """
  settings = config(draw(tmp_path / "images"), *STATISTICS, *RECIPE)
  experiment, streams = make_experiment(settings), []
  for threads in (1, 4):
    changed = change(experiment.settings, {"data.threads": threads})
    batches = dataclasses.replace(experiment, settings=changed).batches()
    streams.append(list(batches.iterate(0, 12)))
  jax.tree.map(np.testing.assert_array_equal, *streams)
  result = loop.train(settings, tmp_path / "run")
  assert result.finished and {"top1", "ema_top1"} <= result.test.keys()
  rows = runs.rows(tmp_path / "run")
  assert rows[0]["loss"] > rows[-3]["loss"]


@pytest.mark.slow  # trains
def test_a_folder_of_rectangles_is_learned_evaluated_and_predicted(tmp_path):
  folder = draw(tmp_path / "images")
  fields = ("data.image_size=(24,16)", "evaluation.crop_ratio=0.8", "data.resize_mode=random")
  result = loop.train(config(folder, *fields, "augment.hflip=0.5"), tmp_path / "run")
  assert result.test["examples"] == 15 and result.test["top1"] >= 0.8
  again = vitx.evaluate(tmp_path / "run")
  assert again["class_names"] == list(CLASSES) and again["top1"] == result.test["top1"]
  loaded = vitx.load(tmp_path / "run")
  assert loaded.config.data.image_size == (24, 16) and loaded.config.data.decode_size == (30, 20)
  assert find_layout(loaded.task).grid == (6, 4)
  write(tmp_path / "new", pixels("striped", np.random.default_rng(5)), "rgb.jpg")
  assert vitx.predict(loaded, [tmp_path / "new-rgb.jpg"]).classes == ["striped"]
