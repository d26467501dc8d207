"""Predictions of files and arrays of every kind, which agree with the evaluation."""

import csv
import dataclasses
import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vitx
from tests import runs
from tests.cli import density_models
from tests.drawn import draw_variables
from vitx.analysis.tables import format_figure
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.data.images.resizing import resize
from vitx.data.sources import open_source
from vitx.inference import predict
from vitx.inference.evaluate import evaluate
from vitx.tasks import build_task
from vitx.tasks.base import init_variables


@pytest.fixture(scope="module")
def color(loaded):
  """An untrained model of RGB images."""
  data = {"data.channels": 3, "data.mean": (0.5, 0.4, 0.3), "data.std": (0.2, 0.3, 0.2)}
  changed = runs.change_settings(loaded, data)
  task = build_task(changed.settings)
  variables = draw_variables(partial(init_variables, task))
  return dataclasses.replace(changed, task=task, variables=variables)


@pytest.fixture(scope="module")
def digits(run):
  """The images of the test split, uint8 (359, 8, 8, 1)."""
  test = open_source(runs.tiny().data, seed=0).test
  return np.stack([test[i]["image"] for i in range(len(test))])


def test_predictions_agree_with_the_evaluation(run, loaded, digits, tmp_path):
  evaluate(run, predictions=tmp_path / "p.csv")
  with open(tmp_path / "p.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  expected = np.array([[row[f"p({name})"] for name in loaded.class_names] for row in rows], float)
  result = vitx.predict(loaded, digits)  # 359 images: several chunks, the last not full
  assert result.probabilities.shape == (359, 10) and result.probabilities.dtype == np.float32
  np.testing.assert_allclose(result.probabilities, expected, rtol=1e-5, atol=1e-7)
  assert result.classes == [row["prediction"] for row in rows]
  assert len(set(result.classes)) > 1


def test_all_kinds_of_inputs_give_equal_predictions(run, loaded, digits, tmp_path):
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


def test_images_of_any_size_are_resized(loaded):
  rng = np.random.default_rng(0)
  images = [rng.integers(0, 256, (h, w, 1), np.uint8) for h, w in ((8, 8), (31, 12), (5, 40))]
  square = np.stack([resize(image, 8, "center") for image in images])
  np.testing.assert_array_equal(
    vitx.predict(loaded, images).probabilities, vitx.predict(loaded, square).probabilities
  )


def test_photographs_are_turned_upright(color, tmp_path):
  rgb = np.random.default_rng(3).integers(0, 256, (8, 8, 3), np.uint8)
  exif = Image.Exif()
  exif[0x0112] = 3  # upside down
  Image.fromarray(rgb[::-1, ::-1]).save(tmp_path / "turned.png", exif=exif)
  np.testing.assert_array_equal(
    vitx.predict(color, [tmp_path / "turned.png"]).probabilities,
    vitx.predict(color, [rgb]).probabilities,
  )


def test_floats_and_pillow_images_give_equal_predictions(loaded, color, digits):
  expected = vitx.predict(loaded, digits[:4]).probabilities
  floats = digits[:4] / np.float32(255)
  pictures = [Image.fromarray(image[..., 0]) for image in digits[:4]]
  for images in (floats, floats.astype(np.float64), jnp.asarray(floats), list(floats), pictures):
    np.testing.assert_array_equal(vitx.predict(loaded, images).probabilities, expected)
  half = jnp.asarray(floats, jnp.bfloat16)  # A pixel is off by one level at most.
  np.testing.assert_allclose(vitx.predict(loaded, half).probabilities, expected, atol=0.02)
  palette = Image.fromarray(digits[0][..., 0]).convert("P")
  alone = vitx.predict(loaded, digits[:1]).probabilities  # a batch of one may run another program
  np.testing.assert_array_equal(vitx.predict(loaded, [palette]).probabilities, alone)


def test_logits_and_features_fit_the_probabilities(loaded, digits):
  result = vitx.predict(loaded, digits[:5], features=True)
  np.testing.assert_allclose(jax.nn.softmax(result.logits), result.probabilities, rtol=1e-5)
  head = loaded.variables["params"]["head"]
  read = result.features @ head["kernel"] + head["bias"]
  np.testing.assert_allclose(read, result.logits, atol=1e-5)
  best = result.top_k(3)
  for (first, second, third), p, name in zip(
    best, result.probabilities, result.classes, strict=True
  ):
    assert first[0] == name and first[1] == p.max()
    assert [first[1], second[1], third[1]] == sorted(p.tolist(), reverse=True)[:3]
  patches = vitx.predict(loaded, digits[:5], features="patches").patches
  assert patches.shape == (5, 2, 2, 16)  # with the pool "mean"
  np.testing.assert_allclose(patches.mean(axis=(1, 2)), result.features, atol=1e-6)
  assert not {"features", "patches"} & vitx.predict(loaded, digits[:5]).rows.keys()
  with pytest.raises(ConfigError, match="features='pooled' is unknown"):
    vitx.predict(loaded, digits[:5], features="pooled")
  for k in (0, 11, 1.5):
    with pytest.raises(ConfigError, match=rf"top_k={k}"):
      result.top_k(k)


@pytest.fixture
def album(digits, tmp_path):
  """A folder with images at several depths, and with files that are no images."""
  folder = tmp_path / "album"
  for name, i in (("b.png", 0), ("a/2.png", 1), ("a/1.bmp", 2), ("a/deep/x.PNG", 3)):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(digits[i][..., 0]).save(folder / name)
  Image.fromarray(digits[4][..., 0]).save(folder / ".hidden.png")
  (folder / "notes.txt").write_text("no image")
  (folder / "a" / "table.npz").write_bytes(b"")
  return folder


def test_a_folder_means_all_its_images(loaded, digits, album, tmp_path, caplog):
  Image.fromarray(digits[5][..., 0]).save(tmp_path / "own.png")
  result = vitx.predict(loaded, [tmp_path / "own.png", str(album), digits[6]])
  inside = [str(album / name) for name in ("a/1.bmp", "a/2.png", "a/deep/x.PNG", "b.png")]
  assert result.names == (str(tmp_path / "own.png"), *inside, "5")
  expected = vitx.predict(loaded, digits[[5, 2, 1, 3, 0, 6]])
  np.testing.assert_array_equal(result.probabilities, expected.probabilities)
  assert "skipped 2 files" in caplog.text and "a/table.npz, notes.txt" in caplog.text
  (tmp_path / "empty").mkdir()
  assert vitx.predict(loaded, [album, tmp_path / "empty"]).names == tuple(inside)
  (album / "again").symlink_to(album)
  with pytest.raises(ConfigError, match=r"^folder '.*album': the link .*again leads back"):
    vitx.predict(loaded, [album])


def test_a_density_model_refuses_a_folder(album):
  with pytest.raises(ConfigError, match=r"use vitx sample, vitx compress"):
    vitx.predict(density_models.make(), [album])


def test_the_command_prints_and_writes_its_columns(run, album, tmp_path, capsys, caplog):
  table, data = tmp_path / "p.csv", tmp_path / "p.json"
  words = ["--workdir", str(run), "--top_k", "3", "--csv", str(table), "--json", str(data)]
  assert main(["predict", str(album), "--features", *words]) == 0
  printed = capsys.readouterr().out
  assert "skipped 2 files" in caplog.text
  with open(table, newline="", encoding="utf-8") as file:
    head, *rows = csv.reader(file)
  assert head[:3] == ["name", "class 1", "probability 1"]
  result = vitx.predict(run, [album], features=True)
  assert [row[0] for row in rows] == list(result.names) and len(rows) == 4
  written = json.loads(data.read_text())
  for row, best, entry, name in zip(rows, result.top_k(3), written, result.names, strict=True):
    assert [(row[i], float(row[i + 1])) for i in (1, 3, 5)] == best
    assert name in printed and all(format_figure(p) in printed for _, p in best)
    assert entry["name"] == name and len(entry["features"]) == 16
  np.testing.assert_allclose([entry["logits"] for entry in written], result.logits, rtol=1e-6)
  words = ["--workdir", str(run), "--json", str(data), "--features", "patches"]
  assert main(["predict", str(album / "b.png"), *words]) == 0
  assert np.shape(json.loads(data.read_text())[0]["patches"]) == (2, 2, 16)
  capsys.readouterr()
  assert main(["predict", str(album / "b.png"), "--workdir", str(run)]) == 0
  assert capsys.readouterr().out.split()[:3] == ["name", "class", "probability"]


@pytest.mark.parametrize("none", [[], np.zeros((0, 8, 8, 1), np.uint8)])
def test_no_images_give_no_predictions(loaded, none):
  result = vitx.predict(loaded, none)
  assert result.probabilities.shape == (0, 10) and result.classes == []


def test_a_model_is_compiled_once(loaded, digits, monkeypatch):
  vitx.predict(loaded, digits[:4])
  monkeypatch.setattr(predict.jax, "jit", lambda f: pytest.fail("compiled again"))
  vitx.predict(loaded, digits[:4])


@pytest.mark.parametrize(
  ("images", "message"),
  [
    ([np.full((8, 8, 1), np.nan)], r"image 0 is float in nan..nan, not in 0..1"),
    (
      [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.uint8)],
      r"image 1 .* not uint8 \(8, 8, 3\)",
    ),
    (np.zeros((8, 8, 1), np.uint8), r"a list, or an array of 4 axes; one input is \[input\]"),
    ("digit.png", r"a list, or an array of 4 axes; one input is \[input\]"),
  ],
)
def test_wrong_images_are_refused(loaded, images, message):
  with pytest.raises(ValueError, match=message):
    vitx.predict(loaded, images)


