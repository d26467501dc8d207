"""`vitx compress` restores files exactly, and needs as many bits as the model predicts."""

import math
import struct
import sys
import zlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.cli import density_models
from tests.slow import all_but
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.data.sources import open_source
from vitx.inference import code_file, density_model
from vitx.inference.coding import group_windows
from vitx.inference.compress import compress, decompress
from vitx.tasks.density_images import to_values
from vitx.training.record import progress


def evaluated_bits(loaded, examples):
  """Returns the number of bits of all tokens, as the task's evaluation computes it."""
  examples = loaded.task.examples(examples, train=False)
  prepare = loaded.task.transform(train=False)
  found = [prepare(examples[i], None) for i in range(len(examples))]
  batch = {name: np.stack([each[name] for each in found]) for name in found[0]}
  batch["mask"] = np.ones(len(found), bool)
  evaluate = jax.jit(lambda params, batch: loaded.task.evaluate(params, {}, {}, batch))
  return float(evaluate(loaded.variables["params"], batch)["sums"]["nats"]) / math.log(2)


class Document:
  labels = None

  def __init__(self, data):
    self.data = data

  def __len__(self):
    return 1

  def __getitem__(self, i):
    return {"tokens": np.frombuffer(self.data, np.uint8)}

  def name(self, i):
    return "document"


def draw_bytes(count):
  return np.random.default_rng(count).integers(0, 256, count, np.uint8).tobytes()


# Two groups of windows and a shorter window, or one group; a group is coded in parallel.
@pytest.mark.parametrize("count", all_but(24 * 3, of=(24 * 40 + 7, 24 * 3)))
def test_bytes_come_back_in_the_evaluations_bits(text, command, tmp_path, count, monkeypatch):
  monkeypatch.setattr(progress, "SOON", 0.0)  # progress shows at once
  path, data = tmp_path / "data.bin", draw_bytes(count)
  path.write_bytes(data)
  found = compress(text, path)
  wanted = evaluated_bits(text, Document(data))
  assert abs(found.bits - wanted) < 1e-4 * wanted
  assert abs(8 * found.code_bytes - wanted) < 0.01 * wanted + 32
  assert len(found.data) - found.code_bytes < 300
  status, _, shown = command(text, "compress", path)
  assert status == 0 and "coding: " in shown
  assert (tmp_path / "data.bin.vitx").read_bytes() == found.data
  path.unlink()
  status, _, shown = command(text, "decompress", tmp_path / "data.bin.vitx")
  assert status == 0 and "decoding: " in shown
  assert path.read_bytes() == data


