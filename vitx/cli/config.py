"""Prints a whole config as JSON, to edit and reuse: `vitx config FILE:ROW,field=value > mine.json`.

The JSON has every field, even those that the config file leaves at their defaults. Training with
`vitx train --config mine.json` gives the results of FILE:ROW,field=value, bit for bit. With
`--explain`, a table of the fields is printed instead: the value of each, its type (for a part that
is chosen by name, the names that ship with vitx) and its meaning.
"""

import argparse
import json
import shutil
import textwrap
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING

from vitx.analysis.tables import lay_out
from vitx.cli.flags import CONFIG, add_trust
from vitx.config.loader import load_config

if TYPE_CHECKING:
  from vitx.config.describe import Description

TAKES = 40  # the width of the column of types and names


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  parser.add_argument("config", metavar="CONFIG", help=CONFIG)
  add_trust(parser.add_argument)
  parser.add_argument("--explain", action="store_true", help="Prints a table of the fields.")


def run(config: str, explain: bool) -> None:
  """Prints the config as JSON, or as a table of its fields if `explain` is set."""
  from vitx.config.describe import complete, describe

  loaded = load_config(config)
  if not explain:
    print(json.dumps(complete(loaded), indent=2))
    return
  print(_table(describe(loaded)))


def _table(fields: "Mapping[str, Description]") -> str:
  """Returns a table of fields as text, with the meanings wrapped to the terminal's width."""
  rows = [("field", "value", "takes", "meaning")]
  rows += [(path, _short(field.value), field.kind, field.meaning) for path, field in fields.items()]
  others = sum(max(len(row[i]) for row in rows) + 2 for i in range(2)) + TAKES + 2
  width = max(shutil.get_terminal_size((160, 24)).columns - others, 40)
  lines: list[tuple[str, str, str, str]] = []
  for path, value, kind, meaning in rows:
    columns = [path], [value], textwrap.wrap(kind, TAKES), textwrap.wrap(meaning, width)
    lines += zip_longest(*columns, fillvalue="")
  return lay_out(lines)


def _short(value: object) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= 32 else f"{text[:29]}..."
