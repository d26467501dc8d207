"""`vitx sample` draws grids of images, completions of given beginnings, text and sound."""

import dataclasses
import wave

import numpy as np
import pytest
from PIL import Image

import vitx
from tests.cli import density_models
from vitx.config.errors import ConfigError
from vitx.data.mu_law import mu_law_decode
from vitx.inference.sample_files import Samples, to_text, write_samples
from vitx.runtime import progress
from vitx.tasks.classification import Classification
from vitx.tasks.density_images import to_values


def test_completions_are_drawn_beside_their_originals(tmp_path):
  tokens = np.arange(24, dtype=np.int32).reshape(6, 4) % 17
  samples = Samples(tokens, 2, tokens[:2], "image", 17, (2, 2, 1))
  with Image.open(write_samples(samples, tmp_path)) as image:
    grid = np.asarray(image)
  assert grid.shape == (2 * 66 + 2, 4 * 66 + 2)  # each image 32-fold
  small = grid[2:].reshape(2, 66, 266)[:, :64:32, 2:].reshape(2, 2, 4, 66)[..., :64:32]
  drawn = np.moveaxis(small, 2, 1)
  np.testing.assert_array_equal(drawn[:, 0], samples.to_images(tokens[:2])[..., 0])
  np.testing.assert_array_equal(drawn[:, 1:], samples.images[..., 0].reshape(2, 3, 2, 2))
  three = dataclasses.replace(samples, tokens=tokens[:3], originals=None)
  with Image.open(write_samples(three, tmp_path)) as image:
    grid = np.asarray(image)
  assert grid.shape == (2 * 66 + 2, 2 * 66 + 2) and np.all(grid[68:, 68:] == 255)


def test_sounds_replace_those_of_a_longer_call(tmp_path):
  codes = np.arange(256, dtype=np.int32).reshape(4, 64)
  samples = Samples(codes, 0, None, "audio", 256, (64,))
  write_samples(samples, tmp_path)
  write_samples(dataclasses.replace(samples, tokens=codes[2:]), tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["samples_0.wav", "samples_1.wav"]
  with wave.open(str(tmp_path / "samples_1.wav")) as file:
    assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (12000, 1, 64)
    written = np.frombuffer(file.readframes(64), "<i2") / 32767
  np.testing.assert_allclose(written, mu_law_decode(codes[3]), atol=1 / 32767)


@pytest.mark.slow
def test_completions_begin_as_their_originals(digits):
  drawn = vitx.sample(digits, count=3, complete=0.5)
  assert [drawn.originals.shape, drawn.tokens.shape, drawn.prompt_length] == [(3, 64), (12, 64), 32]
  rows = drawn.tokens.reshape(3, 4, 64)
  assert np.all(rows[:, :, :32] == drawn.originals[:, None, :32])
  assert np.all(np.any(rows[:, :, 32:] != drawn.originals[:, None, 32:], axis=-1))
  assert set(np.unique(drawn.images)) <= set(to_values(np.arange(17), 17))


@pytest.mark.slow  # compiles a model
def test_an_own_image_is_completed(digits, tmp_path):
  image = to_values(np.random.default_rng(0).integers(0, 17, (8, 8)), 17)
  Image.fromarray(image).save(tmp_path / "own.png")
  completed = vitx.sample(digits, count=2, prompt=tmp_path / "own.png", complete=0.25)
  assert np.all(completed.images[:, :2, :, 0] == image[:2]) and len(completed.tokens) == 2
  with pytest.raises(ConfigError, match="is an image to complete; also set complete"):
    vitx.sample(digits, prompt=str(tmp_path / "own.png"))


def test_text_is_printed_and_written(text, command, tmp_path, monkeypatch):
  monkeypatch.setattr(progress, "SOON", 0.0)  # progress shows at once
  (tmp_path / "start.txt").write_bytes("Die Höhe".encode())
  status, out, shown = command(text, "sample", "--prompt", tmp_path / "start.txt", "--count=2")
  assert status == 0 and "sampling: " in shown
  assert out.startswith("--- sample 0\nDie Höhe") and "--- sample 1\nDie Höhe" in out
  written = (tmp_path / "samples" / "samples.txt").read_text(encoding="utf-8")
  assert written in out
  drawn = vitx.sample(text, prompt="Die Höhe", count=2)
  assert drawn.prompt_length == 9 and drawn.tokens.shape == (2, 24)
  assert written == "".join(f"--- sample {i}\n{t}\n" for i, t in enumerate(drawn.texts))


@pytest.mark.slow  # compiles a model
def test_texts_are_completed(command, tmp_path):
  book = tmp_path / "book.txt"
  book.write_bytes(bytes(range(32, 122)) * 20)
  loaded = density_models.text(f"bytes:{book}")
  status, out, _ = command(loaded, "sample", "--complete", "0.5", "--count", "2")
  drawn = vitx.sample(loaded, complete=0.5, count=2)
  assert status == 0 and drawn.tokens.shape == (2, 24)
  assert f"--- given 1\n{to_text(drawn.originals[1, :12])}\n--- original\n" in out


@pytest.mark.slow
def test_a_sound_is_written_and_continued(command, tmp_path):
  loaded = density_models.text("audio:recordings")
  assert command(loaded, "sample", "--count", "2")[0] == 0
  codes = vitx.sample(loaded, count=2).tokens[1]
  longer = density_models.text("audio:recordings", length=32)
  drawn = vitx.sample(longer, prompt=tmp_path / "samples" / "samples_1.wav", count=1)
  np.testing.assert_array_equal(drawn.tokens[0, :24], codes)


def test_a_small_vocabulary_refuses_other_bytes():
  loaded = density_models.make("bytes:book.txt", window=8, vocabulary=17, grid=(8,))
  with pytest.raises(ConfigError, match=r"prompt has the byte 104 at position 0, .* only 0 to 16"):
    vitx.sample(loaded, prompt="hi")
  assert vitx.sample(loaded, prompt=bytes([3, 16]), count=1).tokens[0, :2].tolist() == [3, 16]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"prompt": "x" * 24}, "prompt has 24 tokens; shorten it to fewer than 24"),
    ({"prompt": "x", "complete": 0.5}, "complete and prompt='x' are both set"),
    ({"top_k": 3, "top_p": 0.5}, "top_k=3 and top_p=0.5 are both set"),
    ({"complete": 1.0}, r"complete=1.0 is out of range; it must lie in \(0, 1\)"),
    ({"count": 0}, "count=0 is out of range"),
    ({"seed": -1}, "seed=-1 is out of range"),
    ({"temperature": -1.0}, "temperature=-1.0 is out of range"),
  ],
)
def test_a_wrong_option_is_refused(text, options, message):
  with pytest.raises(ConfigError, match=message):
    vitx.sample(text, **options)


def test_only_a_density_model_with_a_cache_is_sampled(digits):
  loaded = density_models.make(mixer={"name": "performer"})
  with pytest.raises(ConfigError, match="Performer cannot be decoded token by token"):
    vitx.sample(loaded)
  classifier = dataclasses.replace(digits, task=object.__new__(Classification))
  with pytest.raises(ConfigError, match="is no density model"):
    vitx.sample(classifier)


def test_a_density_model_predicts_nothing(digits):
  with pytest.raises(ConfigError, match="vitx sample"):
    vitx.predict(digits, [np.zeros((8, 8, 1), np.uint8)])
