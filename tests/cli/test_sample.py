"""`vitx sample`: grids of images, completions of given beginnings, text, sound, and refusals."""

import dataclasses
import wave

import numpy as np
import pytest
from PIL import Image

import vitx
from tests.cli import density_models
from vitx.config.errors import ConfigError
from vitx.data.mu_law import mu_law_decode
from vitx.inference.sample_files import Samples, draw_grid, to_text, write_samples
from vitx.tasks.classification import Classification
from vitx.tasks.density_images import to_values
from vitx.training.record import progress


@pytest.mark.slow
def test_samples_of_images_in_a_grid(digits, command, tmp_path):
  found = vitx.sample(digits, count=5, seed=2)
  assert found.images.shape == (5, 8, 8, 1) and found.images.dtype == np.uint8
  assert set(np.unique(found.images)) <= set(to_values(np.arange(17), 17))
  assert command(digits, "sample", "--count", "5", "--seed", "2")[0] == 0
  with Image.open(tmp_path / "samples" / "samples.png") as image:
    grid = np.asarray(image)
  assert grid.shape == (2 * 66 + 2, 3 * 66 + 2)  # eight-fold, two rows of three
  np.testing.assert_array_equal(grid[2:66:8, 2:66:8], found.images[0, ..., 0])
  np.testing.assert_array_equal(grid[68:132:8, 68:132:8], found.images[4, ..., 0])
  assert np.all(grid[68:, 134:] == 255)


def test_samples_stay_in_their_workdir(digits, command, tmp_path):
  (tmp_path / "environment.json").write_text("{}")
  (tmp_path / "elsewhere").mkdir()
  (tmp_path / "victim").write_text("kept")
  (tmp_path / "samples").symlink_to("elsewhere")
  status, _, error = command(digits, "sample", "--count", "1")
  assert status == 1 and "samples' is a link to 'elsewhere'" in error
  (tmp_path / "samples").unlink()
  (tmp_path / "samples").mkdir()
  (tmp_path / "samples" / "samples.png").symlink_to("../victim")
  assert command(digits, "sample", "--count", "1")[0] == 0
  assert not (tmp_path / "samples" / "samples.png").is_symlink()
  assert (tmp_path / "victim").read_text() == "kept" and not list(
    (tmp_path / "elsewhere").iterdir()
  )


@pytest.mark.slow
def test_completions_begin_as_their_originals(digits, command, tmp_path):
  found = vitx.sample(digits, count=3, complete=0.5)
  assert found.originals.shape == (3, 64) and found.tokens.shape == (12, 64) and found.given == 32
  rows = found.tokens.reshape(3, 4, 64)
  assert np.all(rows[:, :, :32] == found.originals[:, None, :32])
  assert np.all(np.any(rows[:, :, 32:] != found.originals[:, None, 32:], axis=-1))
  assert (
    command(digits, "sample", "--count=3", "--complete=0.5", "--out", tmp_path / "here")[0] == 0
  )
  with Image.open(tmp_path / "here" / "completions.png") as image:
    grid = np.asarray(image)
  assert grid.shape == (3 * 66 + 2, 5 * 66 + 2)
  original = found.to_images(found.originals)[2, ..., 0]
  np.testing.assert_array_equal(grid[134:198:8, 2:66:8], original)
  np.testing.assert_array_equal(grid[134:166:8, 68:132:8], original[:4])


def test_an_image_of_ones_own_is_completed(digits, tmp_path):
  image = to_values(np.random.default_rng(0).integers(0, 17, (8, 8)), 17)
  Image.fromarray(image).save(tmp_path / "own.png")
  found = vitx.sample(digits, count=2, prompt=tmp_path / "own.png", complete=0.25)
  assert np.all(found.images[:, :2, :, 0] == image[:2]) and len(found.tokens) == 2
  with pytest.raises(ConfigError, match="is an image to complete; also set complete"):
    vitx.sample(digits, prompt=str(tmp_path / "own.png"))
  Image.fromarray(image).convert("RGB").save(tmp_path / "rgb.png")
  with pytest.raises(ConfigError, match=r"8 x 8 pixels of mode RGB; .* 8 x 8 pixels of 8-bit gray"):
    vitx.sample(digits, prompt=tmp_path / "rgb.png", complete=0.25)


def test_text_goes_to_the_terminal_and_to_a_file(text, command, tmp_path, monkeypatch):
  monkeypatch.setattr(progress, "SOON", 0.0)  # progress shows at once
  (tmp_path / "start.txt").write_bytes("Die Höhe".encode())
  status, out, shown = command(text, "sample", "--prompt", tmp_path / "start.txt", "--count=2")
  assert status == 0 and "sampling: " in shown
  assert out.startswith("--- sample 0\nDie Höhe") and "--- sample 1\nDie Höhe" in out
  written = (tmp_path / "samples" / "samples.txt").read_text(encoding="utf-8")
  assert written in out
  found = vitx.sample(text, prompt="Die Höhe", count=2)
  assert found.given == 9 and found.tokens.shape == (2, 24)
  assert written == "".join(f"--- sample {i}\n{t}\n" for i, t in enumerate(found.texts))


def test_bytes_that_are_no_text_are_shown():
  assert to_text(np.frombuffer(b"a\xffb\x1b[2Jc\nd\xc3\xa9", np.uint8)) == "a�b�[2Jc\ndé"


