import numpy as np
import pytest

from tests.data.examples import GOLDEN
from vitx.data import order


def test_permutation_is_pinned_across_versions():
  assert order.permutation(3, 1, 10).tolist() == [7, 9, 0, 8, 4, 5, 1, 2, 6, 3]


def test_every_epoch_has_every_example_once():
  sequence = order.example_at(0, np.arange(3 * 17), 17).reshape(3, 17)
  assert (np.sort(sequence, axis=1) == np.arange(17)).all()
  assert len({tuple(epoch) for epoch in sequence.tolist()}) == 3


def test_seeds_and_streams_are_independent():
  draws = [
    order.generator(seed, stream, *counter).random_raw()
    for seed, stream, counter in (
      *((seed, order.ORDER, (0,)) for seed in (0, 1, -1, 2**40)),
      (0, order.TRANSFORM, (0,)),
      (0, order.TRANSFORM, (1, 0)),
      (0, order.TRANSFORM, (0, 1)),
    )
  ]
  assert len(set(draws)) == len(draws)


def test_draws_are_uniform():
  draws = order.uniform(order.generator(0, order.TRANSFORM, 7), 20_000)
  assert draws.min() >= 0 and draws.max() < 1
  counts = np.histogram(draws, bins=10, range=(0, 1))[0]
  assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-squared, 9 degrees, p = 0.001


def test_repeats_follow_deits_sampler(monkeypatch):
  """Four replicas read 192 of 768 examples each in an epoch; a batch has 64 of each replica."""
  monkeypatch.setattr(order, "permutation", lambda seed, epoch, count: GOLDEN["order"][epoch])
  read = GOLDEN["order_read"].reshape(2, 4, 3, 64)  # epoch, replica, batch, example
  for step in range(6):
    examples = order.example_at(0, np.arange(step * 256, (step + 1) * 256), 768, repeats=3)
    expected = read[step // 3, :, step % 3]
    assert sorted(examples) == sorted(expected.ravel())


@pytest.mark.parametrize("repeats", [2, 3])
def test_an_epoch_with_repeats_has_the_first_examples(repeats):
  sequence = order.example_at(1, np.arange(2 * 17), 17, repeats).reshape(2, 17)
  for epoch, read in enumerate(sequence):
    first = order.permutation(1, epoch, 17)[: -(-17 // repeats)]
    np.testing.assert_array_equal(read, np.repeat(first, repeats)[:17])


@pytest.mark.parametrize("batch_size", [1, 2, 7, 12])
def test_neighbors_have_mirrored_places(batch_size):
  rows = np.arange(batch_size)
  np.testing.assert_array_equal(order.places(rows, batch_size, 1), rows)
  places = order.places(rows, batch_size, 3)
  assert sorted(places) == rows.tolist()
  pairs = places[: batch_size // 2 * 2].reshape(-1, 2)
  assert (pairs.sum(1) == batch_size - 1).all()


LABELS = np.random.default_rng(0).permutation(np.repeat([0, 2, 5], [3, 10, 40]))


def test_a_balanced_order_has_each_class_once_in_each_cycle():
  sequence = order.BalancedOrder(0, LABELS).example_at(np.arange(3 * 50))
  cycles = LABELS[sequence].reshape(50, 3)
  assert (np.sort(cycles, axis=1) == [0, 2, 5]).all()
  assert len({tuple(cycle) for cycle in cycles.tolist()}) == 6  # in every order


@pytest.mark.parametrize("label", [0, 2, 5])
def test_a_class_goes_through_permutations_of_its_examples(label):
  members = np.flatnonzero(np.equal(LABELS, label))
  sequence = order.BalancedOrder(3, LABELS).example_at(np.arange(3 * 9 * len(members)))
  passes = sequence[LABELS[sequence] == label].reshape(9, len(members))
  assert (np.sort(passes, axis=1) == members).all()
  assert len({tuple(row) for row in passes.tolist()}) >= min(9, len(members))


def test_a_balanced_order_is_a_function_of_seed_and_position():
  whole = order.BalancedOrder(1, LABELS).example_at(np.arange(400))
  for window in (np.arange(7), np.arange(390, 400), np.array([250, 3, 3, 121])):
    np.testing.assert_array_equal(order.BalancedOrder(1, LABELS).example_at(window), whole[window])
  assert (order.BalancedOrder(2, LABELS).example_at(np.arange(400)) != whole).any()
  repeated = order.BalancedOrder(1, LABELS).example_at(np.arange(400), repeats=2)
  np.testing.assert_array_equal(repeated, np.repeat(whole[:200], 2))


def test_a_balanced_order_is_pinned_across_versions():
  assert order.BalancedOrder(3, LABELS).example_at(np.arange(6)).tolist() == [49, 16, 42, 9, 13, 15]
