"""Divides examples into shares and folds that are balanced by class, one by one or by groups."""

import heapq

import numpy as np

from vitx.data import order


def choose_balanced(
  classes: np.ndarray, groups: np.ndarray | None, share: float, seed: int, stream: int, spare: int
) -> np.ndarray:
  """Chooses a share of the examples of each class at random.

  At least one example of each class is chosen if `spare` allows it. The chosen examples are the
  first in a random order that depends on the seed alone, so a smaller share is a subset of a larger
  one.

  With `groups`, whole groups are chosen. The classes are treated in the order of `_stratify`. A
  class gets the first groups in the random order with which its share is nearly reached; groups of
  more than twice the share come last. A smaller share is a subset of a larger one if each group has
  one class and no group is so large.

  Args:
    classes: The class of each example, (n,).
    groups: The group of each example, a number or a text, (n,); None chooses single examples.
    share: The share, between 0 and 1.
    seed: The seed of the order.
    stream: The number of the stream of random bits, see `order.generator`.
    spare: The minimum number of examples, or groups, of each class that are not chosen.

  Returns:
    A mask of the chosen examples, bool (n,).
  """
  numbers, sizes, strata = _stratify(classes, groups, seed, stream)
  chosen = np.zeros(len(sizes), bool)
  for owners, counts, items, weights in strata:
    target, most = share * counts.sum() - counts[chosen[owners]].sum(), len(items) - spare
    sequence = np.argsort(np.maximum(weights / 2 - target, 0), kind="stable")
    middles = np.cumsum(weights[sequence]) - weights[sequence] / 2
    # A group whose middle is below the target brings the number of examples nearer to it.
    least = 0 if chosen[owners].any() else min(1, most)
    chosen[items[sequence[: np.clip(np.sum(middles <= target), least, most)]]] = True
  return chosen[numbers]


def find_strata(labels: np.ndarray) -> np.ndarray:
  """Returns the stratum of each example, for examples of several classes.

  The stratum is the example's rarest class, so that roles and folds get an equal share of the
  examples of a rare class. If a class is the rarest of none of its examples, one of them is a
  stratum of its own: `choose_balanced` leaves in train an example of each class.

  Args:
    labels: The classes of each example, (n, K), 1 for each class, otherwise 0.

  Returns:
    The strata, int (n,).
  """
  is_known = labels > 0.5
  count, counts = labels.shape[1], is_known.sum(axis=0)
  rarest = np.where(is_known, counts, np.inf).argmin(axis=1)
  strata = np.where(is_known.any(axis=1), rarest, count)
  for label in np.setdiff1d(np.flatnonzero(counts), strata):
    strata[np.flatnonzero(is_known[:, label])[0]] = count + 1 + label
  return strata


def _stratify(
  classes: np.ndarray, groups: np.ndarray | None, seed: int, stream: int
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, ...]]]:
  """Returns the number of each example's group, the size of each group, and arrays for each class.

  The arrays are the groups that have the class; the number of examples of the class in each; those
  of the groups that no earlier class has, in random order; and their numbers of examples of the
  class. The first class is that which the fewest groups have. Without groups, each example is a
  group, and the first class is that of the lowest label.
  """
  labels = np.unique(classes, return_inverse=True)[1]
  numbers = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
  sizes = np.bincount(numbers)
  place = np.argsort(order.shuffle(seed, stream, 0, len(sizes)))
  parts = (numbers[labels == label] for label in range(labels.max(initial=-1) + 1))
  members = [np.unique(part, return_counts=True) for part in parts]
  if groups is not None:
    members.sort(key=lambda member: len(member[0]))
  strata: list[tuple[np.ndarray, ...]] = []
  for owners, counts in members:
    free = np.argsort(place[owners])[np.count_nonzero(place[owners] < 0) :]
    strata.append((owners, counts, owners[free], counts[free]))
    place[owners] = -1
  return numbers, sizes, strata


def find_folds(classes: np.ndarray, folds: int, groups: np.ndarray | None = None) -> np.ndarray:
  """Divides examples into folds whose sizes, in total and per class, differ by at most one.

  The division depends on the classes and the number of examples alone, not on a seed.

  With `groups`, each group is in one fold, and the sizes are as equal as those of the groups allow.
  The classes are treated in the order of `_stratify`.

  Args:
    classes: The class of each example, (n,).
    folds: The number of folds.
    groups: The group of each example, a number or a text, (n,); None divides single examples.

  Returns:
    The fold of each example, int (n,).
  """
  numbers, sizes, strata = _stratify(classes, groups, 0, order.FOLDS)
  result, totals = np.full(len(sizes), folds), [0] * folds
  for owners, counts, items, weights in strata:
    class_counts = np.bincount(result[owners], counts, folds).tolist()
    # A group goes to the fold with the fewest examples of the class, and of these the smallest.
    queue = sorted(zip(class_counts[:folds], totals, range(folds), strict=True))
    for i in np.argsort(-weights, kind="stable"):
      examples, total, fold = queue[0]
      result[items[i]], totals[fold] = fold, total + sizes[items[i]]
      heapq.heapreplace(queue, (examples + weights[i], totals[fold], fold))
  return result[numbers]
