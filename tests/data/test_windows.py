"""Windows over documents score every token once, and random crops depend on their bits only."""

import numpy as np
import pytest

from vitx.config.errors import ConfigError
from vitx.data import order
from vitx.data.documents import Documents
from vitx.data.windows import CropWindow, Windows


def make(*lengths):
  """Returns documents whose tokens count up through all of them."""
  ends = np.cumsum(lengths)
  arrays = [np.arange(end - n, end, dtype=np.uint8) for end, n in zip(ends, lengths, strict=True)]
  return Documents(arrays.__getitem__, lambda: np.array(lengths), "doc{}".format)


@pytest.mark.parametrize("hop", [None, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("lengths", [(8,), (9,), (15, 16), (8, 40, 17), (33, 8, 11, 64)])
def test_every_token_is_scored_once_with_its_context(hop, lengths):
  size = 8
  windows = Windows(make(*lengths), size, hop=hop)
  starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
  scored = []
  for i in range(len(windows)):
    tokens, first = windows[i]["tokens"], windows[i]["first"]
    assert (tokens.shape, tokens.dtype, first.shape, first.dtype) == ((8,), "uint8", (), "int32")
    np.testing.assert_array_equal(tokens, np.arange(tokens[0], tokens[0] + size))
    # A window stays in its document. Every window after the first has the least context.
    assert np.searchsorted(starts, tokens[0], "right") == np.searchsorted(
      starts, tokens[-1], "right"
    )
    assert first == 0 if tokens[0] in starts else first >= size - (hop or size)
    scored += tokens[first:].tolist()
  assert scored == list(range(sum(lengths)))
  steps = [1 + -(-(n - size) // (hop or size)) for n in lengths]
  assert len(windows) == sum(steps)  # not one more than needed


def test_names_state_the_range():
  windows = Windows(make(8, 11), 4)
  assert windows.name(1) == "doc0[4:8]" and windows.labels is None
  assert [windows.name(i) for i in (2, 4)] == ["doc1[0:4]", "doc1[7:11]"]
  assert windows[4]["first"] == 1


def test_stretches_contain_every_window():
  windows = Windows(make(8, 21), 8, stretch=True)
  spans = [(int(t[0]), int(t[-1])) for t in (windows[i]["tokens"] for i in range(len(windows)))]
  assert spans == [(0, 7), (8, 22), (16, 28)]
  reached = {start + o for start, end in spans for o in range(end - start + 1 - 8 + 1)}
  assert reached == {0, *range(8, 22)}


def test_crops_reach_every_place_and_draw_evenly():
  crop, counts = CropWindow(4), np.zeros(3, int)
  example = {"tokens": np.arange(6, dtype=np.uint8), "first": np.int32(0)}
  for i in range(600):
    tokens = crop(example, order.generator(0, order.TRANSFORM, i))["tokens"]
    np.testing.assert_array_equal(tokens, np.arange(tokens[0], tokens[0] + 4))
    counts[tokens[0]] += 1
  assert (counts > 150).all()
  assert crop({"tokens": np.arange(4)}, order.generator(0, 1))["tokens"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
  ("lengths", "changes", "message"),
  [
    ((20, 7, 6), {}, r"task\.window=8 is longer than 2 documents, such as 'doc1'.*at most 6"),
    ((20, 7), {"stretch": True}, r"task\.window=8 .*'doc1'"),
    ((), {}, r"data\.source: train, val or test has no documents"),
  ],
)
def test_documents_shorter_than_a_window_are_refused(lengths, changes, message):
  with pytest.raises(ConfigError, match=message):
    len(Windows(make(*lengths), **{"size": 8, **changes}))
