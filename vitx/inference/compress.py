"""Compresses files with the probabilities of a density model, and decompresses them.

A compressed file has a magic number, a version, a header in JSON and the arithmetic coder's output.
"""

import dataclasses
import hashlib
import json
import struct
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from vitx.checkpoints.digest import describe, digest_json
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.tree import name_arrays
from vitx.config.checks import PositiveInt, check_value
from vitx.config.errors import ConfigError
from vitx.files import read_arrays, reading
from vitx.inference import density_model
from vitx.inference.coding import WindowCoder
from vitx.inference.opening import open_model
from vitx.inference.sample_files import to_numpy_file, to_png
from vitx.runtime.progress import count_bar
from vitx.tasks.density_images import to_values

MAGIC = b"vitx"
VERSION = 1
_HEAD = struct.Struct("<4sBH")  # magic, version, length of the JSON in bytes


@dataclasses.dataclass(frozen=True)
class Header:
  """The first part of a compressed file, which says what the file contains and who can decode it.

  Attributes:
    kind: The kind of content: "bytes", "image" (one image file) or "images" (an array of images).
    shape: The shape of the content: (n,) bytes or (n, height, width, channels).
    lanes: The number of windows of tokens that are coded at a time.
    step: The step of the checkpoint.
    weights: A digest of the model's variables, by which the decoder recognizes the model.
    tokens: A digest of the tokens, by which the decoder checks its result.
    made_on: The kind of device and the version of JAX that wrote the file; the last bits of the
      probabilities depend on them.
  """

  kind: str
  shape: tuple[int, ...]
  lanes: int
  step: int
  weights: str
  tokens: str
  made_on: str

  @property
  def count(self) -> int:
    """Returns the number of tokens in the content."""
    return int(np.prod(self.shape, dtype=np.int64))


@dataclasses.dataclass(frozen=True)
class Compressed:
  """A compressed file and its sizes.

  Attributes:
    data: The bytes of the whole file.
    code_bytes: The number of bytes of the file without its header.
    bits: The negative log-likelihood of all tokens under the model, in bits.
  """

  data: bytes
  header: Header
  code_bytes: int
  bits: float


def pack(header: Header, code: bytes) -> bytes:
  """Returns the bytes of a compressed file."""
  text = json.dumps(dataclasses.asdict(header), separators=(",", ":")).encode()
  return _HEAD.pack(MAGIC, VERSION, len(text)) + text + code


def unpack(path: str | Path) -> tuple[Header, bytes]:
  """Returns the header and the code of a compressed file.

  Raises:
    ConfigError: The file cannot be read, or is no compressed file of this version.
  """
  with reading(f"{path} cannot be read as a file of vitx compress"):
    data = Path(path).read_bytes()
    magic, version, size = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
      raise ValueError(f"it does not begin with {MAGIC!r} and the version {VERSION}")
    fields = json.loads(data[_HEAD.size : _HEAD.size + size])
    return Header(**{**fields, "shape": tuple(fields["shape"])}), data[_HEAD.size + size :]


def _digest_weights(loaded: Loaded) -> str:
  leaves = describe(name_arrays(loaded.variables))
  return digest_json({name: leaf["digest"] for name, leaf in leaves.items()})[:16]


def _digest_tokens(tokens: np.ndarray) -> str:
  return hashlib.blake2b(tokens.astype("<i4").tobytes(), digest_size=8).hexdigest()


