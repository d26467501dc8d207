"""Data sets by name: a TFDS name, `KIND:PATH`, or your own `module:function`.

`digits`, `cifar10` and `tiny_shakespeare` are TFDS sets of images or texts. `folder:PATH` is a
folder of images, `csv:FILE` a table of images and their labels, `bytes:FILE` any file as a sequence
of bytes, `audio:FOLDER` a folder of WAV files, `hf:NAME` a set of the library `datasets`.

Your own source is a function from the config's `data` (a `DataSettings`, which is a mapping too and
has any fields of your own) to a `Dataset`. Select it by `data.source=my_package.my_file:open_mine`.
It reads the fields that it needs, such as `data["data_dir"]`, and returns a `Dataset` with

- `info`: the name, the `ArraySpec` of each array of an example, class names or a vocabulary where
  there are any, and a fingerprint of the content ("": computed from the examples' arrays);
- `splits` and `open_split`, a function from a split's name to its examples with `len(examples)`,
  `examples[i]` (a dict with every array of the spec: `image` and `label` for classification),
  `examples.name(i)` and `examples.labels` (see `dataset.Examples`), all of which may be called
  from several threads at once;
- `carve`, a function that divides examples in two, such as `documents.carve_end`, for sequences
  that must not be drawn one by one.

Only the split `train` is required: missing validation and test splits are carved from it. Each kind
of source that ships with vitx is an entry of `SOURCES`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.config.registry import Table, lookup
from vitx.config.settings import change, read_fields
from vitx.data import splits
from vitx.data.class_names import renumber
from vitx.data.dataset import Dataset, DatasetInfo, Examples, Source
from vitx.data.fingerprint import digest, digest_arrays
from vitx.data.in_memory import SharedSplit
from vitx.data.readable import skip_unreadable

Opener = Callable[[DataSettings], Dataset]
# The data set that runs share in a context `sharing`, and the `fields` of its settings.
_SHARED: list[dict[str, Any]] = []
# The functions that open a source `KIND:REST`, by KIND.
SOURCES = Table(
  "vitx.data.sources",
  audio="audio:open_audio",
  bytes="byte_file:open_bytes",
  csv="csv_table:open_csv",
  folder="folder:open_folder",
  hf="hub:open_hub",
)


def open_source(
  data: Mapping[str, Any], seed: int, class_names: Sequence[str] | None = None
) -> Source:
  """Opens the data set that a config's `data` names; divides it into train, validation and test.

  Examples are decoded only for `data.on_unreadable="skip"`.

  Args:
    data: The config's `data`; `DataSettings` declares the fields that every source has.
    seed: The data seed, which determines the examples that are drawn from train for other roles.
    class_names: The class names in the order of an existing run. The data set gets this order if it
      has these classes. None for a new run.

  Raises:
    ConfigError: The set is unknown, unprepared, unreadable or ambiguous, or a split is missing.
  """
  settings = read_fields(DataSettings, data)
  splits.find_choice(settings)  # a wrong name raises an error before the set is read
  return divide(_open_shared(settings), settings, seed, class_names)


@contextlib.contextmanager
def sharing() -> Iterator[None]:
  """Lets the runs in the context share an opened data set, and examples that are kept in memory.

  The last data set stays open, until a run has other data or the outermost such context ends. Files
  that change meanwhile are not noticed, so a single run shares nothing with the runs before it.
  """
  if _SHARED:
    yield
    return
  _SHARED.append({})
  try:
    yield
  finally:
    _SHARED.pop()


def _open_shared(settings: DataSettings) -> Dataset:
  """Opens a data set, or returns the one that the runs in a context `sharing` share."""
  if not _SHARED:
    return open_dataset(settings)
  shared, fields = _SHARED[-1], dict(settings)
  if _is_tfds(settings.source) or settings.source.partition(":")[0] in SOURCES:
    fields |= {"fold": None, "fraction": None}  # only a user's own source may read them
  if shared.get("fields") != fields:
    shared.clear()  # gives the memory of the last set back before the next is opened
    dataset = open_dataset(settings)

    @functools.cache
    def open_split(expression: str) -> Examples:
      examples = dataset.open_split(expression)
      return SharedSplit(examples) if dataset.carve is None else examples

    shared.update(fields=fields, dataset=dataclasses.replace(dataset, open_split=open_split))
  return shared["dataset"]


def divide(
  dataset: Dataset, data: DataSettings, seed: int, class_names: Sequence[str] | None
) -> Source:
  """Divides an opened data set into train, validation and test; see `open_source`."""
  if class_names is None and dataset.problem:  # an existing run goes on with its reading
    raise ConfigError(dataset.problem)
  if class_names is not None and len(class_names) == len(dataset.info.class_names or ()):
    dataset = renumber(dataset, class_names) or dataset
  roles = splits.assign(dataset, data, seed)
  return Source(dataset.info, **roles, unreadable=tuple(dataset.unreadable))


def open_dataset(data: Mapping[str, Any]) -> Dataset:
  """Opens the data set that a config's `data` names; its splits have no roles yet.

  Raises:
    ConfigError: The set is unknown, unprepared or unreadable.
  """
  settings = read_fields(DataSettings, data)
  opener = find_opener(settings.source)
  try:
    dataset = opener(settings)
  except OSError as error:
    raise ConfigError(f"data.source={settings.source!r} cannot be read ({error}).") from error
  if not _is_tfds(settings.source):  # TFDS checks labels when it prepares a set
    for split in dataset.splits:
      _check_labels(dataset.info, split, dataset.open_split(split))
  if settings.on_unreadable == "skip":
    dataset = skip_unreadable(dataset, settings.threads)
  fingerprint = dataset.info.fingerprint or digest_arrays(dataset)
  if settings.exclude:  # other names in the file mean other data
    names = splits.read_excluded(settings.exclude)
    fingerprint = digest([fingerprint, "left out after the division", *names])
  info = dataclasses.replace(dataset.info, fingerprint=fingerprint)
  return dataclasses.replace(dataset, info=info)


def _check_labels(info: DatasetInfo, split: str, examples: Examples) -> None:
  names, labels = info.class_names, examples.labels
  if labels is None:
    return
  beginning = f"data.source={info.name!r}: the examples of {split!r} have"
  if len(labels) != len(examples):
    raise ConfigError(f"{beginning} {len(labels)} labels, but there are {len(examples)} examples.")
  wrong = np.setdiff1d(labels, np.arange(len(names or ())))
  if names is not None and wrong.size:
    raise ConfigError(f"{beginning} the label {wrong[-1]}, but only {len(names)} class_names.")


def find_info(data: Mapping[str, Any]) -> DatasetInfo:
  """Returns the facts about a data set; opens the set only if its name does not suffice."""
  facts, settings = None, read_fields(DataSettings, data)
  if _is_tfds(settings.source):
    from vitx.data.sources.tfds import find_facts

    facts = find_facts(settings)
  return facts or open_dataset(settings).info


def make_up_statistics(data: DataSettings, info: DatasetInfo) -> DataSettings:
  """Returns `data` with placeholders as `mean` and `std`, which suffice to measure a cost."""
  if "image" not in info.spec:
    return data
  made_up = (0.5,) * (info.spec["image"].shape[-1] or 1)
  return change(data, {"mean": made_up, "std": made_up})


def find_opener(name: str) -> Opener:
  """Returns the function that opens a source.

  Args:
    name: The value of `data.source`: `KIND:REST` with a kind in `SOURCES`, `module:function`, or a
      TFDS name, which may end in `:VERSION`.
  """
  if _is_tfds(name):
    from vitx.data.sources.tfds import open_tfds

    return open_tfds
  kind = name.partition(":")[0]
  return SOURCES[kind] if kind in SOURCES else lookup(SOURCES, name, "data.source")


def _is_tfds(name: str) -> bool:
  """Returns whether a source is a set of TFDS, whose reader is imported only if there is one."""
  kind, colon, rest = name.partition(":")
  return kind not in SOURCES and not (colon and rest.isidentifier())