def test_texts_are_completed(command, tmp_path):
  book = tmp_path / "book.txt"
  book.write_bytes(bytes(range(32, 122)) * 20)
  loaded = density_models.text(f"bytes:{book}")
  status, out, _ = command(loaded, "sample", "--complete", "0.5", "--count", "2")
  found = vitx.sample(loaded, complete=0.5, count=2)
  assert status == 0 and found.tokens.shape == (2, 24)
  assert f"--- given 1\n{to_text(found.originals[1, :12])}\n--- original\n" in out


@pytest.mark.slow
def test_sound_is_written_as_it_is_modeled(command, tmp_path):
  loaded = density_models.text("audio:recordings")
  assert command(loaded, "sample", "--count", "2")[0] == 0
  with wave.open(str(tmp_path / "samples" / "samples_1.wav")) as file:
    assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (12000, 1, 24)
    written = np.frombuffer(file.readframes(24), "<i2") / 32767
  codes = vitx.sample(loaded, count=2).tokens[1]
  np.testing.assert_allclose(written, mu_law_decode(codes), atol=1 / 32767)
  longer = density_models.text("audio:recordings", length=32)
  found = vitx.sample(longer, prompt=tmp_path / "samples" / "samples_1.wav", count=1)
  np.testing.assert_array_equal(found.tokens[0, :24], codes)


def test_a_small_vocabulary_refuses_other_bytes():
  loaded = density_models.make("bytes:book.txt", window=8, vocabulary=17, grid=(8,))
  with pytest.raises(
    ConfigError, match=r"prompt has the byte 104 at position 0, .* only 0 to 16; remove"
  ):
    vitx.sample(loaded, prompt="hi")
  assert vitx.sample(loaded, prompt=bytes([3, 16]), count=1).tokens[0, :2].tolist() == [3, 16]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--prompt", "x" * 24], "prompt has 24 tokens, but must have fewer than the 24 of"),
    (["--temperature", "0"], "temperature=0.0 is out of range"),
    (["--top_k", "3", "--top_p", "0.5"], "top_k=3 and top_p=0.5 are both set"),
    (["--complete", "1"], "complete=1.0 is out of range; it must lie in (0, 1)"),
    (["--complete", "0.5", "--prompt", "x"], "complete and prompt='x' are both set"),
    (["--count", "0"], "count=0 is out of range"),
    (["--seed", "-1"], "seed=-1 is out of range"),
  ],
)
def test_what_it_refuses(text, command, arguments, message):
  status, out, errors = command(text, "sample", *arguments)
  assert status == 1 and errors.startswith("ConfigError: ") and message in errors and not out


def test_refuses_a_mixer_without_a_cache():
  loaded = density_models.make(mixer={"name": "performer"})
  with pytest.raises(ConfigError, match="Performer cannot be decoded token by token"):
    vitx.sample(loaded)


def test_refuses_a_classifier(digits):
  classifier = dataclasses.replace(digits, task=object.__new__(Classification))
  with pytest.raises(ConfigError, match="has the task 'classification', without prob"):
    vitx.sample(classifier)


def test_a_density_model_predicts_nothing(digits):
  with pytest.raises(ConfigError, match="vitx sample"):
    vitx.predict(digits, [np.zeros((8, 8, 1), np.uint8)])


def test_no_sound_of_an_earlier_call_remains(tmp_path):
  def write(count, originals=None):
    tokens = np.full((count, 2), count, np.int32)
    write_samples(Samples(tokens, 0, originals, "audio", 256, (2,)), tmp_path)
    return sorted(path.name for path in tmp_path.iterdir())

  write(3, np.zeros((3, 2), np.int32))
  (tmp_path / "original_9.wav").touch()  # not of an earlier call
  left = write(1, np.zeros((1, 2), np.int32))
  assert left == ["completions_0.wav", "original_0.wav", "original_9.wav"]
  write(3)
  assert write(2)[-2:] == ["samples_0.wav", "samples_1.wav"]


def test_images_that_no_image_file_holds_are_arrays(tmp_path):
  tokens = np.random.default_rng(0).integers(0, 256, (3, 2 * 2 * 5))
  found = Samples(tokens, 10, tokens[:1], "image", 256, (2, 2, 5))
  path = write_samples(found, tmp_path)
  np.testing.assert_array_equal(np.load(path), found.images)
  np.testing.assert_array_equal(np.load(tmp_path / "originals.npy"), found.images[:1])
  Image.new("RGB", (2, 2)).save(tmp_path / "own.png")
  loaded = density_models.make(vocabulary=256, grid=(2, 2, 5), mixer={"name": "softmax"})
  with pytest.raises(ConfigError, match="no image file has 5 channels; give"):
    vitx.sample(loaded, prompt=tmp_path / "own.png", complete=0.5)


def test_large_images_are_not_enlarged():
  images = np.random.default_rng(0).integers(0, 256, (3, 64, 70, 3), np.uint8)
  grid = np.asarray(draw_grid(images, 2))
  assert grid.shape == (2 * 66 + 2, 2 * 72 + 2, 3)
  np.testing.assert_array_equal(grid[68:132, 2:72], images[2])
