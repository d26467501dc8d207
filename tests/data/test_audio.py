"""`audio:FOLDER` reads synthesized sound of all kinds of WAV, rates and channels."""

import sys

import numpy as np
import pytest
import soundfile
from absl import logging

from tests.data.examples import names, roles
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.config.settings import change
from vitx.data.mu_law import mu_law_decode, mu_law_encode
from vitx.data.sources import open_dataset, open_source
from vitx.data.wav import read_head


def tone(rate=12_000, seconds=0.1, pitch=440.0, loud=0.5):
  return loud * np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)


def write(path, samples, rate=12_000, subtype="PCM_16"):
  path.parent.mkdir(parents=True, exist_ok=True)
  soundfile.write(path, samples, rate, subtype, format="WAV")
  return path


def only(examples):
  assert len(examples) == 1
  return examples[0]["tokens"]


def opened(folder, **changes):
  return open_dataset({"source": f"audio:{folder}", **changes})


def test_mu_law_codes_are_restored():
  codes = np.arange(256, dtype=np.uint8)
  samples = mu_law_decode(codes)
  assert samples.dtype == np.float32 and (np.diff(samples) > 0).all()
  assert (samples[0], samples[-1]) == (-1, 1)
  np.testing.assert_array_equal(mu_law_encode(samples), codes)
  np.testing.assert_allclose(samples, -samples[::-1], atol=1e-7)


def test_mu_law_is_fine_where_sound_is_quiet():
  assert mu_law_encode(np.zeros(2)).tolist() == [128, 128]
  assert mu_law_encode(np.array([-7.0, 7.0])).tolist() == [0, 255]  # clipped
  x = np.linspace(-1, 1, 10_001)
  error = np.abs(mu_law_decode(mu_law_encode(x)) - x)
  # Half a step of the curve, whose slope there is ln(256) (1/255 + |x|) times the step 2/255.
  assert (error <= np.log(256) * (1 / 255 + np.abs(x)) / 255 * 1.05).all()


@pytest.mark.parametrize(
  ("subtype", "step"),
  [("PCM_U8", 2**-6), ("PCM_16", 2**-14), ("PCM_24", 2**-22), ("PCM_32", 2**-22), ("FLOAT", 0)],
)
def test_every_kind_of_wav_is_read(tmp_path, subtype, step):
  samples = np.stack([tone(), -0.25 * tone()], axis=1).astype(np.float32)
  wav = read_head(write(tmp_path / "a.wav", samples, subtype=subtype))
  assert (wav.rate, wav.samples) == (12_000, 1200)
  read = wav.read()
  assert read.dtype == np.float32 and read.shape == (1200, 2)
  np.testing.assert_allclose(read, samples, rtol=0, atol=step)


def test_a_truncated_file_keeps_its_first_samples(tmp_path):
  path = write(tmp_path / "a.wav", tone())
  whole = read_head(path).read()
  path.write_bytes(path.read_bytes()[:-101])  # in the midst of a sample
  shorter = read_head(path)
  assert shorter.samples == 1149
  np.testing.assert_array_equal(shorter.read(), whole[:1149])


def test_sound_at_12_khz_is_not_resampled(tmp_path):
  write(tmp_path / "a.wav", tone(), subtype="FLOAT")
  dataset = opened(tmp_path)
  assert (dataset.info.vocabulary, dataset.splits) == (256, ("train",))
  codes = only(dataset.open_split("train"))
  assert codes.dtype == np.uint8
  np.testing.assert_array_equal(codes, mu_law_encode(tone().astype(np.float32)))


def test_channels_are_averaged(tmp_path):
  write(tmp_path / "a.wav", np.stack([tone(), 0 * tone(), -0.5 * tone()], axis=1), subtype="FLOAT")
  sound = mu_law_decode(only(opened(tmp_path).open_split("train")))
  np.testing.assert_allclose(sound, tone() / 6, atol=0.01)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 44_100, 48_000])
