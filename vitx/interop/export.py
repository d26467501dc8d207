"""Writes a network's weights to a `.safetensors` file, under another project's names."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitx.config.errors import ConfigError, importing
from vitx.interop.foreign import GRID
from vitx.ops.layout import TokenLayout

SUFFIX = ".safetensors"


def write_safetensors(
  path: str | Path, arrays: Mapping[str, np.ndarray], layout: TokenLayout | None = None
) -> None:
  """Writes arrays by name to a `.safetensors` file.

  Args:
    path: The path of the file.
    arrays: The arrays by name.
    layout: The arrangement of the network's tokens, or `None` if it has none. The file has the
      numbers of rows and columns of its patches, which the arrays do not show; `foreign.read_grid`
      reads them.

  Raises:
    ConfigError: The path does not end in `.safetensors`.
    MissingExtraError: The package safetensors is not installed.
  """
  if not str(path).endswith(SUFFIX):
    raise ConfigError(f"out={str(path)!r} must end in {SUFFIX}, or be a folder or hf:OWNER/NAME.")
  with importing(f"out={str(path)!r}", "foreign"):
    from safetensors.numpy import save_file
  metadata = {"format": "pt"}  # timm writes and expects this.
  if layout is not None:
    metadata[GRID] = "x".join(map(str, layout.grid))
  save_file(dict(arrays), str(path), metadata=metadata)
