"""Guesses the role of a split (train, validation or test) from its name, such as "dev_set"."""

import re
from collections.abc import Iterable

from vitx.config.errors import nearest
from vitx.data.dataset import ROLES

# The documented names of each role. If several splits have a name of one role, the split whose name
# is listed first is used.
NAMES = {
  "train": ("train",),
  "validation": ("validation", "val", "valid", "dev"),
  "test": ("test",),
}
FOLD = "fold"  # the result for a name with a number and no role
_WORDS = {
  "train": ("train", "training", "trn", "trainval"),
  "validation": NAMES["validation"]
  + ("validate", "validating", "development", "eval", "evaluation", "evaluate"),
  "test": ("test", "testing", "tst", "holdout"),
}
_ROLE_OF = {word: role for role, words in _WORDS.items() for word in words}
_FOLDS = {"fold", "kfold", "cv", "split", "part", "partition", "subset"}
# Words that add no meaning to a word for a role.
_FILLERS = {"set", "sets", "data", "dataset", "split", "splits", "folder", "dir", "seg", "cls"}
_FILLERS |= {"image", "images", "img", "imgs", "pics", "pictures", "photos", "samples", "part"}


def find_role(name: str) -> str | None:
  """Returns the role that a split's name states: "train", "validation" or "test".

  A numbered part of data, such as "fold3", gives `FOLD`; any other name gives None.
  """
  apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold()
  words = [_strip(word) for word in re.findall(r"[^\W\d_]+", apart)]
  known = [_ROLE_OF[word] for word in words if word in _ROLE_OF]
  others = [word for word in words if word not in _ROLE_OF and word not in _FILLERS]
  if len(known) == 1 and not others:
    return known[0]
  if not known and re.search(r"\d", name) and words and all(w in _FOLDS | _FILLERS for w in words):
    return FOLD if not _FOLDS.isdisjoint(words) else None
  return None


def suggest_name(name: str) -> str:
  """Returns " Did you mean 'train'?" for a misspelled name of a split, or "" for any other name."""
  return "" if find_role(name) else nearest(name.lower(), sum(NAMES.values(), ()), cutoff=0.7)


def states_role(name: str) -> bool:
  """Returns whether a name states one of the three roles."""
  return find_role(name) in ROLES


def _strip(word: str) -> str:
  """Removes a suffix from a word for a role: `trainset` becomes `train`."""
  for filler in ("set", "data", "images", "imgs", "split"):
    if word.removesuffix(filler) in _ROLE_OF:
      return word.removesuffix(filler)
  return word


def find_roles(splits: Iterable[str]) -> dict[str, list[str]]:
  """Finds splits that probably are a data set's train, validation or test split.

  Each role has documented names (`NAMES`), such as "val" for validation. Data sets also use other
  names, such as "trainset" or "dev_images", whose role this function guesses.

  Args:
    splits: The names of the data set's splits.

  Returns:
    The splits that are guessed for each role, by role. A role is left out if a split has one of its
    documented names, since no guess is needed.
  """
  names = list(splits)
  return {
    role: [name for name in names if find_role(name) == role]
    for role in ROLES
    if not set(NAMES[role]) & set(names)
  }