def test_arrays_are_given_by_name(loaded, digits, tmp_path):
  """A wrong name is an error; otherwise the prediction would be that of a blank picture."""
  expected = vitx.predict(loaded, digits[:1]).classes
  for arrays in ({"image": digits[0]}, {"image": digits[0], "label": np.int32(3), "more": 1}):
    np.savez(tmp_path / "digit.npz", **arrays)
    assert vitx.predict(loaded, [arrays]).classes == expected
    assert vitx.predict(loaded, [tmp_path / "digit.npz"]).classes == expected
  with pytest.raises(ConfigError, match=r"has the arrays \['images'\] and lacks image"):
    vitx.predict(loaded, [{"images": digits[0]}])
  np.savez(tmp_path / "flat.npz", image=np.zeros(64, np.uint8))
  with pytest.raises(ConfigError, match=r"flat\.npz': image 0 must be uint8.*not uint8 \(64,\)"):
    vitx.predict(loaded, [tmp_path / "flat.npz"])


def test_a_pipe_is_an_input(loaded, digits, tmp_path):
  pipe, content = tmp_path / "pipe", io.BytesIO()
  Image.fromarray(digits[0][..., 0]).save(content, "PNG")
  os.mkfifo(pipe)
  with ThreadPoolExecutor(1) as pool:
    pool.submit(pipe.write_bytes, content.getvalue())
    assert vitx.predict(loaded, [pipe]).classes == vitx.predict(loaded, digits[:1]).classes


