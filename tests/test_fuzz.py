"""Damaged files of every kind that a user may get: each is read, or refused by its name.

Plain `pytest` damages a fiftieth of the files of `--all`, with which `FUZZ_TIMES=50` damages
fifty times as many.
"""

import contextlib
import functools
import io
import json
import os
import shutil
import struct
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from PIL import Image

from vitx.checkpoints.errors import CheckpointError
from vitx.config.errors import ConfigError
from vitx.data.builders.tiny_imagenet.archive import Archive
from vitx.data.images.decode import Encoded
from vitx.data.sources.tfds_dir import file_formats, open_builder
from vitx.data.wav import read_head
from vitx.files import read_arrays
from vitx.inference.compress import Header, pack, unpack
from vitx.interop import foreign

GOLDEN = Path(__file__).parent / "golden"
SEED = 27
# Strange values that replace those that a run wrote.
STRANGE = [None, True, -1, 0, 2**70, 1e308, float("nan"), "", "\0", "../../x", "module:Name"]
STRANGE += ["é\n\x1b[31m", [], {}, [[]], {"name": 3}, ["a"] * 9, {"a": {"b": {}}}]


def damage(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns the bytes with one to three faults, such as flipped, removed or repeated bytes."""
  damaged = bytearray(content)
  for _ in range(rng.integers(1, 4)):
    at = int(rng.integers(len(damaged) + 1))
    length = int(min(rng.geometric(0.05), 4096))
    fill = rng.choice([0, 0x20, 0x7F, 0x80, 0xFF])
    match rng.integers(6):
      case 0:
        del damaged[at:]
      case 1 if at < len(damaged):
        damaged[at] ^= 1 << int(rng.integers(8))
      case 2:
        damaged[at : at + length] = bytes([fill]) * len(damaged[at : at + length])
      case 3:
        del damaged[at : at + length]
      case 4:
        damaged[at:at] = damaged[at : at + length] or rng.bytes(length)
      case 5:
        damaged[at : at + 4] = rng.bytes(4)
  return bytes(damaged)


def damage_members(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns a zip file with one damaged member and correct checksums."""
  with zipfile.ZipFile(io.BytesIO(content)) as old:
    members = {name: old.read(name) for name in old.namelist()}
  chosen = list(members)[rng.integers(len(members))]
  members[chosen] = damage(rng, members[chosen][:200]) + members[chosen][200:]
  new = io.BytesIO()
  with zipfile.ZipFile(new, "w") as archive:
    for name, member in members.items():
      archive.writestr(name, member)
  return new.getvalue()


def damage_chunks(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns a PNG file with one damaged chunk and correct checksums."""
  at, parts = 8, []
  while at < len(content):
    (length,) = struct.unpack_from(">I", content, at)
    parts.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
    at += 12 + length
  chosen = int(rng.integers(len(parts)))
  parts[chosen] = parts[chosen][0], damage(rng, parts[chosen][1])
  return content[:8] + b"".join(
    struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    for kind, body in parts
  )


def damage_json(rng: np.random.Generator, content: bytes) -> bytes:
  """Returns JSON, or lines of it, in which one value is removed or replaced by a strange one."""
  lines = content.splitlines() if content.count(b"}\n{") else [content]
  chosen = int(rng.integers(len(lines)))
  tree = json.loads(lines[chosen])
  places = [(tree, key) for key in tree]
  for parent, key in places:  # grows while it is read
    inside = parent[key]
    if isinstance(inside, dict | list):
      places += [(inside, k) for k in (inside if isinstance(inside, dict) else range(len(inside)))]
  parent, key = places[rng.integers(len(places))]
  if rng.random() < 0.2:
    del parent[key]
  else:
    parent[key] = STRANGE[rng.integers(len(STRANGE))]
  lines[chosen] = json.dumps(tree).encode()
  return b"\n".join(lines) + b"\n"


def ways(name: str, content: bytes) -> list[Callable]:
  """Returns functions that damage a file: its bytes, or its parts with correct checksums."""
  inside = {".png": damage_chunks, ".json": damage_json, ".jsonl": damage_json}.get(
    Path(name).suffix
  )
  if zipfile.is_zipfile(io.BytesIO(content)):
    inside = damage_members
  return [damage, *([inside] if inside else [])]


@pytest.fixture
def fuzz(pytestconfig) -> Callable:
  """Returns `read_damaged` with the number of files for which this run of the tests has time."""
  times = int(os.environ.get("FUZZ_TIMES", "1")) if pytestconfig.getoption("--all") else 1 / 50
  return functools.partial(read_damaged, times)


def read_damaged(
  times: float,
  samples: dict[str, bytes],
  count: int,
  read: Callable[[str, bytes], Any],
  named: Callable[[str], str] = str,
) -> None:
  """Reads damaged files; each may only be refused by an error that names it.

  Args:
    times: The factor by which `count` is multiplied.
    samples: The undamaged files, by their names.
    count: The number of damaged files, equally many of each sample.
    read: A function of the name and the damaged bytes, which reads the file.
    named: A function of the name that returns the text that an error must contain.
  """
  faults: dict[str, str] = {}
  for number in range(int(count * times)):
    rng = np.random.default_rng([SEED, number])
    name = sorted(samples)[number % len(samples)]
    choices = ways(name, samples[name])
    way = choices[rng.integers(len(choices))]
    what = f"example {number}, {name}, {way.__name__}"
    try:
      read(name, way(rng, samples[name]))
    except (ConfigError, CheckpointError) as error:
      if named(name) not in str(error):
        faults[f"unnamed: {error}"[:60]] = f"{what}: {named(name)} is not named: {error}"
    except Exception as error:
      frame = traceback.extract_tb(error.__traceback__)[-1]
      kind = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
      faults[kind] = f"{what}: {kind}: {error}"
  assert not faults, "\n".join(faults.values())


def pictures() -> dict[str, bytes]:
  """Returns a small picture in each format, some formats in several modes."""
  rng = np.random.default_rng(SEED)
  color = Image.fromarray(rng.integers(256, size=(12, 10, 3), dtype=np.uint8))
  exif = Image.Exif()
  exif.update({0x0112: 6, 0x010F: "camera", 0x011A: 72.0})
  exif.get_ifd(0x8769).update({0x9003: "2026:01:01 00:00:00", 0x829A: 0.01})
  modes = {
    "bmp": ("RGB", "L", "P", "1"),
    "gif": ("P",),
    "ico": ("RGBA",),
    "jpg": ("RGB", "L", "CMYK"),
    "jp2": ("RGB", "L"),
    "png": ("RGB", "RGBA", "LA", "P", "I;16", "1"),
    "ppm": ("RGB",),
    "tga": ("RGB", "P"),
    "tif": ("RGB", "CMYK", "F", "I", "I;16", "L"),
    "webp": ("RGB", "RGBA"),
  }
  encoded: dict[str, bytes] = {}
  for suffix, choices in modes.items():
    for mode in choices:
      file = io.BytesIO()
      picture = (
        color.convert("L").convert("I").convert(mode) if "I" in mode else color.convert(mode)
      )
      extra = {"exif": exif} if suffix in ("jpg", "png", "tif", "webp") else {}
      picture.save(file, Image.registered_extensions()[f".{suffix}"], **extra)
      encoded[f"{mode.replace(';', '')}.{suffix}"] = file.getvalue()
  return encoded


def sound() -> bytes:
  head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0, b"WAVE", b"fmt ", 16, 1, 2, 8000, 32000, 4, 16)
  return head + struct.pack("<4sI", b"data", 400) + np.arange(200, dtype="<i2").tobytes()


def arrays(save: Callable) -> bytes:
  file = io.BytesIO()
  save(file)
  return file.getvalue()


def archive() -> bytes:
  """Returns a Tiny ImageNet archive that has only its two lists."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("tiny-imagenet-200/wnids.txt", "n01443537\n" * 9)
    archive.writestr("tiny-imagenet-200/words.txt", "n01443537\tgoldfish\n" * 99)
  return file.getvalue()


def test_damaged_images_are_read_or_named(fuzz):
  def read(name, content):
    channels = 1 + 2 * (len(content) % 2)
    pixels = Encoded(content, channels, name, upright=True).decode()
    assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[-1] == channels

  fuzz(pictures(), 15_000, read)


def test_damaged_weights_are_read_or_refused(fuzz, tmp_path):
  names = ("torch_archive.pth", "torch_stream.pth", "torch_files.npz", "augreg_weights.npz")
  samples = {name: (GOLDEN / name).read_bytes() for name in (*names, "timm_vit.safetensors")}

  def read(name, content):
    (tmp_path / name).write_bytes(content)
    foreign.read_variables(str(tmp_path / name), 3)

  fuzz(samples, 1500, read)


def test_damaged_arrays_are_read_or_named(fuzz, tmp_path):
  numbers = np.arange(60, dtype=np.float32).reshape(5, 12)
  header = Header("bytes", (9,), 1, 3, "0" * 16, "0" * 16, "cpu, jax")
  files = {
    "a.npy": (arrays(lambda file: np.save(file, numbers)), read_arrays),
    "b.npz": (arrays(lambda file: np.savez(file, image=numbers, label=3)), read_arrays),
    "c.npz": (arrays(lambda file: np.savez_compressed(file, image=numbers)), read_arrays),
    "d.wav": (sound(), lambda path: read_head(path).read()),
    "e.zip": (archive(), lambda path: Archive(path).words()),
    "f.vitx": (pack(header, bytes(30)), unpack),
  }

  def read(name, content):
    (tmp_path / name).write_bytes(content)
    files[name][1](tmp_path / name)

  fuzz({name: content for name, (content, _) in files.items()}, 2400, read)


def test_damaged_records_of_a_set_are_read_or_named(fuzz, data_dir, tmp_path):
  (source,) = (path.parent for path in data_dir.glob("*/*/dataset_info.json"))
  directory = epath.Path(shutil.copytree(source, tmp_path / "digits" / "1.0.0"))
  samples = {path.name: path.read_bytes() for path in directory.glob("*.json")}

  def read(name, content):
    with replaced(directory / name, content):
      file_formats(directory)
      open_builder(directory)

  fuzz(samples, 400, read, lambda name: str(directory))


@contextlib.contextmanager
def replaced(path: Any, content: bytes) -> Iterator[None]:
  before = path.read_bytes()
  path.write_bytes(content)
  try:
    yield
  finally:
    path.write_bytes(before)
