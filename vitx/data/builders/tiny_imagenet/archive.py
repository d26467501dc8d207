"""A reader of the official Tiny ImageNet archive, zipped or extracted."""

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from vitx.files import reading


class Archive:
  """The images and the class names in the official Tiny ImageNet archive.

  Args:
    path: The path of the zip file, or of the directory extracted from it.
  """

  def __init__(self, path: os.PathLike | str):
    self._path = Path(path).expanduser()
    if self._path.is_dir():
      inner = (path for path in self._path.rglob("*") if path.is_file())
      names = [path.relative_to(self._path).as_posix() for path in inner]
      self._read = lambda name: (self._path / name).read_bytes()
    else:
      names, self._read = self._open_zip()
    roots = [name.removesuffix("wnids.txt") for name in names if name.endswith("wnids.txt")]
    self._root = min(roots, key=len, default="")
    self._names = sorted(n.removeprefix(self._root) for n in names if n.startswith(self._root))
    self.wnids = sorted(" ".join(self._read_lines("wnids.txt")).split())

  def _open_zip(self) -> tuple[list[str], Callable[[str], bytes]]:
    where = f"--from {self._path}"
    with reading(f"{where} cannot be read as an archive"):
      opened = zipfile.ZipFile(self._path)

    def read(name: str) -> bytes:
      with reading(f"{where}: {name} cannot be read"):
        return opened.read(name)

    return opened.namelist(), read

  def _read_lines(self, name: str) -> list[str]:
    with reading(f"--from {self._path}: {name} cannot be read as text"):
      return self._read(self._root + name).decode().splitlines()

  def words(self) -> dict[str, str]:
    """Returns the English name of each class by its WordNet id, from words.txt; "" if none."""
    lines = self._read_lines("words.txt")
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {wnid: words.get(wnid, "") for wnid in self.wnids}

  def train(self) -> Iterator[tuple[str, bytes, str]]:
    """Yields (file name, encoded image, WordNet id) for each file train/WNID/images/*."""
    for name in self._names:
      parts = name.split("/")
      if len(parts) == 4 and parts[0] == "train" and parts[2] == "images":
        yield parts[3], self._read(self._root + name), parts[1]

  def validation(self) -> Iterator[tuple[str, bytes, str]]:
    """Yields (file name, encoded image, WordNet id) for each image in val_annotations.txt."""
    for line in self._read_lines("val/val_annotations.txt"):
      if line.strip():
        file_name, wnid = line.split("\t")[:2]
        yield file_name, self._read(f"{self._root}val/images/{file_name}"), wnid
