"""Help texts and parsers of arguments that several commands share.

This file must import nothing slow; each command's `run` imports JAX, Flax and TensorFlow itself.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any

CHECKPOINT = "The checkpoint: best, latest or a step."
CONFIG = "A config file, one of its rows as FILE:ROW or FILE:ROW,field=value, or a config.json."
DATA_DIR = "The folder of the TFDS sets; the default is the run's."
DENSITY_RUN = "The workdir or the repository of a density model."
RUN = "The workdir of a training run, or its repository, such as hf:OWNER/NAME."
MODEL = "The workdir or the repository of a run; or a sweep, whose runs are averaged."
TRUST = "Allows a config, run or data set from others to import the Python code that it names."
CSV = "Writes the rows to this CSV file."
REPEATS = "The number of rounds; the result is their median."
SECONDS = "The seconds for all rounds of a program; slow programs run fewer rounds."


def add_trust(add: Callable[..., object]) -> None:
  """Adds `--trust_code`, which lets a command import code that other people's files name."""
  add("--trust_code", action="store_true", help=TRUST)


class OutFile(argparse.Action):
  """An argparse action that stores the path of an output file, if the file may be written."""

  def __call__(
    self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
  ) -> None:
    from vitx.checkpoints.workdir import check_file

    check_file(values, self.dest)
    setattr(namespace, self.dest, values)


def names(text: str) -> list[str]:
  """Returns the names in a comma-separated text."""
  return text.split(",")


def positives(text: str) -> list[int]:
  """Returns the positive integers in a comma-separated text."""
  return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
  """Returns the positive integer in a text."""
  if not text.strip().isdecimal() or not int(text):
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer, such as 4.")
  return int(text)


def integers(text: str) -> tuple[int, ...]:
  """Returns the integers in a comma-separated text."""
  return tuple(int(part) for part in text.split(","))


def parse_amount(text: str, units: Mapping[str, float], example: str) -> float:
  """Returns the amount in a text such as "16GB" or "1.5 GB": the number times the unit's size.

  Args:
    text: A positive number and a unit.
    units: The size of each unit by its name, such as 1e9 for "GB".
    example: A valid text, for the message.
  """
  match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?([A-Za-z]+)", text)
  if not match or match[2] not in units or not float(match[1]):
    message = f"{text!r} must be a number and a unit of {', '.join(units)}, such as {example}"
    raise argparse.ArgumentTypeError(message)
  return float(match[1]) * units[match[2]]
