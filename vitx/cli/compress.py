"""Compresses a file with a density model: `vitx compress`."""

import dataclasses
import os
from pathlib import Path

import numpy as np

from vitx.checkpoints.load import Loaded, load
from vitx.cli.arguments.compress import LANES, SUFFIX
from vitx.cli.tables import check_file, write_file
from vitx.config import registry
from vitx.config.checks import PositiveInt, check_value
from vitx.config.errors import ConfigError
from vitx.files import read_arrays, read_bytes
from vitx.inference import code_file, density_model
from vitx.models import coding
from vitx.training import cache
from vitx.training.record.progress import count_bar


@dataclasses.dataclass(frozen=True)
class Compressed:
  """A compressed file and what it took.

  Attributes:
    data: the whole file.
    header: of it.
    code_bytes: of the arithmetic code, the rest being the header.
    bits: what the model's probabilities give the tokens, in all.
  """

  data: bytes
  header: code_file.Header
  code_bytes: int
  bits: float


def compress(
  model: Loaded | str | Path,
  path: str | Path,
  *,
  lanes: int = LANES,
  checkpoint: str | int = "best",
  trust_code: bool = False,
) -> Compressed:
  """Codes a file with a density model's probabilities.

  Windows are those of an evaluation without a minimum context.

  Args:
    model: of `vitx.load`, or a workdir.
    path: of the file.
    lanes: windows that are coded at a time; more are faster and take more memory, here and when
      decompressing.
    checkpoint: "best", "latest" or a step.
    trust_code: import what the run's config names as `module:Name`.

  Raises:
    ConfigError: no density model, or a file that it has no tokens for.
    MissingExtraError: `constriction` is not installed.
    OSError: the file cannot be read.
  """
  cache.enable()
  check_value(lanes, "lanes", PositiveInt)
  with registry.trusting(trust_code):
    loaded = model if isinstance(model, Loaded) else load(model, checkpoint, trust_code=trust_code)
    kind, shape, tokens = read_tokens(Path(path), loaded)
    size = density_model.density_task(loaded).length
    lanes = min(lanes, max(tokens.size // size, 1))
    with count_bar("coding", tokens.size, "token") as bar:
      code, bits = coding.encode(
        loaded.model, loaded.variables, tokens, size, lanes, progress=bar.update
      )
  header = code_file.Header(
    kind,
    shape,
    lanes,
    loaded.step,
    code_file.digest_weights(loaded),
    code_file.digest_tokens(tokens),
    code_file.describe_machine(),
  )
  return Compressed(code_file.write(header, code), header, len(code), bits)


def read_tokens(path: Path, loaded: Loaded) -> tuple[str, tuple[int, ...], np.ndarray]:
  """Returns the kind of a file, the shape of what it holds, and its tokens, int32 (n,).

  Raises:
    ConfigError: it is empty, or holds what the model has no tokens for.
  """
  if density_model.kind_of(loaded) != "image":
    tokens = np.frombuffer(read_bytes(path), np.uint8)
    kind, shape = "bytes", tokens.shape
    tokens = density_model.check_tokens(tokens, loaded, str(path))
  elif path.suffix in (".npy", ".npz"):
    images = _read_array(path, density_model.grid_of(loaded))
    kind, shape, tokens = "images", images.shape, density_model.image_tokens(images, loaded)
  else:
    images = density_model.read_image(path, loaded)[None]
    kind, shape, tokens = "image", images.shape, density_model.image_tokens(images, loaded)
  if not tokens.size:
    raise ConfigError(f"{path} is empty: there is nothing to compress")
  return kind, shape, tokens.reshape(-1)


def _read_array(path: Path, grid: tuple[int, ...]) -> np.ndarray:
  """Returns the images of an array file, or of the one array in an `.npz`."""
  arrays = list(read_arrays(path).values())
  if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].shape[1:] != grid:
    held = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
    raise ConfigError(
      f"{path} must hold one array of images, uint8 (n, {', '.join(map(str, grid))}), not {held}"
    )
  return arrays[0]


def run(file: str, workdir: str, out: str | None, **settings) -> None:
  """Compresses a file and prints what it took."""
  path = new_path(file + SUFFIX if out is None else out, out is None)
  found = compress(workdir, file, **settings)
  write_file(path, found.data)
  count, before = found.header.count, Path(file).stat().st_size
  header = len(found.data) - found.code_bytes
  print(
    f"{path}: {len(found.data):,} bytes, of which {header} header, of {before:,};"
    f" {8 * found.code_bytes / count:.4f} bits a token, {found.bits / count:.4f} by the model"
    f" ({count:,} tokens)"
  )


def new_path(path: str | Path, by_default: bool) -> Path:
  """Returns where to write.

  Raises:
    ConfigError: no file can be written there, or there is one, and nobody named it.
  """
  check_file(path, "out")
  if by_default and os.path.lexists(path):
    raise ConfigError(f"{path} is there already; name a file with --out")
  return Path(path)