def test_other_rates_are_resampled_and_logged(tmp_path, rate, monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "info", lambda message, *args: lines.append(message % args))
  write(tmp_path / "a.wav", tone(rate), rate=rate)
  examples = opened(tmp_path).open_split("train")
  sound = mu_law_decode(only(examples))
  assert len(sound) == examples.lengths[0] == 1200
  inner = slice(100, -100)  # the filter sees silence beyond the ends
  np.testing.assert_allclose(sound[inner], tone()[inner], atol=0.02)
  assert len(lines) == 1 and f"resampled to 12000 Hz: 1 of {rate} Hz" in lines[0]


@pytest.mark.parametrize("rate", [7999, 11_025, 44_100, 12_000])
@pytest.mark.parametrize("count", [1, 2, 147, 1000])
def test_lengths_are_known_without_reading(tmp_path, rate, count):
  write(tmp_path / "a.wav", np.linspace(-0.5, 0.5, count), rate=rate)
  examples = opened(tmp_path).open_split("train")
  assert examples.lengths[0] == len(only(examples))


def test_each_file_is_a_document(tmp_path, make_data):
  for i, name in enumerate(("b/late.WAV", "a.wav", "b/c.wave", ".hidden.wav", "notes.txt")):
    write(tmp_path / name, tone(seconds=0.1 * (i + 1)))
  source = open_source(make_data(source=f"audio:{tmp_path}"), seed=0)
  assert list(map(names, roles(source))) == [
    ["a.wav", "b/c.wave[0:2784]"],
    ["b/c.wave[2784:3360]"],
    ["b/c.wave[3360:3600]", "b/late.WAV"],
  ]
  codes = np.concatenate([role[i]["tokens"] for role in roles(source) for i in range(len(role))])
  sound = np.concatenate([tone(seconds=seconds) for seconds in (0.2, 0.3, 0.1)])
  np.testing.assert_allclose(mu_law_decode(codes), sound, atol=0.02)


def test_folders_may_be_splits(tmp_path, make_data, caplog):
  for split, pitch in (("train", 300), ("val", 400), ("test", 500)):
    write(tmp_path / split / "deep" / "a.wav", tone(pitch=pitch))
  write(tmp_path / "beside.wav", tone())
  data = make_data(source=f"audio:{tmp_path}")
  source = open_source(data, seed=0)
  names = [role.name(0) for role in roles(source)]
  assert names == ["train/deep/a.wav", "val/deep/a.wav", "test/deep/a.wav"]
  sound = mu_law_decode(only(source.test))
  np.testing.assert_allclose(sound, tone(pitch=500), atol=0.02)
  assert "skipped 1 WAV files outside of the splits: beside.wav" in caplog.text
  (tmp_path / "train").rename(tmp_path / "piano")
  data = change(data, {"splits.train": "piano"})
  assert open_source(data, seed=0).train.name(0) == "piano/deep/a.wav"


def test_the_fingerprint_follows_names_and_content(tmp_path):
  before = opened(write(tmp_path / "one" / "a.wav", tone()).parent).info.fingerprint
  assert opened(write(tmp_path / "two" / "a.wav", tone()).parent).info.fingerprint == before
  assert opened(write(tmp_path / "two" / "a.wav", -tone()).parent).info.fingerprint != before


@pytest.mark.parametrize("content", [b"", b"RIFF\0\0\0\0WAVE", b"ID3 this is an MP3"])
def test_files_of_other_kinds_are_refused(tmp_path, content):
  (tmp_path / "a.wav").write_bytes(content)
  with pytest.raises(ConfigError, match=r"a\.wav cannot be read as WAV"):
    opened(tmp_path)


def test_a_missing_library_is_an_extra_to_install(tmp_path, monkeypatch):
  write(tmp_path / "a.wav", tone())
  monkeypatch.setitem(sys.modules, "soundfile", None)
  with pytest.raises(MissingExtraError, match=r'a\.wav.* needs the extra "audio"'):
    opened(tmp_path)


def test_samples_that_are_not_finite_are_refused(tmp_path):
  write(tmp_path / "a.wav", np.array([0, np.nan]), subtype="FLOAT")
  with pytest.raises(ConfigError, match=r"a\.wav has a sample that is not finite"):
    only(opened(tmp_path).open_split("train"))