def compress(
  model: Loaded | str | Path,
  path: str | Path,
  *,
  lanes: int = 32,
  checkpoint: str | int = "best",
) -> Compressed:
  """Compresses a file with the probabilities that a density model gives to its bytes or pixels.

  The file is cut into windows of as many tokens as the model reads, see `coding.group_windows`.

  Args:
    model: A model that `vitx.load` returned, or a workdir.
    path: The path of the file.
    lanes: The number of windows coded at a time; more are faster and take more memory, here and in
      decompression.
    checkpoint: "best", "latest" or a step.

  Raises:
    ConfigError: The model is not a density model, or the file's content does not fit it.
    MissingExtraError: `constriction` is not installed.
    OSError: The file cannot be read.
  """
  check_value(lanes, "lanes", PositiveInt)
  with open_model(model, checkpoint) as loaded:
    kind, shape, tokens = _read_tokens(Path(path), loaded)
    if not tokens.size:
      raise ConfigError(f"{path} is empty; name a file with content.")
    size = density_model.density_task(loaded).length
    lanes = min(lanes, max(tokens.size // size, 1))
    with count_bar("coding", tokens.size, "token") as bar:
      coder = WindowCoder(loaded.model, loaded.variables, size, lanes, bar.update)
      code, bits = coder.encode(tokens)
    digests = _digest_weights(loaded), _digest_tokens(tokens)
  machine = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
  header = Header(kind, shape, lanes, loaded.step, *digests, machine)
  return Compressed(pack(header, code), header, len(code), bits)


def _read_tokens(path: Path, loaded: Loaded) -> tuple[str, tuple[int, ...], np.ndarray]:
  """Returns a file's kind, the shape of its content (see `Header`) and its tokens, int32 (n,)."""
  if density_model.kind_of(loaded) != "image":
    content = np.frombuffer(path.read_bytes(), np.uint8)
    return "bytes", content.shape, density_model.check_tokens(content, loaded, str(path))
  if path.suffix in (".npy", ".npz"):
    kind, grid, arrays = "images", density_model.grid_of(loaded), list(read_arrays(path).values())
    images = arrays[0]
    if len(arrays) > 1 or images.dtype != np.uint8 or images.shape[1:] != grid:
      spec = f"uint8 (n, {', '.join(map(str, grid))})"
      raise ConfigError(f"{path} must hold one array {spec}, not {images.dtype} {images.shape}.")
  else:
    kind, images = "image", density_model.read_image(path, loaded)[None]
  return kind, images.shape, density_model.image_tokens(images, loaded).reshape(-1)


def decompress(model: Loaded | str | Path, path: str | Path) -> np.ndarray:
  """Decompresses a file to its original content.

  Args:
    model: A model that `vitx.load` returned, or a workdir, whose checkpoint the file names.
    path: The path of the compressed file.

  Returns:
    The bytes of the original file, uint8 (n,), or its images, (n, height, width, channels).

  Raises:
    ConfigError: The file is missing or damaged, or was compressed by another model or machine.
    MissingExtraError: `constriction` is not installed.
  """
  header, code = unpack(path)
  step = "best" if isinstance(model, Loaded) else header.step  # the digests are compared below
  with open_model(model, step) as loaded:
    task = density_model.density_task(loaded)
    if _digest_weights(loaded) != header.weights:
      raise ConfigError(
        f"{path} was compressed with other weights than those of step {loaded.step} in"
        f" workdir={loaded.workdir!r}; use the workdir that compressed it."
      )
    problem = f"{path} is damaged, or needs the machine that wrote it, {header.made_on}"
    with reading(problem), count_bar("decoding", header.count, "token") as bar:
      coder = WindowCoder(loaded.model, loaded.variables, task.length, header.lanes, bar.update)
      tokens = coder.decode(code, header.count)
      if _digest_tokens(tokens) != header.tokens:
        raise ValueError("it decodes to other tokens")
  if header.kind == "bytes":
    return tokens.astype(np.uint8)
  return to_values(tokens, task.levels).reshape(header.shape)


def to_file(kind: str, content: np.ndarray, suffix: str) -> bytes:
  """Returns the bytes of the original file, given the content that `decompress` returned.

  Args:
    kind: The kind in the header.
    content: The array that `decompress` returned.
    suffix: The suffix of the file's name; ".npz" selects this format for an array of images.
  """
  if kind == "bytes":
    return content.tobytes()
  if kind == "image":
    image = content[0, ..., 0] if content.shape[-1] == 1 else content[0]
    return to_png(Image.fromarray(image))
  return to_numpy_file(content, suffix)