@pytest.mark.parametrize(("count", "lanes"), all_but(32, of=((1, 32), (25, 4), (100, 3))))
def test_files_of_every_length(text, tmp_path, count, lanes):
  (tmp_path / "data").write_bytes(draw_bytes(count))
  found = compress(text, tmp_path / "data", lanes=lanes)
  assert found.header.lanes == min(lanes, max(count // 24, 1))
  (tmp_path / "code").write_bytes(found.data)
  assert decompress(text, tmp_path / "code").tobytes() == draw_bytes(count)


@pytest.mark.slow
def test_a_test_split_of_images(digits, command, tmp_path):
  test = open_source(digits.config.data, seed=0).test
  images = np.stack([test[i]["image"] for i in range(40)])
  np.save(tmp_path / "test.npy", images)
  status, out, _ = command(digits, "compress", tmp_path / "test.npy")
  assert status == 0 and "(2,560 tokens)" in out
  header, code = code_file.read(tmp_path / "test.npy.vitx")
  wanted = evaluated_bits(digits, [test[i] for i in range(40)])
  assert header.shape == (40, 8, 8, 1) and header.lanes == 32
  assert abs(8 * len(code) - wanted) < 0.01 * wanted + 32
  back = ("--out", tmp_path / "back.npy")
  assert command(digits, "decompress", tmp_path / "test.npy.vitx", *back)[0] == 0
  assert (tmp_path / "back.npy").read_bytes() == (tmp_path / "test.npy").read_bytes()


def check_image_file(command, loaded, folder, image):
  """Checks that a PNG file, compressed to `folder`/code, comes back as `folder`/back.png."""
  Image.fromarray(image).save(folder / "own.png")
  assert command(loaded, "compress", folder / "own.png", "--out", folder / "code")[0] == 0
  back = ("--out", folder / "back.png")
  assert command(loaded, "decompress", folder / "code", *back)[0] == 0
  with Image.open(folder / "back.png") as file:
    np.testing.assert_array_equal(np.asarray(file), image)


def test_an_image_file(digits, command, tmp_path):
  image = to_values(np.random.default_rng(0).integers(0, 17, (8, 8)), 17)
  check_image_file(command, digits, tmp_path, image)
  (tmp_path / "code").rename(tmp_path / "photo.bmp.vitx")
  assert command(digits, "decompress", tmp_path / "photo.bmp.vitx")[0] == 0
  assert (tmp_path / "photo.png").read_bytes() == (tmp_path / "back.png").read_bytes()


def test_an_image_file_with_transparency(command, tmp_path):
  loaded = density_models.make(vocabulary=256, grid=(2, 2, 4))
  image = np.random.default_rng(0).integers(0, 256, (2, 2, 4), np.uint8)
  check_image_file(command, loaded, tmp_path, image)


@pytest.mark.parametrize(
  ("name", "extra", "message"),
  [
    ("own.png", {"transparency": 0}, "8 x 8 pixels of mode L with transparency; give"),
    ("own.tif", {"save_all": True, "append_images": [Image.new("L", (8, 8))]}, "has 2 images;"),
  ],
)
def test_an_image_that_would_not_come_back_is_refused(digits, tmp_path, name, extra, message):
  Image.new("L", (8, 8)).save(tmp_path / name, **extra)
  with pytest.raises(ConfigError, match=message):
    compress(digits, tmp_path / name)


def test_a_color_image_of_16_bits_is_refused(tmp_path):
  """Pillow decodes it to 8 bits, so its low bits would not come back."""
  loaded = SimpleNamespace(model=SimpleNamespace(grid=(2, 2, 3)))
  for most, depth in ((255, 1), (65535, 2)):
    (tmp_path / f"{most}.ppm").write_bytes(b"P6 2 2 %d\n" % most + bytes(range(12 * depth)))
  (tmp_path / "own.png").write_bytes(png_of_16_bits(2, 2))
  assert density_model.read_image(tmp_path / "255.ppm", loaded).ravel().tolist() == [*range(12)]
  for name in ("65535.ppm", "own.png"):
    with pytest.raises(ConfigError, match="2 x 2 pixels of mode RGB of 16 bits; give"):
      density_model.read_image(tmp_path / name, loaded)


def png_of_16_bits(width, height):
  """Returns a PNG file of colors with 16 bits for each value, which Pillow cannot write."""

  def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

  rows = zlib.compress((b"\0" + bytes(range(6 * width))) * height)
  head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
  parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
  return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.slow
def test_improbable_tokens_can_be_coded(digits, tmp_path):
  """The logits are as far apart as a trained model's, so some probabilities are 0 in float32."""
  params = dict(digits.variables["params"])
  params["head"] = {"kernel": params["head"]["kernel"] * 100}
  loaded = density_models.make()
  loaded.variables["params"] = params
  images = to_values(np.random.default_rng(0).integers(0, 17, (2, 8, 8, 1)), 17)
  np.savez(tmp_path / "images.npz", images)
  found = compress(loaded, tmp_path / "images.npz")
  (tmp_path / "code").write_bytes(found.data)
  np.testing.assert_array_equal(decompress(loaded, tmp_path / "code"), images)


def test_windows_are_those_of_the_evaluation():
  groups = group_windows(24 * 5 + 7, 24, lanes=2)
  assert [group.starts.tolist() for group in groups] == [[0, 24], [48, 72], [96], [103]]
  assert [(group.first, group.stop) for group in groups] == [(0, 24)] * 3 + [(17, 24)]
  (short,) = group_windows(7, 24, lanes=2)
  assert (short.starts.tolist(), short.first, short.stop) == ([0], 0, 7)


@pytest.mark.slow
def test_another_models_file_and_damage_are_told(text, tmp_path):
  (tmp_path / "data").write_bytes(draw_bytes(100))
  data = compress(text, tmp_path / "data").data
  path = tmp_path / "code"
  path.write_bytes(data)
  other = density_models.text()
  other.variables["params"]["head"]["kernel"] += jnp.float32(1)
  with pytest.raises(ConfigError, match=r"compressed with other weights \(step 7, digest \w{16}\)"):
    decompress(other, path)
  for damaged in (data[:-8], data[:-20] + bytes(20)):
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"does not decode .*restore it.*than its writer \(.*jax"):
      decompress(text, path)
  path.write_bytes(data[:40])
  with pytest.raises(ConfigError, match="has a damaged header; restore the file"):
    decompress(text, path)
  path.write_bytes(data[:4] + b"\x09" + data[5:])
  with pytest.raises(ConfigError, match="version 9 of the format, but this vitx reads version 1"):
    decompress(text, path)
  path.write_bytes(b"something else")
  with pytest.raises(ConfigError, match="is not a file of vitx compress"):
    decompress(text, path)


@pytest.mark.parametrize(
  ("kind", "shape", "message"),
  [
    ("bytes", [10**12], r"a\.vitx has .* becomes 4,000,000,000,000"),
    ("images", [10**9, 10**9, 10**9, 3], r"a\.vitx has .* VITX_MAX_INFLATED_GIB"),
    ("bytes", [-1], r"a\.vitx has a damaged header; restore"),
    ("bytes", [1.5], r"a\.vitx has a damaged header; restore"),
    ("bytes", "ab", r"a\.vitx has a damaged header; restore"),
    ("bytes", [2, 2], r"a\.vitx has a damaged header; restore"),
    ("images", [-1, 8, 8, -1], r"a\.vitx has a damaged header; restore"),
    ("bytds", [4], r"a\.vitx has a damaged header; restore"),
  ],
)
def test_a_file_that_declares_what_it_cannot_hold(tmp_path, kind, shape, message):
  header = code_file.Header(kind, shape, 1, 0, "", "", "")
  (tmp_path / "a.vitx").write_bytes(code_file.write(header, bytes(8)))
  with pytest.raises(ConfigError, match=message):
    code_file.read(tmp_path / "a.vitx")


@pytest.mark.parametrize("lanes", [0, 3, 10**9, 1.5, "2"])
def test_a_file_that_declares_more_lanes_than_windows(text, tmp_path, lanes):
  """Each lane would take memory for the keys and values of a whole window."""
  weights = code_file.digest_weights(text)
  header = code_file.Header("bytes", (60,), lanes, text.step, weights, "", "")
  (tmp_path / "a.vitx").write_bytes(code_file.write(header, bytes(8)))
  with pytest.raises(ConfigError, match=r"damaged header: lanes=.*, but its content has 2 windows"):
    decompress(text, tmp_path / "a.vitx")


def test_what_it_refuses(text, digits, command, tmp_path):
  def errors(loaded, name, *arguments):
    status, _, errors = command(loaded, name, *arguments)
    assert status == 1
    return errors

  (tmp_path / "empty").write_bytes(b"")
  assert "is empty" in errors(text, "compress", tmp_path / "empty")
  assert "No such file" in errors(text, "compress", tmp_path / "absent")
  (tmp_path / "word").write_bytes(b"word")
  assert "lanes=0 is out of range" in errors(text, "compress", tmp_path / "word", "--lanes", "0")
  assert "cannot be read as an image" in errors(digits, "compress", tmp_path / "word")
  np.save(tmp_path / "wrong.npy", np.zeros((2, 9, 8, 1), np.uint8))
  message = errors(digits, "compress", tmp_path / "wrong.npy")
  assert "uint8 (n, 8, 8, 1), not uint8 (2, 9, 8, 1)" in message
  (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 and no more")
  assert "torn.npz' cannot be read as arrays" in errors(digits, "compress", tmp_path / "torn.npz")
  np.save(tmp_path / "between.npy", np.full((1, 8, 8, 1), 7, np.uint8))
  assert "values between the levels" in errors(digits, "compress", tmp_path / "between.npy")
  assert "does not end in .vitx" in errors(text, "decompress", tmp_path / "word")
  (tmp_path / "word.vitx").write_bytes(b"here")
  assert "exists already" in errors(text, "compress", tmp_path / "word")


def test_says_what_to_install(text, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "constriction", None)
  (tmp_path / "word").write_bytes(b"word")
  with pytest.raises(MissingExtraError, match=r'the extra "compress": pip install'):
    compress(text, tmp_path / "word")
