import numpy as np
import pytest

from vitx.data import order


def test_permutation_is_pinned_across_versions():
  assert order.permutation(3, 1, 10).tolist() == [7, 9, 0, 8, 4, 5, 1, 2, 6, 3]


def test_every_epoch_holds_every_example_once_and_differs():
  sequence = order.example_at(0, np.arange(3 * 17), 17).reshape(3, 17)
  assert (np.sort(sequence, axis=1) == np.arange(17)).all()
  assert len({tuple(epoch) for epoch in sequence.tolist()}) == 3


@pytest.mark.parametrize("batch_size", [1, 4, 17, 40])
def test_batches_are_windows_of_one_sequence(batch_size):
  sequence = order.example_at(5, np.arange(200), 17)
  for step in (0, 3):
    window = np.arange(step * batch_size, (step + 1) * batch_size)
    np.testing.assert_array_equal(order.example_at(5, window, 17), sequence[window])


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


def test_uniform_is_uniform():
  draws = order.uniform(order.generator(0, order.TRANSFORM, 7), 20_000)
  assert draws.min() >= 0 and draws.max() < 1
  counts = np.histogram(draws, bins=10, range=(0, 1))[0]
  assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi-squared, 9 degrees, p = 0.001
