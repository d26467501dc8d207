"""Prints a whole config as JSON, or explains its fields: `vitx config`."""

import json
import shutil
import textwrap
from collections.abc import Mapping

from vitx.cli.tables import lay_out
from vitx.config.describe import Description, complete, describe
from vitx.config.loader import load_config


def run(config: str, explain: bool) -> None:
  """Prints the config."""
  loaded = load_config(config)
  if not explain:
    print(json.dumps(complete(loaded), indent=2))
    return
  print(_table(describe(loaded)))


def _table(fields: Mapping[str, Description]) -> str:
  """Lays fields out, their meanings within the terminal's width."""
  rows = [("field", "value", "takes", "meaning")]
  rows += [(path, _short(field.value), field.kind, field.meaning) for path, field in fields.items()]
  others = sum(max(len(row[i]) for row in rows) + 2 for i in range(3))
  width = max(shutil.get_terminal_size((160, 24)).columns - others, 40)
  lines = []
  for *cells, meaning in rows:
    first, *more = textwrap.wrap(meaning, width) or [""]
    lines += [(*cells, first), *(("", "", "", line) for line in more)]
  return lay_out(lines)


def _short(value: object) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return text if len(text) <= 32 else f"{text[:29]}..."
