"""Access to the intermediate values that the modules of a network store ("sow", in Flax's word)."""

import re
from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict


def collect(sown: Mapping[str, Any], name: str) -> dict[str, Any]:
  """Returns all intermediate values that were sown under one name, in the order of the blocks.

  Args:
    sown: The collection "intermediates".
    name: The name, such as "attention". If a module sowed it several times, the first value counts.

  Returns:
    The values by the paths of their modules, such as "block_0/token_mixer".
  """
  flat, end = flatten_dict(dict(sown), sep="/"), f"/{name}"
  values = {path.removesuffix(end): x[0] for path, x in flat.items() if path.endswith(end)}
  # Padded numbers sort block_2 before block_10.
  padded = {path: re.sub(r"\d+", lambda n: n[0].zfill(9), path) for path in values}
  return {path: values[path] for path in sorted(values, key=padded.__getitem__)}
