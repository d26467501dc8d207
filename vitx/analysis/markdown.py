"""Markdown in which a foreign name stays text and an absolute path loses its folders.

Classes, methods, figures and errors may be called anything: `<script>`, a link, the end of a cell.
A file that leaves the machine says of an absolute path its last part alone.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitx.config.errors import escape

# What begins something inside a line: code, emphasis, tags, a cell's end, links, entities, strikes,
# formulas, mentions and bare addresses.
_SIGNS = re.compile(r"[\\`*<|~$@]|\](?=[(\[:])|&(?=[#\w])|:(?=//)|(?<=\bwww)\.")
# From the root, a home or a drive to the end of the text, of a list's entry or of a quotation.
_PLACE = re.compile(
  r"(?:(?<![\w.~/\\-])|(?<=file://))(?:~\w*(?=[/\\])|/(?!/)|[A-Za-z]:\\)[^,'\"\n]*"
)


def text(name: Any) -> str:
  """Returns a name as text inside a line of Markdown, or in the cell of a table."""
  return _SIGNS.sub(lambda sign: f"\\{sign[0]}", escape(str(name), line=True))


def code(value: Any) -> str:
  """Returns a text as code in a line of Markdown, where nothing of it is interpreted."""
  line = escape(str(value), line=True)
  fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
  pad = " " if line[:1] in ("`", "") or line[-1:] == "`" else ""
  return f"{fence}{pad}{line}{pad}{fence}"


def table(rows: Sequence[Sequence[str]]) -> str:
  """Returns rows of cells, of which the first is the head, as a table; the cells become text."""
  head, *body = (f"| {' | '.join(map(text, row))} |" for row in rows)
  return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def without_places(value: Any) -> Any:
  """Returns a text, or JSON's lists and objects of them, with the last parts of absolute paths."""
  if isinstance(value, str):
    return _PLACE.sub(lambda place: re.split(r"[/\\]", place[0].rstrip("/\\"))[-1], value)
  if isinstance(value, Mapping):
    return {key: without_places(entry) for key, entry in value.items()}
  return [without_places(entry) for entry in value] if isinstance(value, list | tuple) else value
