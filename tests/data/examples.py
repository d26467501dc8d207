"""Examples for the tests of data sets, and short ways to look at examples."""

from pathlib import Path

import numpy as np

# Values that tests/golden/record_timm_images.py recorded from timm.
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "timm_images.npz")


class Rows:
  """Examples that are given as dicts of arrays; an exception in place of a dict is raised.

  The labels are those in the arrays, if every example has one.
  """

  def __init__(self, rows, kind="example"):
    self.rows, self._kind = rows, kind
    labels = [row["label"] for row in rows if isinstance(row, dict) and "label" in row]
    self.labels = np.array(labels, np.int32) if len(labels) == len(rows) else None

  def __len__(self):
    return len(self.rows)

  def __getitem__(self, i):
    if isinstance(self.rows[i], Exception):
      raise self.rows[i]
    return self.rows[i]

  def name(self, i):
    return f"{self._kind} {i}"


def names(examples):
  return [examples.name(i) for i in range(len(examples))]


def join(examples):
  """Returns the tokens of documents as one text."""
  return b"".join(examples[i]["tokens"].tobytes() for i in range(len(examples))).decode()


def roles(source):
  return [source.train, source.validation, source.test]
