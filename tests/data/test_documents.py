"""Documents are cached, and a held-out split is one piece cut from their end."""

import numpy as np
import pytest

from tests.data.examples import Rows, join, names
from vitx.data import splits
from vitx.data.dataset import Dataset, DatasetInfo
from vitx.data.documents import SPEC, Documents, Span, carve_end, find_lengths

TEXTS = ["the first one", "", "second", "x", "and the last of them"]


def encode(texts):
  return [np.frombuffer(text.encode(), np.uint8) for text in texts]


def make(texts=TEXTS, reads=None, **changes):
  arrays = encode(texts)

  def read(i):
    if reads is not None:
      reads.append(i)
    return arrays[i]

  return Documents(
    read, lambda: np.array([len(array) for array in arrays]), lambda i: f"text {i}", **changes
  )


def dataset(documents, **changes):
  info = DatasetInfo("texts", SPEC, vocabulary=256)
  return Dataset(info, ("train",), {"train": documents}.__getitem__, carve=carve_end, **changes)


def test_documents_are_examples():
  documents = make()
  assert len(documents) == 5 and documents.labels is None and documents.name(2) == "text 2"
  assert documents[0]["tokens"].dtype == np.uint8
  assert documents.lengths.tolist() == [13, 0, 6, 1, 20]
  assert [documents[i]["tokens"].tobytes().decode() for i in range(5)] == TEXTS


def test_recently_read_documents_are_cached():
  reads = []
  documents = make(["aaaa", "bbbb", "cccc", "d" * 9], reads, cache_size=8)
  for i in (0, 1, 0, 2, 0, 1, 3, 3):  # two fit; the least recently used goes; 3 never fits
    assert len(documents[i]["tokens"]) == documents.lengths[i]
  assert reads == [0, 1, 2, 1, 3, 3]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.35, 0.5, 0.98])
def test_carving_takes_the_end(share):
  rest, part = carve_end(make(), share)
  whole, taken = "".join(TEXTS), max(1, round(40 * share))
  assert (join(rest), join(part)) == (whole[:-taken], whole[-taken:])
  assert part.lengths.sum() == taken and (part.lengths > 0).all()
  assert rest.lengths.tolist() == [len(rest[i]["tokens"]) for i in range(len(rest))]


def test_pieces_may_be_carved_again():
  rest, _ = carve_end(make(), 0.5)
  first, second = carve_end(rest, 0.5)
  assert (join(first), join(second)) == ("the first ", "onesecondx")
  assert join(carve_end(second, 0.5)[1]) == "condx" and first.name(0) == "text 0[0:10]"
  assert names(second) == ["text 0[10:13]", "text 2", "text 3"]


def test_carving_reads_nothing_and_counts_late():
  def fail(*_):
    raise AssertionError("too early")

  carve_end(Documents(fail, fail, str), 0.5)
  reads = []
  rest, part = carve_end(make(reads=reads), 0.5)
  assert (len(rest), len(part)) == (3, 1) and not reads


def test_examples_without_lengths_are_measured():
  plain = Rows([{"tokens": tokens} for tokens in encode(TEXTS)])
  assert find_lengths(plain).tolist() == [13, 0, 6, 1, 20]
  assert join(carve_end(plain, 0.5)[1]) == TEXTS[-1]


def test_a_fraction_is_the_first_part(make_data):
  text = "".join(chr(33 + i % 90) for i in range(1000))
  for share in (0.9, 0.25):
    roles = splits.assign(dataset(make([text])), make_data(fraction=share), seed=0)
    assert join(roles["train"]) == text[: round(720 * share)]
    assert join(roles["validation"]) == text[720:800]


def test_a_span_beyond_the_ends_is_cut():
  whole = Span(make(), lambda: (-5, 1000))
  assert join(whole) == "".join(TEXTS) and len(Span(make(), lambda: (3, 3))) == 0
  inner = Span(whole, lambda: (2, 30))
  assert join(Span(inner, lambda: (-5, 1000))) == join(inner) == "".join(TEXTS)[2:30]


def test_a_test_split_of_several_leaves_no_validation():
  roles = splits.find_splits(
    Dataset(DatasetInfo("texts", SPEC), ("train", "validation", "test"), str),
    {"test": "validation[:50%] + test"},
  )
  assert roles == {"train": "train", "validation": "", "test": "validation[:50%] + test"}
