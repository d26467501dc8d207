"""Writes Markdown in which foreign names are plain text and absolute paths are shortened.

The names of classes, methods and metrics, and error messages, may contain any text: `<script>`, a
link, or a sign that ends a table cell. A file for other people shows only the last part of an
absolute path.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitx.config.errors import escape

# Characters that begin markup inside a line: code, emphasis, tags, a cell's end, links, entities,
# strikethrough, formulas, mentions and bare addresses.
_SIGNS = re.compile(r"[\\`*<|~$@]|\](?=[(\[:])|&(?=[#\w])|:(?=//)|(?<=\bwww)\.")
# An absolute path begins at the root, a home folder or a drive. It ends with the text, the list
# entry or the quotation.
_PLACE = re.compile(
  r"(?:(?<![\w.~/\\-])|(?<=file://))(?:~\w*(?=[/\\])|/(?!/)|[A-Za-z]:\\)[^,'\"\n]*"
)


def text(name: Any) -> str:
  """Escapes a name, so that it is plain text in a line of Markdown or in the cell of a table."""
  return _SIGNS.sub(lambda sign: f"\\{sign[0]}", escape(str(name), line=True))


def code(value: Any) -> str:
  """Returns a text as inline code of Markdown, in which no markup is interpreted."""
  line = escape(str(value), line=True)
  fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
  pad = " " if line[:1] in ("`", "") or line[-1:] == "`" else ""
  return f"{fence}{pad}{line}{pad}{fence}"


def table(rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table of cells with plain text; the first row is the header."""
  head, *body = (f"| {' | '.join(map(text, row))} |" for row in rows)
  return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def shorten_paths(value: Any) -> Any:
  """Shortens every absolute path to its last part, in a text or in the texts of a JSON value."""
  if isinstance(value, str):
    return _PLACE.sub(lambda place: re.split(r"[/\\]", place[0].rstrip("/\\"))[-1], value)
  if isinstance(value, Mapping):
    return {key: shorten_paths(entry) for key, entry in value.items()}
  return [shorten_paths(entry) for entry in value] if isinstance(value, list | tuple) else value
