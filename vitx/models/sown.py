"""Access to the values that the modules of a network sowed."""

import re
from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict


def collect(sown: Mapping[str, Any], name: str) -> dict[str, Any]:
  """Returns the values that modules sowed under a name, by module path, in the order of the blocks.

  Args:
    sown: The collection "intermediates".
    name: The name, such as "attention". If a module sowed it several times, the first value counts.
  """
  flat, end = flatten_dict(dict(sown), sep="/"), f"/{name}"
  found = {path.removesuffix(end): x[0] for path, x in flat.items() if path.endswith(end)}
  return {path: found[path] for path in sorted(found, key=_natural)}


def _natural(path: str) -> list[int | str]:
  """Returns a key that sorts block_2 before block_10."""
  return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]
