"""The fields of `config.data` that concern every data set: which examples, in which roles."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar

from vitx.config.checks import PositiveInt, Range, Share, check_fields

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class DataSettings:
  """Which examples train, and how they are read.

  Attributes:
    source: a TFDS set, `KIND:REST` of `vitx.data.sources.SOURCES`, or your own `module:function`.
    data_dir: TFDS directory; None is $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    splits: the split of each role; "" is found from the source.
    validation: the share carved from train for validation if no split is to spare.
    validation_choice: a function that chooses them, from the examples of train to booleans (n,): a
      name of `vitx.data.splits.CHOICES` or your own `module:function`; None draws the share.
    fraction: the part of train that is used, class-balanced where there are classes.
    repeats: how often an example comes in a row, differently augmented (Hoffer et al. 2020); an
      epoch of as many examples has as much fewer different ones.
    memory: whether examples are read once and kept.
    device: whether those that are kept lie in the devices' memory too.
    threads: that read and decode.
    on_unreadable: refuse (None, too) examples that cannot be read, all named; or skip them, found
      and told before training.
  """

  source: str = "digits"
  data_dir: str | None = None
  splits: Mapping[str, str] = field(default_factory=dict)
  validation: Annotated[float, Range("(0, 1)")] = 0.1
  validation_choice: str | None = None
  fraction: Share = 1.0
  repeats: PositiveInt = 1
  memory: Literal["auto", "always", "never"] = "auto"
  device: Literal["auto", "always", "never"] = "auto"
  threads: Annotated[int, Range("[1, 1024]")] = 4
  on_unreadable: Literal["refuse", "skip"] | None = None


def read_fields(cls: type[Settings], data: Mapping[str, Any], section: str = "data") -> Settings:
  """Returns the fields that a dataclass declares from a section of a config.

  Args:
    cls: a dataclass whose annotations say what each field takes.
    data: the section, with any other fields beside these; those left out have their defaults.
    section: its name, for errors.

  Raises:
    ConfigError: a value of another type or out of range.
  """
  names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
  given = {name: data[name] for name in names if name in data}
  check_fields(cls, given, section)
  return cls(**given)
