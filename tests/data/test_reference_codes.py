"""The bits of reference codes are computed from the beginning of the data, and cached."""

import bz2
import gzip
import json
import lzma

import numpy as np
import pytest

from vitx.data import reference_codes
from vitx.data.count_models import count_model_bits, per_position_bits
from vitx.data.reference_codes import compressor_bits, reference_figures

COUNTS = [f"count_{order}" for order in range(6)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  return tmp_path / "vitx" / "references"


def draw(seed, *lengths, high=4):
  generator = np.random.default_rng(seed)
  return [generator.integers(0, high, n).astype(np.uint8) for n in lengths]


def test_documents_get_every_figure():
  train, test = draw(0, 500, 40), draw(1, 300, 7)
  figures = reference_figures(train, test, vocabulary=8, kind="documents")
  assert list(figures) == [*COUNTS, "gzip", "xz", "bz2", "reference_bytes", "reference_train_bytes"]
  assert [figures[name] for name in COUNTS] == count_model_bits(train, test, 8)
  data = np.concatenate(test).tobytes()
  packed = {"gzip": gzip.compress(data, 9), "bz2": bz2.compress(data), "xz": lzma.compress(data)}
  assert compressor_bits(data).items() <= figures.items()
  assert all(figures[name] <= 8 * len(packed[name]) / len(data) for name in packed)
  assert (figures["reference_bytes"], figures["reference_train_bytes"]) == (307, 540)


def test_images_get_figures_per_position():
  train, test = (np.stack(draw(seed, *[12] * 20)) for seed in (0, 1))
  shape = (20, 2, 2, 3)
  figures = reference_figures(
    train.reshape(shape), test.reshape(shape), vocabulary=4, kind="images"
  )
  assert figures["per_position"] == per_position_bits(train, test, 4)
  assert [figures[name] for name in COUNTS] == count_model_bits(train, test, 4)
  assert figures["reference_bytes"] == 240


def test_only_the_first_bytes_are_used(monkeypatch):
  monkeypatch.setattr(reference_codes, "LIMIT", 100)
  train, test = draw(0, 70, 70, 70), draw(1, 300)
  asked = []

  def lazily():
    for array in train:
      asked.append(len(array))
      yield array

  figures = reference_figures(lazily(), test, vocabulary=4, kind="documents")
  used = [train[0], train[1][:30]], [test[0][:100]]
  assert [figures[name] for name in COUNTS] == count_model_bits(*used, 4)
  assert (figures["reference_bytes"], figures["reference_train_bytes"]) == (100, 100)
  assert len(asked) == 2
  # Images are not cut.
  images = np.stack(draw(2, *[30] * 9))
  assert reference_figures(images, images, vocabulary=4, kind="images")["reference_bytes"] == 90


def test_figures_are_computed_once(cache, monkeypatch):
  train, test = draw(0, 200), draw(1, 200)
  first = reference_figures(train, test, vocabulary=4, kind="documents")
  (path,) = cache.iterdir()
  assert json.loads(path.read_text()) == first

  def fail(*_, **__):
    raise AssertionError("computed again")

  halves = [train[0][:100], train[0][100:]]  # where documents end matters
  with monkeypatch.context() as patch:
    patch.setattr(reference_codes, "count_model_bits", fail)
    assert reference_figures(train, test, vocabulary=4, kind="documents") == first
    changes = ((test, test, 4), (train, train, 4), (train, test, 5), (halves, test, 4))
    for train_, test_, vocabulary in changes:
      with pytest.raises(AssertionError, match="again"):
        reference_figures(train_, test_, vocabulary=vocabulary, kind="documents")


def test_a_damaged_cache_is_computed_again(cache):
  train, test = draw(0, 200), draw(1, 200)
  first = reference_figures(train, test, vocabulary=4, kind="documents")
  (path,) = cache.iterdir()
  for broken in (b"", b'{"gzip": 1', b"[]", b"\xff\xfe", b'{"gzip": 1.0}'):
    path.write_bytes(broken)
    figures = reference_figures(train, test, vocabulary=4, kind="documents")
    assert figures == first == json.loads(path.read_text()), broken
    assert list(cache.iterdir()) == [path], broken
