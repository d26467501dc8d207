"""Count models agree with their definition, which is written here with dictionaries."""

import collections
import math

import numpy as np
import pytest

from vitx.data.count_models import count_model_bits, per_position_bits


def define(train, test, vocabulary):
  """Returns the bits per token of each order, computed token by token."""
  orders, d = 6, 0.75
  counts = [collections.defaultdict(collections.Counter) for _ in range(orders)]

  def grams(sequence, order):
    padded = [None] * order + list(sequence)
    return [(tuple(padded[i : i + order]), padded[i + order]) for i in range(len(sequence))]

  for order in range(orders):
    for sequence in train:
      for context, token in grams(sequence, order):
        counts[order][context][token] += 1
  probabilities = [1 / vocabulary] * sum(map(len, test))
  bits = []
  for order in range(orders):
    asked = [gram for sequence in test for gram in grams(sequence, order)]
    for i, (context, token) in enumerate(asked):
      next_tokens = counts[order].get(context)
      if next_tokens:
        total = sum(next_tokens.values())
        free = d * len(next_tokens) / total
        probabilities[i] = max(next_tokens[token] - d, 0) / total + free * probabilities[i]
    bits.append(-sum(map(math.log2, probabilities)) / len(probabilities))
  return bits


def random_sequences(seed, lengths, vocabulary):
  """Returns tokens, some of which follow others more often."""
  draw = np.random.default_rng(seed)
  return [
    (draw.integers(0, vocabulary, n) * draw.integers(0, 2, n)).astype(np.uint8) for n in lengths
  ]


@pytest.mark.parametrize("vocabulary", [3, 17, 256])
def test_bits_agree_with_the_definition(vocabulary):
  train = random_sequences(0, (150, 1, 40), vocabulary)
  test = random_sequences(1, (70, 3, 1), vocabulary)
  bits = count_model_bits(train, test, vocabulary)
  np.testing.assert_allclose(bits, define(train, test, vocabulary), rtol=1e-12)


def test_images_do_not_continue_each_other():
  images = np.array([[0, 1], [2, 3]] * 50, np.uint8)
  bits = count_model_bits(images, images, 4)
  # The first token is a coin toss, which determines the second. No image predicts another.
  assert bits[0] == pytest.approx(2, abs=1e-3)
  assert bits[1:] == pytest.approx([0.5] * 5, abs=0.02)
  rows = count_model_bits([images.ravel()], [images.ravel()], 4)
  assert rows[5] == pytest.approx(0, abs=0.1)


def test_probabilities_sum_to_one():
  train = random_sequences(3, (60, 5), 4)
  for context in ([], [0], [3, 1], [1, 2, 3, 0, 2, 2]):
    bits = np.array([count_model_bits(train, [np.array([*context, last])], 4) for last in range(4)])
    before = np.array(count_model_bits(train, [np.array(context)], 4)) if context else np.zeros(6)
    last = bits * (len(context) + 1) - before * len(context)
    np.testing.assert_allclose((2.0**-last).sum(axis=0), 1, rtol=1e-9)


def test_unseen_tokens_have_finite_bits():
  bits = count_model_bits([np.zeros(50, np.uint8)], [np.full(4, 255, np.uint8)], 256)
  assert np.isfinite(bits).all() and min(bits) > 8


@pytest.mark.parametrize("token", [-1, 4])
def test_tokens_outside_the_vocabulary_are_refused(token):
  with pytest.raises(ValueError, match=r"tokens are not all in 0 \.\.\. 3"):
    count_model_bits([[0]], [[0, token]], 4)


def test_positions_are_independent():
  train = np.array([[0, 1, 2], [0, 2, 2], [0, 1, 0]])
  test = np.array([[0, 1, 1], [1, 0, 2]])
  counts = np.array([[3, 0, 0], [0, 2, 1], [1, 0, 2]]) + 0.5
  bits = [-math.log2(counts[i, token] / 4.5) for image in test for i, token in enumerate(image)]
  assert per_position_bits(train, test, 3) == pytest.approx(np.mean(bits), rel=1e-12)
  coin = np.array([[0], [1]] * 500)
  assert per_position_bits(coin, coin, 2) == pytest.approx(1)
