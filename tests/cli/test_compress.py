"""`vitx compress` restores files exactly, and needs as many bits as the evaluation reports."""

import base64
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vitx
from tests.cli import density_models
from tests.slow import all_but
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.inference import density_model
from vitx.inference.coding import group_windows
from vitx.inference.compress import compress, decompress
from vitx.runtime import progress
from vitx.tasks.density_images import to_values

# Colors of 2 x 2 pixels with 16 bits for each value, which Pillow cannot write.
PNG_OF_16_BITS = (
  "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACEAIAAACtREYwAAAAGElEQVR42mNgYGRiZmFlY+fg5OJmQOYAAAWwAIUtGJJP"
  "AAAAAElFTkSuQmCC"
)


def draw_bytes(count):
  return np.random.default_rng(count).integers(0, 256, count, np.uint8).tobytes()


# Two groups of windows and a shorter window, or one group; a group is coded in parallel.
@pytest.mark.parametrize("count", all_but(24 * 3, of=(24 * 40 + 7, 24 * 3)))
def test_bytes_come_back_from_the_bits_of_the_evaluation(
  text, command, tmp_path, count, monkeypatch
):
  monkeypatch.setattr(progress, "SOON", 0.0)  # progress shows at once
  path, data = tmp_path / "data.bin", draw_bytes(count)
  path.write_bytes(data)
  compressed = compress(text, path)
  figures = vitx.evaluate(text, source=f"bytes:{path}", task="min_context=0")
  expected = figures["bits"] * figures["tokens"]
  assert figures["tokens"] == count and abs(compressed.bits - expected) < 1e-4 * expected
  assert abs(8 * compressed.code_bytes - expected) < 0.01 * expected + 32
  assert len(compressed.data) - compressed.code_bytes < 300
  status, _, shown = command(text, "compress", path)
  assert status == 0 and "coding: " in shown
  assert (tmp_path / "data.bin.vitx").read_bytes() == compressed.data
  path.unlink()
  status, _, shown = command(text, "decompress", tmp_path / "data.bin.vitx")
  assert status == 0 and "decoding: " in shown
  assert path.read_bytes() == data
  assert command(text, "decompress", tmp_path / "data.bin.vitx")[0] == 1  # never overwrites
  assert command(text, "compress", path)[0] == 1


@pytest.mark.parametrize(("count", "lanes"), all_but(4, of=((1, 32), (25, 4), (100, 3))))
def test_a_file_of_any_length_comes_back(text, tmp_path, count, lanes):
  (tmp_path / "data").write_bytes(draw_bytes(count))
  (tmp_path / "code").write_bytes(compress(text, tmp_path / "data", lanes=lanes).data)
  assert decompress(text, tmp_path / "code").tobytes() == draw_bytes(count)


@pytest.mark.slow  # compiles a model for each image
@pytest.mark.parametrize(("grid", "levels"), [((8, 8, 1), 17), ((2, 2, 4), 256)])
def test_an_image_file_comes_back(command, tmp_path, grid, levels):
  loaded = density_models.make(vocabulary=levels, grid=grid)
  image = to_values(np.random.default_rng(0).integers(0, levels, grid), levels)
  Image.fromarray(image.squeeze()).save(tmp_path / "own.png")
  code = tmp_path / "photo.bmp.vitx"
  assert command(loaded, "compress", tmp_path / "own.png", "--out", code)[0] == 0
  assert command(loaded, "decompress", code)[0] == 0
  with Image.open(tmp_path / "photo.png") as file:
    np.testing.assert_array_equal(np.asarray(file), image.squeeze())


def test_an_image_that_would_lose_something_is_refused(digits, tmp_path):
  Image.new("L", (8, 8)).save(tmp_path / "a.png", transparency=0)
  Image.new("L", (8, 8)).save(
    tmp_path / "b.tif", save_all=True, append_images=[Image.new("L", (8, 8))]
  )
  Image.new("RGB", (8, 8)).save(tmp_path / "c.png")
  Image.new("L", (8, 9)).save(tmp_path / "d.png")
  for name in ("a.png", "b.tif", "c.png", "d.png"):
    with pytest.raises(ConfigError, match=f"{name} must be one image of 8 x 8 pixels"):
      compress(digits, tmp_path / name)
  np.save(tmp_path / "wrong.npy", np.zeros((2, 9, 8, 1), np.uint8))
  with pytest.raises(ConfigError, match=r"uint8 \(n, 8, 8, 1\), not uint8 \(2, 9, 8, 1\)"):
    compress(digits, tmp_path / "wrong.npy")


def test_a_color_image_of_16_bits_is_refused(tmp_path):
  """Pillow decodes it to 8 bits, so its low bits would not come back."""
  loaded = SimpleNamespace(model=SimpleNamespace(grid=(2, 2, 3)))
  for most, depth in ((255, 1), (65535, 2)):
    (tmp_path / f"{most}.ppm").write_bytes(b"P6 2 2 %d\n" % most + bytes(range(12 * depth)))
  (tmp_path / "own.png").write_bytes(base64.b64decode(PNG_OF_16_BITS))
  assert density_model.read_image(tmp_path / "255.ppm", loaded).ravel().tolist() == [*range(12)]
  for name in ("65535.ppm", "own.png"):
    with pytest.raises(ConfigError, match="of 8 bits in the mode RGB"):
      density_model.read_image(tmp_path / name, loaded)


@pytest.mark.slow
def test_improbable_tokens_can_be_coded(digits, tmp_path):
  """The logits are as far apart as a trained model's, so some probabilities are 0 in float32."""
  params = dict(digits.variables["params"])
  params["head"] = {"kernel": params["head"]["kernel"] * 100}
  loaded = density_models.make()
  loaded.variables["params"] = params
  images = to_values(np.random.default_rng(0).integers(0, 17, (2, 8, 8, 1)), 17)
  np.savez(tmp_path / "images.npz", images)
  (tmp_path / "code").write_bytes(compress(loaded, tmp_path / "images.npz").data)
  np.testing.assert_array_equal(decompress(loaded, tmp_path / "code"), images)


def test_windows_agree_with_the_evaluation():
  groups = group_windows(24 * 5 + 7, 24, lanes=2)
  assert [group.starts.tolist() for group in groups] == [[0, 24], [48, 72], [96], [103]]
  assert [(group.first, group.stop) for group in groups] == [(0, 24)] * 3 + [(17, 24)]
  (short,) = group_windows(7, 24, lanes=2)
  assert (short.starts.tolist(), short.first, short.stop) == ([0], 0, 7)


@pytest.mark.slow
def test_a_file_of_another_model_or_a_damaged_file_is_refused(text, tmp_path):
  (tmp_path / "data").write_bytes(draw_bytes(100))
  data = compress(text, tmp_path / "data").data
  path = tmp_path / "code"
  path.write_bytes(data)
  other = density_models.text()
  other.variables["params"]["head"]["kernel"] += jnp.float32(1)
  with pytest.raises(ConfigError, match="compressed with other weights than those of step 7"):
    decompress(other, path)
  for damaged in (data[:-8], data[:-20] + bytes(20)):
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"is damaged, or needs the machine that wrote it, .*jax"):
      decompress(text, path)
  for damaged in (data[:40], data[:4] + b"\x09" + data[5:], b"something else", b""):
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match="cannot be read as a file of vitx compress"):
      decompress(text, path)


def test_the_missing_extra_is_named(text, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "constriction", None)
  (tmp_path / "word").write_bytes(b"word")
  with pytest.raises(MissingExtraError, match=r'the extra "compress": pip install'):
    compress(text, tmp_path / "word")
