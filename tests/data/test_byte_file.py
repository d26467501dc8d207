"""`bytes:FILE`: a file's bytes, sliced by bytes and percent."""

import numpy as np
import pytest

from vitx.config.errors import ConfigError
from vitx.data.sources import byte_file, open_dataset, open_source

CONTENT = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)


@pytest.fixture
def path(tmp_path):
  (tmp_path / "text8").write_bytes(CONTENT.tobytes())
  return tmp_path / "text8"


def tokens(examples):
  return np.concatenate([examples[i]["tokens"] for i in range(len(examples))])


def test_the_file_is_one_document_whose_end_is_carved(path, make_data):
  source = open_source(make_data(source=f"bytes:{path}"), seed=0)
  assert (source.info.vocabulary, source.info.class_names) == (256, None)
  assert source.info.spec["tokens"].shape == (None,)
  np.testing.assert_array_equal(tokens(source.train), CONTENT[:720])
  np.testing.assert_array_equal(tokens(source.validation), CONTENT[720:800])
  np.testing.assert_array_equal(tokens(source.test), CONTENT[800:])
  assert source.test.name(0) == "text8[800:1000]" and source.train.labels is None


@pytest.mark.parametrize(
  ("expression", "start", "stop"),
  [
    ("train", 0, 1000),
    ("train[:]", 0, 1000),
    ("train[:90%]", 0, 900),
    ("train[9_00:950]", 900, 950),
    ("train[ 90% : 95.5% ]", 900, 955),
    ("train[-5%:]", 950, 1000),
    ("train[-20:-10]", 980, 990),
    ("train[10%:500]", 100, 500),
  ],
)
def test_slices_are_in_bytes_or_percent(path, make_data, expression, start, stop):
  examples = open_dataset(make_data(source=f"bytes:{path}")).open_split(expression)
  np.testing.assert_array_equal(tokens(examples), CONTENT[start:stop])


def test_several_slices_are_several_documents(path, make_data):
  examples = open_dataset(make_data(source=f"bytes:{path}")).open_split("train[:10%]+train[90%:]")
  assert examples.lengths.tolist() == [100, 100] and examples.name(1) == "text8[900:1000]"
  np.testing.assert_array_equal(tokens(examples), np.r_[CONTENT[:100], CONTENT[900:]])


@pytest.mark.parametrize(
  ("splits", "message"),
  [
    ({"train": "train[:90%]", "test": "train[899:]"}, r"data\.splits\.test.*shares examples"),
    (
      {"train": "train[:10]+train[50:]", "validation": "train[10:51]"},
      r"data\.splits\.validation.*shares",
    ),
    ({"train": "train[:2000]"}, r"'train\[:2000\]' is not a part of .* has 1000 bytes"),
    *(
      ({"train": f"train[{text}]"}, "is not a part of")
      for text in ("500:500", "-2000:", ":half", "1:2:3", "5", ":5_", "5__0:")
    ),
    ({"train": "train[:600]+train[599:]"}, r"names a part of .* twice"),
  ],
)
def test_unsuitable_slices_are_refused(path, make_data, splits, message):
  with pytest.raises(ConfigError, match=message):
    open_source(make_data(source=f"bytes:{path}", splits=splits), seed=0)


def test_slices_that_meet_do_not_overlap(path, make_data):
  dataset = open_dataset(make_data(source=f"bytes:{path}"))
  assert not dataset.overlap("train[:33%]", "train[33%:]")
  assert dataset.overlap("train[:331]", "train[33%:]")


def test_an_empty_file_is_refused(tmp_path, make_data):
  (tmp_path / "empty").write_bytes(b"")
  with pytest.raises(ConfigError, match=r"data\.source='bytes:.*cannot be read.*empty file"):
    open_dataset(make_data(source=f"bytes:{tmp_path}/empty"))


def test_fingerprint_is_of_the_content_alone(path, tmp_path, make_data, monkeypatch):
  def fingerprint(content, name="other"):
    (tmp_path / name).write_bytes(content)
    return open_dataset(make_data(source=f"bytes:{tmp_path / name}")).info.fingerprint

  before = fingerprint(CONTENT.tobytes())
  assert fingerprint(CONTENT.tobytes(), "renamed") == before
  changed = CONTENT.copy()
  changed[999] ^= 1
  assert fingerprint(changed.tobytes()) != before
  # Evenly spaced blocks of a large file are read, and the last block is one of them.
  monkeypatch.setattr(byte_file, "BLOCK", 1)
  monkeypatch.setattr("vitx.data.fingerprint.HASH_ALL", 10)
  sampled = fingerprint(CONTENT.tobytes())
  assert fingerprint(changed.tobytes()) != sampled
  changed[999] ^= 1
  changed[1] ^= 1  # this byte is in no block that is read
  assert fingerprint(changed.tobytes()) == sampled != before


def test_the_file_is_not_copied(path, make_data):
  dataset = open_dataset(make_data(source=f"bytes:{path}"))
  whole, end = (dataset.open_split(split)[0]["tokens"] for split in ("train", "train[90%:]"))
  assert np.shares_memory(whole, end) and not whole.flags.writeable