def test_readable_files_are_predicted_beside_unreadable_ones(
  run, loaded, digits, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr(sys.modules["vitx.inference.predict"], "BATCH", 2)
  for i in range(6):  # the second batch has no readable file
    Image.fromarray(digits[i, ..., 0]).save(tmp_path / f"{i}.png")
  broken = [str(tmp_path / f"{i}.png") for i in (0, 2, 3)]
  for path in broken:
    Path(path).write_bytes(b"broken")
  command = ["predict", "--workdir", str(run), "--json", f"{tmp_path}/p.json", str(tmp_path)]
  assert main(command) == 1
  error = capsys.readouterr().err
  assert "skipped 3 inputs that cannot be read:\n" in error and "--skip_unreadable" in error
  assert all(path in error for path in broken)
  rows, rest = json.loads((tmp_path / "p.json").read_text()), (1, 4, 5)
  assert [row["name"] for row in rows] == [f"{tmp_path}/{i}.png" for i in rest]
  expected = vitx.predict(loaded, digits[[*rest]])
  np.testing.assert_allclose([row["logits"] for row in rows], expected.logits, rtol=1e-4)
  assert main([*command, "--skip_unreadable"]) == 0
  assert "--skip_unreadable" not in capsys.readouterr().err
  with pytest.raises(ConfigError, match=r"3 examples(.*\n)*skip_unreadable=True leaves them out"):
    vitx.predict(loaded, [tmp_path])
  skipping = runs.change_settings(loaded, {"data.on_unreadable": "skip"})
  assert len(vitx.predict(skipping, [tmp_path]).skipped) == 3
