"""Export of a network's weights to a `.safetensors` file under another project's names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.checkpoints import tree
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.interop.foreign_names import to_theirs

SUFFIX = ".safetensors"


def export_arrays(variables: Mapping[str, Any], family: str) -> dict[str, np.ndarray]:
  """Returns a network's variables under the names of a family of `foreign_names.FAMILIES`.

  Raises:
    ConfigError: A variable has no name in the family.
  """
  return to_theirs(tree.name_arrays(variables), family)


def write_safetensors(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays by name to a `.safetensors` file.

  Raises:
    ConfigError: The path does not end in `.safetensors`, or cannot be written.
    MissingExtraError: The package safetensors is not installed.
  """
  if not str(path).endswith(SUFFIX):
    raise ConfigError(f"out={str(path)!r} must end in {SUFFIX}: weights go out in that form alone")
  try:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file
  except ImportError as error:
    raise MissingExtraError(f"out={str(path)!r}", "foreign") from error
  try:
    save_file(dict(arrays), str(path), metadata={"format": "pt"})  # timm writes and expects this.
  except (OSError, SafetensorError) as error:
    raise ConfigError(f"out={str(path)!r} cannot be written: {error}") from error
