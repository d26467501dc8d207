"""Prints a whole config as JSON, to edit and reuse: `vitx config FILE:ROW,field=value > mine.json`.

The JSON has every field, even those that the config file leaves at their defaults. Training with
`vitx train --config mine.json` gives the results of FILE:ROW,field=value, bit for bit. With
`--explain`, a table of the fields is printed instead: the value of each, its type (for a part that
is chosen by name, the names that ship with vitx) and its meaning.
"""

import argparse
import contextlib
import json
import shutil
import textwrap
from collections.abc import Mapping
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vitx.analysis.tables import lay_out
from vitx.cli.flags import CONFIG, add_trust
from vitx.config.choices import known, record_all
from vitx.config.describe import Description, complete, describe
from vitx.config.loader import load_config
from vitx.data.cache import cache_directory

TAKES = 40  # the width of the column of types and names


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  parser.add_argument("config", metavar="CONFIG", help=CONFIG)
  add_trust(parser.add_argument)
  parser.add_argument("--explain", action="store_true", help="Prints a table of the fields.")


def run(config: str, explain: bool) -> None:
  """Prints the config as JSON, or as a table of its fields if `explain` is set."""
  with known(_read_records()):
    loaded = load_config(config)
    if explain:
      print(_table(describe(loaded)))
    else:
      print(json.dumps(complete(loaded), indent=2))


def _read_records() -> dict[str, Any]:
  """Returns the records of all choices, which vitx's cache keeps until vitx or optax changes."""
  files = sorted(Path(__file__).parents[1].rglob("*.py"))
  code = [[str(file), file.stat().st_mtime_ns] for file in files]
  path, key = cache_directory() / "choices.json", [*code, version("optax")]
  with contextlib.suppress(OSError, ValueError):
    stored = json.loads(path.read_bytes())
    if stored["key"] == key:
      return stored["records"]
  from vitx.files import replace_text

  records = record_all()
  with contextlib.suppress(OSError):  # such as a full disk
    replace_text(path, json.dumps({"key": key, "records": records}))
  return records


def _table(fields: Mapping[str, Description]) -> str:
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
