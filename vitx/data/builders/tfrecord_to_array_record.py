"""Converts TFDS sets from TFRECORD to ArrayRecord files, record by record, without TensorFlow."""

import json
import os
import shutil
import struct
import uuid
from collections.abc import Iterator

from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from tqdm import tqdm

from vitx.config.errors import ConfigError
from vitx.data.sources import tfds_dir
from vitx.files import reading

_CRC32C = 0x82F63B78  # Castagnoli's polynomial, reflected


def convert(name: str, source: str, data_dir: epath.Path) -> epath.Path:
  """Copies a TFDS set from TFRECORD to ArrayRecord files; returns the directory of the new copy.

  The new copy has equal examples, shards and metadata. If it exists already, it is not changed.

  Args:
    name: The name of the set, `NAME[/CONFIG][:VERSION]`.
    source: The TFDS directory that has the set as TFRECORD, or the directory of its version.
    data_dir: The TFDS directory to write to, different from that of the TFRECORD copy.
  """
  base, config, _ = tfds_dir.parse_name(name)
  directory = _find_copy(name, epath.Path(source).expanduser())
  target = data_dir / base / (config or "") / directory.name
  if (target / "dataset_info.json").exists():
    if tfds_dir.READABLE in tfds_dir.file_formats(target):
      return target
    raise ConfigError(f"--data_dir {data_dir} has the TFRECORD copy. Name another directory.")
  temporary = target.parent / f"incomplete.{uuid.uuid4().hex[:8]}_{target.name}"
  temporary.mkdir(parents=True)
  try:
    _write(directory, temporary)
    temporary.rename(target)
  finally:
    if temporary.exists():
      temporary.rmtree()
  return target


def _find_copy(name: str, source: epath.Path) -> epath.Path:
  """Returns the directory of the set's version that is stored as TFRECORD."""
  is_version = (source / "dataset_info.json").exists()
  directory = source if is_version else tfds_dir.find(name, source)
  if directory is None or (is_version and not _is_copy(name, source)):
    raise ConfigError(
      f"--from {source} has no copy of {name!r}. Name the TFDS directory, or that of the version."
    )
  return directory


def _is_copy(name: str, directory: epath.Path) -> bool:
  """Returns whether the directory of a version has a set of this name, config and version."""
  with reading(tfds_dir.describe_damage(directory / "dataset_info.json")):
    info = json.loads((directory / "dataset_info.json").read_text())
  base, config, version = tfds_dir.parse_name(name)
  fields = {"name": base, "configName": config or "", "version": version or info.get("version")}
  return fields.items() <= {"configName": "", **info}.items()


def _write(source: epath.Path, target: epath.Path) -> None:
  info = tfds_dir.open_builder(source).info
  shards: set[str] = set()
  size = sum(split.num_bytes for split in info.splits.values())
  with tqdm(total=size, desc=info.full_name, unit="B", unit_scale=True, delay=1) as progress:
    for split in info.splits.values():
      count = len(split.shard_lengths)
      # The suffix is set here because old copies do not name their format.
      template = split.filename_template.replace(filetype_suffix="tfrecord")
      old = template.sharded_filepaths(count)
      new = template.replace(data_dir=target, filetype_suffix=tfds_dir.READABLE)
      shards |= {path.name for path in old}
      for shard in zip(old, new.sharded_filepaths(count), split.shard_lengths, strict=True):
        if os.path.relpath(shard[1], target).startswith(os.pardir):
          raise ConfigError(f"--from {source} names {shard[1]}, which is outside of {target}.")
        _convert_shard(*shard, progress)
  for path in source.iterdir():
    if path.is_file() and path.name not in shards and ".array_record-" not in path.name:
      shutil.copyfile(os.fspath(path), os.fspath(target / path.name))
  proto = json.loads((source / "dataset_info.json").read_text())
  proto["fileFormat"] = tfds_dir.READABLE
  proto.pop("alternativeFileFormats", None)
  (target / "dataset_info.json").write_text(json.dumps(proto, indent=2))


def _convert_shard(old: epath.Path, new: epath.Path, length: int, progress: tqdm) -> None:
  # Grain and TFDS read one record at a time, so each record is its own group.
  writer = ArrayRecordWriter(os.fspath(new), "group_size:1")
  count = 0
  try:
    for record in read_tfrecord(old):
      writer.write(record)
      progress.update(len(record))
      count += 1
  finally:
    writer.close()
  if count != length:
    why = f"it has {count} examples, but dataset_info.json declares {length}"
    raise ConfigError(f"{tfds_dir.describe_damage(old)}: {why}")


def read_tfrecord(path: epath.Path) -> Iterator[bytes]:
  """Yields the records of a TFRECORD file.

  A record consists of its length (uint64), the masked CRC-32C of these 8 bytes, the data and the
  data's CRC, all little-endian. Only the CRC of the length is verified. The CRC of the data would
  be slow to compute in Python, and decoding detects a damaged image.
  """
  with reading(tfds_dir.describe_damage(path)), path.open("rb") as file:
    while header := file.read(12):
      length, checksum = struct.unpack("<QI", header)
      body = file.read(length + 4) if checksum == masked_crc32c(header[:8]) else b""
      if len(body) < length + 4:
        raise ValueError("a record's checksum is wrong, or the last record is truncated")
      yield body[:length]


def masked_crc32c(data: bytes) -> int:
  """Returns the CRC-32C of a few bytes, rotated and offset as in TFRECORD files."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (_CRC32C if crc & 1 else 0)
  crc ^= 0xFFFFFFFF
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
