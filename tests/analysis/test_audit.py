"""Duplicates, suspect labels, unusual images and groups are found from arrays and names."""

import re
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from vitx.analysis import audit
from vitx.analysis.probes import LabeledFeatures, predict_out_of_fold
from vitx.config.errors import MissingExtraError


def measure(*pictures):
  """Returns an audited image for each array of pixels."""
  facts = [audit.measure_image(np.asarray(pixels)) for pixels in pictures]
  return [audit.AuditedImage(i, str(i), "train", "", "", *x) for i, x in enumerate(facts)]


def draw(seed, size=(60, 80)):
  """Draws a smooth picture, as photos are."""
  coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
  return np.asarray(Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC))


def test_resized_and_mirrored_copies_are_duplicates():
  first, other, blank = draw(0), draw(1), np.full((60, 80, 3), 90, np.uint8)
  half = np.asarray(Image.fromarray(first).resize((40, 30)))
  images = measure(first, other, half, blank, other[:, ::-1], blank)
  numbers, texts = audit.find_duplicates(images)
  groups = [part.tolist() for part in audit.list_groups(numbers)]
  assert groups == [[0, 2], [1, 4]] and set(texts) == {0, 1, 2, 4}
  assert [text.endswith("mirrored") for _, text in sorted(texts.items())] == [0, 1, 0, 1]


def test_duplicates_are_found_in_parts_of_the_matrix(monkeypatch):
  images = measure(*(draw(seed % 7) for seed in range(20)))
  whole = audit.find_duplicates(images)
  monkeypatch.setattr(audit, "AT_ONCE", 60)
  parts = audit.find_duplicates(images)
  assert len(audit.list_groups(whole[0])) == 7 and whole[1] == parts[1]
  np.testing.assert_array_equal(whole[0], parts[0])


def test_suspects_are_those_of_the_confident_joint():
  """The reference counts the joint example by example, as the paper defines it."""
  random = np.random.default_rng(0)
  labels = random.integers(0, 4, 200)
  probabilities = softmax(random.normal(size=(200, 5)) + 2 * np.eye(5)[labels], axis=1)
  order, guesses, count = audit.rank_suspects(probabilities, labels)
  thresholds = [probabilities[labels == k, k].mean() for k in range(4)]
  suspects = {}
  for i, row in enumerate(probabilities):
    confident = [k for k in range(4) if row[k] >= thresholds[k]]
    if confident and max(confident, key=row.__getitem__) != labels[i]:
      suspects[i] = max(p for k, p in enumerate(row) if k != labels[i]) - row[labels[i]]
  assert 5 < count < 100 and order[:count].tolist() == sorted(suspects, key=lambda i: -suspects[i])
  assert sorted(order.tolist()) == list(range(200)) and not (guesses == labels).any()


def test_wrong_labels_are_found_out_of_fold():
  random = np.random.default_rng(1)
  truth = np.repeat([0, 1, 3], 60)  # class 2 has no example
  values = np.eye(4)[truth] + random.normal(0, 0.2, (180, 4))
  labels = truth.copy()
  labels[:60:10] = 3
  known = LabeledFeatures(values.astype(np.float32), labels.astype(np.int32))
  probabilities = predict_out_of_fold(known, np.arange(180) % 5, 4)
  order, guesses, count = audit.rank_suspects(probabilities, labels)
  assert set(order[:6]) == set(range(0, 60, 10)) and count >= 6
  assert not guesses[order[:6]].any() and not probabilities[:, 2].any()


def test_blank_and_outlying_images_are_named():
  pictures = [draw(seed, size=(60 + seed, 80)) for seed in range(20)]
  pictures += [np.zeros((60, 80, 3), np.uint8), draw(0, (9, 12)), draw(1, (60, 400))]
  unusual = audit.find_unusual(measure(*pictures, draw(2) // 8 + 220))
  assert unusual[:3] == [(20, "blank"), (21, "size"), (22, "shape")] and unusual[3][0] == 23
  assert "brightness" in unusual[3][1] and len(unusual) == 4


def test_the_expression_keeps_each_group_together():
  groups = [["rose/IMG 1.jpg", "rose/IMG,(2).jpg"], ["ant/3.jpg", "rose/4.jpg"]]
  expression = audit.write_groups(groups)
  names = [*(name for group in groups for name in group), "rose/5.jpg", "rose/6.jpg"]
  texts = [re.search(expression, name).groups() for name in names]
  assert texts[0] == texts[1] and texts[2] == texts[3] and len(set(texts)) == 4
  assert not set(expression) & set(" ,\\'\"")
  expression = audit.write_groups([["train[1]", "train[2]"], ["train[15]", "train[70]"]])
  texts = [re.search(expression, f"train[{i}]").groups() for i in (1, 2, 15, 70, 10, 105)]
  assert texts[0] == texts[1] and texts[2] == texts[3] and len(set(texts)) == 4


def test_the_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "imagehash", None)
  with pytest.raises(MissingExtraError, match=r'vitx audit needs the extra "audit"'):
    audit.measure_image(draw(0))
