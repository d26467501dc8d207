"""Undoes `vitx compress`: `vitx decompress`."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vitx.checkpoints.load import Loaded, load
from vitx.cli.arguments.compress import SUFFIX
from vitx.cli.compress import new_path
from vitx.cli.tables import write_file
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.inference import code_file, density_model
from vitx.models import coding
from vitx.tasks.density_images import to_values
from vitx.training import cache
from vitx.training.record.progress import count_bar


def decompress(
  model: Loaded | str | Path, path: str | Path, *, trust_code: bool = False
) -> np.ndarray:
  """Returns what was compressed: uint8 (n,) bytes, or (n, height, width, channels).

  Args:
    model: of `vitx.load`, or a workdir, of which the checkpoint is loaded that compressed.
    path: of the compressed file.
    trust_code: import what the run's config names as `module:Name`.

  Raises:
    ConfigError: no such file or a damaged one, another model, or another machine.
    MissingExtraError: `constriction` is not installed.
    OSError: the file cannot be read.
  """
  cache.enable()
  header, code = code_file.read(path)
  with registry.trusting(trust_code):
    if isinstance(model, Loaded):
      loaded = model
    else:
      loaded = load(model, header.step, trust_code=trust_code)
    task = density_model.density_task(loaded)
    weights = code_file.digest_weights(loaded)
    if weights != header.weights:
      raise ConfigError(
        f"{path} was compressed with other weights (step {header.step}, digest {header.weights})"
        f" than those of workdir={loaded.workdir!r} (step {loaded.step}, digest {weights}); use the"
        " workdir that compressed it"
      )
    with count_bar("decoding", header.count, "token") as bar:
      tokens = _decode(loaded, header, code, str(path), bar)
  if header.kind == "bytes":
    return tokens.astype(np.uint8)
  return to_values(tokens, task.levels).reshape(header.shape)


def _decode(loaded: Loaded, header: code_file.Header, code: bytes, path: str, bar) -> np.ndarray:
  size = density_model.density_task(loaded).length
  given = (loaded.model, loaded.variables, code, header.count, size, header.lanes)
  try:
    tokens = coding.decode(*given, progress=bar.update)
    intact = code_file.digest_tokens(tokens) == header.tokens
  except (ValueError, AssertionError, RuntimeError):  # what the coder finds impossible
    intact = False
  if not intact:
    raise ConfigError(
      f"{path} does not decode to what was compressed: it is damaged, or was made where logits"
      f" round otherwise (made on {header.made_on}; here {code_file.describe_machine()})"
    )
  return tokens


def to_file(kind: str, found: np.ndarray, suffix: str) -> bytes:
  """Returns the bytes of the file that is written.

  Args:
    kind: of the header.
    found: of `decompress`.
    suffix: of the file's name, from which an image's format and an array's follow.
  """
  if kind == "bytes":
    return found.tobytes()
  buffer = io.BytesIO()
  if kind == "images":
    (np.savez if suffix == ".npz" else np.save)(buffer, found)
  else:
    image = Image.fromarray(found[0, ..., 0] if found.shape[-1] == 1 else found[0])
    image.save(buffer, format="png")
  return buffer.getvalue()


def run(file: str, workdir: str, out: str | None, trust_code: bool) -> None:
  """Decompresses a file and prints where it went."""
  if out is None and not file.endswith(SUFFIX):
    raise ConfigError(f"{file} does not end in {SUFFIX}; name the file to write with --out")
  path = new_path(file.removesuffix(SUFFIX) if out is None else out, out is None)
  found = decompress(workdir, file, trust_code=trust_code)
  kind = code_file.read(file)[0].kind
  write_file(path, to_file(kind, found, path.suffix))
  print(f"{path}: {path.stat().st_size:,} bytes")
