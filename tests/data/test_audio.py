"""`audio:FOLDER` reads synthesized sound of all kinds of WAV, rates and channels."""

import struct
import sys

import numpy as np
import pytest
import soundfile
from absl import logging

from tests.data.examples import names, roles
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.data.mu_law import mu_law_decode, mu_law_encode
from vitx.data.sources import open_dataset, open_source
from vitx.data.wav import read_head


def tone(rate=12_000, seconds=0.1, pitch=440.0, loud=0.5):
  return loud * np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)


def write(path, samples, rate=12_000, bits=16, form=1, extra=b""):
  """Writes a WAV file by the format's definition; `extra` is the chunks before the sound."""
  path.parent.mkdir(parents=True, exist_ok=True)
  samples = np.atleast_2d(np.asarray(samples, np.float64).T).T
  channels = samples.shape[1]
  if form == 3:
    data = samples.astype(f"<f{bits // 8}").tobytes()
  elif bits == 8:
    data = np.round(samples * 127 + 128).astype(np.uint8).tobytes()
  else:
    whole = np.round(samples * (2 ** (bits - 1) - 1)).astype("<i8")
    data = whole[..., None].view(np.uint8)[..., : bits // 8].tobytes()
  frame = channels * bits // 8
  head = struct.pack("<HHIIHH", form, channels, rate, rate * frame, frame, bits)
  chunks = b"fmt " + struct.pack("<I", len(head)) + head + extra
  chunks += b"data" + struct.pack("<I", len(data)) + data
  path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
  return path


def only(examples):
  assert len(examples) == 1
  return examples[0]["tokens"]


def opened(folder, **changes):
  return open_dataset({"source": f"audio:{folder}", **changes})


def test_mu_law_codes_come_back():
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
  ("bits", "form", "step"),
  [(8, 1, 2**-6), (16, 1, 2**-14), (24, 1, 2**-22), (32, 1, 2**-22), (32, 3, 0), (64, 3, 2**-22)],
)
def test_kinds_of_wav(tmp_path, bits, form, step):
  samples = np.stack([tone(), -0.25 * tone()], axis=1).astype(np.float32)
  wav = read_head(write(tmp_path / "a.wav", samples, bits=bits, form=form))
  assert (wav.rate, wav.channels, wav.samples) == (12_000, 2, 1200)
  read = wav.read()
  assert read.dtype == np.float32 and read.shape == (1200, 2)
  np.testing.assert_allclose(read, samples, rtol=0, atol=step)


def test_other_chunks_and_extensible_heads(tmp_path):
  title = b"LIST" + struct.pack("<I", 5) + b"title\0"  # an odd chunk is padded
  path = write(tmp_path / "a.wav", tone(), extra=title)
  np.testing.assert_allclose(read_head(path).read()[:, 0], tone(), atol=2**-14)
  guid = struct.pack("<H", 1) + bytes.fromhex("000000001000800000aa00389b71")
  head = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 12_000, 24_000, 2, 16, 22, 16, 4) + guid
  data = np.arange(5, dtype="<i2").tobytes()
  chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", 10) + data
  path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
  np.testing.assert_array_equal(read_head(path).read()[:, 0] * 2**15, np.arange(5))


def test_a_file_that_was_cut_short_has_what_is_left(tmp_path):
  path = write(tmp_path / "a.wav", tone())
  whole = read_head(path).read()
  path.write_bytes(path.read_bytes()[:-101])  # in the midst of a sample
  left = read_head(path)
  assert left.samples == 1149
  np.testing.assert_array_equal(left.read(), whole[:1149])


def test_sound_at_12_khz_is_coded_as_it_is(tmp_path):
  write(tmp_path / "a.wav", tone(), bits=32, form=3)
  dataset = opened(tmp_path)
  assert (dataset.info.vocabulary, dataset.splits) == (256, ("train",))
  codes = only(dataset.open_split("train"))
  assert codes.dtype == np.uint8
  np.testing.assert_array_equal(codes, mu_law_encode(tone().astype(np.float32)))


def test_channels_are_averaged(tmp_path):
  write(tmp_path / "a.wav", np.stack([tone(), 0 * tone(), -0.5 * tone()], axis=1), bits=32, form=3)
  sound = mu_law_decode(only(opened(tmp_path).open_split("train")))
  np.testing.assert_allclose(sound, tone() / 6, atol=0.01)


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 44_100, 48_000])
def test_other_rates_are_resampled_and_said(tmp_path, rate, monkeypatch):
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


def test_folders_may_be_splits(tmp_path, make_data):
  for split, pitch in (("train", 300), ("val", 400), ("test", 500)):
    write(tmp_path / split / "deep" / "a.wav", tone(pitch=pitch))
  (tmp_path / "notes").mkdir()
  data = make_data(source=f"audio:{tmp_path}")
  source = open_source(data, seed=0)
  found = [role.name(0) for role in roles(source)]
  assert found == ["train/deep/a.wav", "val/deep/a.wav", "test/deep/a.wav"]
  sound = mu_law_decode(only(source.test))
  np.testing.assert_allclose(sound, tone(pitch=500), atol=0.02)
  (tmp_path / "train").rename(tmp_path / "piano")
  data.splits.train = "piano"
  assert open_source(data, seed=0).train.name(0) == "piano/deep/a.wav"
  for expression in ("piano+val", "piano[:50%]"):
    data.splits.train = expression
    with pytest.raises(ConfigError, match=r"has no split 'piano.* Name one of them: piano, "):
      open_source(data, seed=0)


def test_fingerprint_is_of_names_and_content(tmp_path):
  before = opened(write(tmp_path / "one" / "a.wav", tone()).parent).info.fingerprint
  assert opened(write(tmp_path / "two" / "a.wav", tone()).parent).info.fingerprint == before
  assert opened(write(tmp_path / "two" / "a.wav", -tone()).parent).info.fingerprint != before


@pytest.mark.parametrize("content", [b"", b"RIFF\0\0\0\0WAVE", b"ID3 this is an MP3"])
def test_files_that_are_no_wav(tmp_path, content):
  (tmp_path / "a.wav").write_bytes(content)
  with pytest.raises(ConfigError, match=r"a\.wav is not a WAV file, is empty or is cut short \("):
    opened(tmp_path)


def test_other_formats_under_the_suffix_are_refused(tmp_path):
  soundfile.write(tmp_path / "a.wav", tone(), 12_000, format="AIFF")
  with pytest.raises(ConfigError, match=r"a\.wav is not a WAV file\. Convert"):
    opened(tmp_path)


def test_a_missing_library_is_an_extra_to_install(tmp_path, monkeypatch):
  write(tmp_path / "a.wav", tone())
  monkeypatch.setitem(sys.modules, "soundfile", None)
  with pytest.raises(MissingExtraError, match=r'a\.wav.* needs the extra "audio"'):
    opened(tmp_path)


def test_wav_that_cannot_be_modeled(tmp_path):
  with pytest.raises(ConfigError, match=r"a\.wav has no samples"):
    read_head(write(tmp_path / "a.wav", np.zeros((0, 1))))
  with pytest.raises(ConfigError, match=r"encoding U-Law.*Convert the file to one of: .*PCM_16"):
    read_head(write(tmp_path / "a.wav", tone(), bits=8, form=7))
  write(tmp_path / "a.wav", np.array([0, np.nan]), bits=32, form=3)
  with pytest.raises(ConfigError, match=r"a\.wav has a sample that is not finite"):
    only(opened(tmp_path).open_split("train"))
