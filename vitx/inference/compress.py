"""Compresses files with the probabilities of a density model, and decompresses them."""

import dataclasses
from pathlib import Path

import numpy as np
from PIL import Image

from vitx.checkpoints.load import Loaded
from vitx.config.checks import PositiveInt, check_value
from vitx.config.errors import ConfigError
from vitx.files import read_arrays, read_bytes
from vitx.inference import code_file, density_model
from vitx.inference.coding import WindowCoder
from vitx.inference.opening import open_model
from vitx.inference.sample_files import to_numpy_file, to_png
from vitx.tasks.density_images import to_values
from vitx.training.record.progress import count_bar


@dataclasses.dataclass(frozen=True)
class Compressed:
  """A compressed file and its sizes.

  Attributes:
    data: The bytes of the whole file.
    header: The header of the file.
    code_bytes: The number of bytes of the arithmetic code, that is, of the file without its header.
    bits: The negative log-likelihood of all tokens under the model, in bits.
  """

  data: bytes
  header: code_file.Header
  code_bytes: int
  bits: float


def compress(
  model: Loaded | str | Path,
  path: str | Path,
  *,
  lanes: int = 32,
  checkpoint: str | int = "best",
  trust_code: bool = False,
) -> Compressed:
  """Compresses a file with the probabilities that a density model gives to its bytes or pixels.

  The file is cut into windows of as many tokens as the model reads, see `coding.group_windows`.

  Args:
    model: A model that `vitx.load` returned, or a workdir.
    path: The path of the file.
    lanes: The number of windows coded at a time; more are faster and take more memory, here and in
      decompression.
    checkpoint: "best", "latest" or a step.
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Raises:
    ConfigError: The model is not a density model, or the file's content does not fit it.
    MissingExtraError: `constriction` is not installed.
    OSError: The file cannot be read.
  """
  check_value(lanes, "lanes", PositiveInt)
  with open_model(model, checkpoint, trust_code=trust_code) as loaded:
    kind, shape, tokens = read_tokens(Path(path), loaded)
    size = density_model.density_task(loaded).length
    lanes = min(lanes, _count_windows(tokens.size, size))
    with count_bar("coding", tokens.size, "token") as bar:
      coder = WindowCoder(loaded.model, loaded.variables, size, lanes, bar.update)
      code, bits = coder.encode(tokens)
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
  """Reads a file as tokens of a density model.

  Returns:
    The kind of the file (see `Header`), the shape of its content, and its tokens, int32 (n,).

  Raises:
    ConfigError: The file is empty, or its content does not fit the model.
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
    raise ConfigError(f"{path} is empty; name a file with content.")
  return kind, shape, tokens.reshape(-1)


def _read_array(path: Path, grid: tuple[int, ...]) -> np.ndarray:
  """Reads images from an `.npy` file, or from an `.npz` file with one array.

  Raises:
    ConfigError: The file does not hold one uint8 array (n, height, width, channels), where the last
      three sizes are `grid`.
  """
  arrays = list(read_arrays(path).values())
  if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].shape[1:] != grid:
    found = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
    raise ConfigError(
      f"{path} must hold one array of images, uint8 (n, {', '.join(map(str, grid))}), not {found}."
    )
  return arrays[0]


def decompress(
  model: Loaded | str | Path, path: str | Path, *, trust_code: bool = False
) -> np.ndarray:
  """Decompresses a file to its original content.

  Args:
    model: A model that `vitx.load` returned, or a workdir, whose checkpoint the file names.
    path: The path of the compressed file.
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Returns:
    The bytes of the original file, uint8 (n,), or its images, (n, height, width, channels).

  Raises:
    ConfigError: The file is missing or damaged, or was compressed by another model or machine.
    MissingExtraError: `constriction` is not installed.
    OSError: The file cannot be read.
  """
  header, code = code_file.read(path)
  step = "best" if isinstance(model, Loaded) else header.step  # the digests are compared below
  with open_model(model, step, trust_code=trust_code) as loaded:
    task = density_model.density_task(loaded)
    weights = code_file.digest_weights(loaded)
    if weights != header.weights:
      raise ConfigError(
        f"{path} was compressed with other weights (step {header.step}, digest {header.weights})"
        f" than workdir={loaded.workdir!r} has (step {loaded.step}, digest {weights});"
        " use the workdir that compressed it."
      )
    windows = _count_windows(header.count, task.length)
    if not isinstance(header.lanes, int) or not 1 <= header.lanes <= windows:
      raise ConfigError(
        f"{path} has a damaged header: lanes={header.lanes!r}, but its content has {windows}"
        " windows; restore the file from a copy."
      )
    with count_bar("decoding", header.count, "token") as bar:
      lanes = header.lanes
      coder = WindowCoder(loaded.model, loaded.variables, task.length, lanes, bar.update)
      tokens = _decode(coder, header, code, str(path))
  if header.kind == "bytes":
    return tokens.astype(np.uint8)
  return to_values(tokens, task.levels).reshape(header.shape)


def _count_windows(tokens: int, size: int) -> int:
  """Returns the number of whole windows of `size` tokens, which is the most lanes; at least 1."""
  return max(tokens // size, 1)


def _decode(coder: WindowCoder, header: code_file.Header, code: bytes, path: str) -> np.ndarray:
  try:
    tokens = coder.decode(code, header.count)
    intact = code_file.digest_tokens(tokens) == header.tokens
  except (ValueError, AssertionError, RuntimeError):  # The coder raises these for a damaged code.
    intact = False
  if not intact:
    raise ConfigError(
      f"{path} does not decode to the original. It is damaged (restore it from"
      f" a copy), or this machine ({code_file.describe_machine()}) computes"
      f" other logits than its writer ({header.made_on}; decompress it there)."
    )
  return tokens


def to_file(kind: str, found: np.ndarray, suffix: str) -> bytes:
  """Returns the bytes of the original file, given the content that `decompress` returned.

  Args:
    kind: The kind in the header.
    found: The array that `decompress` returned.
    suffix: The suffix of the file's name; ".npz" selects this format for an array of images.
  """
  if kind == "bytes":
    return found.tobytes()
  if kind == "image":
    return to_png(Image.fromarray(found[0, ..., 0] if found.shape[-1] == 1 else found[0]))
  return to_numpy_file(found, suffix)
