"""Reads `torch.save` files without PyTorch, and without executing the code that they contain.

Such a file contains a pickle, a program that may call anything it names. Here every name resolves
to a harmless substitute. The substitutes of tensors and plain containers hold the data; any other
name becomes an `Opaque` object, and the real object is neither imported nor called.
"""

import io
import math
import os
import pickle
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from vitx.files import check_inflated, most_inflated, reading

_DTYPES = {
  "DoubleStorage": np.float64,
  "FloatStorage": np.float32,
  "HalfStorage": np.float16,
  "BFloat16Storage": ml_dtypes.bfloat16,
  "LongStorage": np.int64,
  "IntStorage": np.int32,
  "ShortStorage": np.int16,
  "CharStorage": np.int8,
  "ByteStorage": np.uint8,
  "BoolStorage": np.bool_,
  # A tensor that states its own type, which is one of those below, uses this untyped storage.
  "UntypedStorage": np.uint8,
  "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
  "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
  "float8_e5m2": ml_dtypes.float8_e5m2,
  "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
  "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
  **{name: np.dtype(name) for name in ("uint16", "uint32", "uint64")},
}
_PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
# The most memory, in bytes, that one byte of a pickle may need; one byte can be an empty dict.
_GROWTH = 64
# A file from before PyTorch 1.6 begins with these numbers, each pickled separately.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MOST_IN_A_TUPLE = 100_000


def read_torch(path: str | Path) -> Any:
  """Returns the content of a `torch.save` file, with tensors as NumPy arrays.

  PyTorch's archive format and its older format (before 1.6) are read. Any object other than a
  tensor, a plain container, a number or text is replaced by an `Opaque`.

  Raises:
    ConfigError: The file does not exist, is damaged, or has tensors larger than
      `files.check_inflated` allows.
  """
  with reading(f"{str(path)!r} is no readable file of torch.save"):
    if zipfile.is_zipfile(path):
      return _read_archive(path)
    return _read_stream(path)


def _read_archive(path: str | Path) -> Any:
  with zipfile.ZipFile(path) as archive:
    names = [name for name in archive.namelist() if name.split("/", 1)[-1] == "data.pkl"]
    if len(names) != 1:
      raise ValueError("the archive has no data.pkl")
    declared = sum(member.file_size for member in archive.infolist())
    declared += _GROWTH * archive.getinfo(names[0]).file_size
    check_inflated(repr(str(path)), declared, os.path.getsize(path))
    folder = names[0].removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in archive.namelist() and archive.read(order) != b"little":
      raise ValueError("its numbers are big-endian; save it on a little-endian machine")

    # A storage is read once as long as it is in use: a pickle may refer to it any number of times.
    kept: weakref.WeakValueDictionary[str, np.ndarray] = weakref.WeakValueDictionary()

    def load(key: str, dtype: np.dtype, count: int) -> np.ndarray:
      stored = kept.get(key)
      if stored is None:
        stored = kept[key] = np.frombuffer(archive.read(f"{folder}data/{key}"), np.uint8)
      return stored.view(dtype)

    return _Reader(io.BytesIO(archive.read(names[0])), path, load).load()


def _read_stream(path: str | Path) -> Any:
  """Reads a file of the format before PyTorch 1.6.

  The objects are read twice, since the storages that they use come after them in the file.
  """
  storages: dict[str, np.ndarray] = {}
  wanted: dict[str, tuple[np.dtype, int]] = {}

  def note(key: str, dtype: np.dtype, count: int) -> "np.ndarray | Opaque":
    wanted[key] = dtype, count
    return storages.get(key, Opaque())

  with open(path, "rb") as file:
    if _Reader(file, path).load() != _MAGIC or _Reader(file, path).load() != _PROTOCOL:
      raise ValueError("it does not begin like such a file")
    _Reader(file, path).load()  # This part describes the machine that wrote the file.
    start = file.tell()
    _Reader(file, path, note).load()
    for key in _Reader(file, path).load():
      if key not in wanted:
        raise ValueError("a tensor has a type of number that NumPy lacks; save it as float32")
      dtype, count = wanted[key]
      stored = int.from_bytes(file.read(8), "little")
      content = file.read(stored * dtype.itemsize)
      if stored != count or len(content) != stored * dtype.itemsize:
        raise ValueError(f"the data of tensor {key} are cut short; copy the file again")
      storages[key] = np.frombuffer(content, dtype)
    for key in wanted.keys() - storages.keys():
      raise ValueError(f"the data of tensor {key} are missing; copy the file again")
    file.seek(start)
    return _Reader(file, path, note).load()


_TUPLES = {code[0] for code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)}


def _count_tuple(run: Callable) -> Callable:
  """Wraps the unpickler's instruction for tuples, so that too large a tuple raises ValueError.

  A hundred bytes can encode forty tuples of which each contains the previous one twice; hashing the
  last tuple would never end.
  """

  def make(reader: "_Reader") -> None:
    run(reader)
    made: tuple = reader.stack[-1]  # type: ignore[attr-defined]
    count = 1 + sum(reader.tuples.get(id(each), (1, ()))[0] for each in made)
    if count > MOST_IN_A_TUPLE:
      raise ValueError(f"it has a tuple of more than {MOST_IN_A_TUPLE:,} values")
    reader.tuples[id(made)] = count, made

  return make


class _Reader(pickle._Unpickler):
  """An unpickler that resolves every name to an inert substitute.

  It extends the unpickler that is written in Python. A file of twenty bytes can make the one in C
  reserve gigabytes for its memo, the table of the objects that were read.
  """

  # PyTorch writes no byte arrays, and the unpickler would reserve any length before it reads one.
  dispatch = {  # noqa: RUF012
    code: _count_tuple(run) if code in _TUPLES else run
    for code, run in pickle._Unpickler.dispatch.items()
    if code != pickle.BYTEARRAY8[0]
  }

  def __init__(self, file: Any, path: str | Path, load: Callable | None = None) -> None:
    super().__init__(_Pickle(file, path))
    self._path, self._load = path, load
    self._viewed = 0  # The bytes of all tensors; many may view one storage.
    self._opaque: dict[str, type[Opaque]] = {}
    self.tuples: dict[int, tuple[int, tuple]] = {}  # The number of values in each tuple, by its id.

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) == ("collections", "OrderedDict"):
      return _Mapping
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
      return _StandIn(self._view)
    if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
      return _StandIn(self._view_typed)
    if module == "torch._utils" and name in _PARAMETERS:
      return _StandIn(lambda data, *_: data)
    if (module, name) == ("argparse", "Namespace"):  # Training checkpoints often contain one.
      return _Settings
    if module in ("torch", "torch.storage") and name in _DTYPES:
      return _StorageType(np.dtype(_DTYPES[name]))
    full = f"{module}.{name}"
    if full not in self._opaque:
      self._opaque[full] = type(full, (Opaque,), {"__slots__": ()})
    return self._opaque[full]

  def _view(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Any:
    """Returns a copy of the part of a storage that a tensor views."""
    if isinstance(storage, Opaque):
      return storage
    if not all(isinstance(n, int) and n >= 0 for n in (offset, *size, *stride)):
      raise ValueError("a tensor has an offset, size or stride that is no integer >= 0")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 in size:
      return np.empty(size, storage.dtype)
    if last >= storage.size or math.prod(size) > storage.size:
      raise ValueError(f"a tensor of shape {tuple(size)} reaches beyond its {storage.size} numbers")
    steps = tuple(step * storage.itemsize for step in stride)
    found = np.lib.stride_tricks.as_strided(storage[offset:], size, steps).copy()
    self._viewed += found.nbytes
    check_inflated(repr(str(self._path)), self._viewed, os.path.getsize(self._path))
    return found

  def _view_typed(self, storage: Any, offset: int, size: Any, stride: Any, *more: Any) -> Any:
    _, _, kind, *_ = more
    if isinstance(storage, Opaque) or not isinstance(kind, _StorageType):
      return Opaque()
    return self._view(storage.view(kind.dtype), offset, size, stride)

  def persistent_load(self, pid: Any) -> Any:
    if self._load is None:
      raise ValueError("it has a tensor in a part that torch.save writes without tensors")
    tag, kind, *_ = pid
    if tag == "module" and isinstance(kind, type) and issubclass(kind, Opaque):
      return kind  # The older format includes the source of a class.
    tag, kind, key, _, count, *view = pid
    if tag == "storage" and isinstance(kind, type) and issubclass(kind, Opaque):
      return kind()  # NumPy has no such type of number.
    if tag != "storage" or not isinstance(kind, _StorageType) or not isinstance(key, str):
      raise ValueError("it refers to something other than the numbers of a tensor")
    if any(part is not None for part in view):
      raise ValueError("a tensor views the data of another; save it with a newer PyTorch")
    return self._load(key, kind.dtype, count)


class _Pickle:
  """The file of a pickle, of which no more is read than what `check_inflated` allows in memory.

  The length of a pickle in the older format is not known before it is read.
  """

  def __init__(self, file: Any, path: str | Path) -> None:
    self._file, self._path, self._read = file, path, 0
    self._stored = os.path.getsize(path)
    self._most = most_inflated(self._stored) / _GROWTH

  def read(self, size: int) -> bytes:
    return self._count(self._file.read(size))

  def readline(self) -> bytes:
    return self._count(self._file.readline())

  def _count(self, content: bytes) -> bytes:
    self._read += len(content)
    if self._read > self._most:
      check_inflated(repr(str(self._path)), _GROWTH * self._read, self._stored)
    return content


class _Inert:
  """An object that a pickle may name but not change."""

  __slots__ = ()

  def __setstate__(self, state: Any) -> Any:
    raise ValueError("it sets the state of an object that has none")


class Opaque(_Inert):
  """A substitute for any object that is neither a tensor nor a container; it drops all arguments.

  Each name gets a class of its own, so that a pickle may instantiate the class, call it as a
  function and set any attribute that it would set on the real object.
  """

  def __new__(cls, *_: Any, **__: Any) -> "Opaque":
    return object.__new__(cls)

  def __init__(self, *_: Any, **__: Any) -> None:
    pass

  def __setstate__(self, state: Any) -> None:
    pass

  def __setitem__(self, key: Any, value: Any) -> None:
    pass

  def extend(self, values: Any) -> None:
    """Ignores the values."""

  append = add = extend


class _StandIn(_Inert):
  """A substitute for a function that a pickle names."""

  __slots__ = ("_function",)

  def __init__(self, function: Callable) -> None:
    self._function = function

  def __call__(self, *args: Any) -> Any:
    return self._function(*args)


class _StorageType(_Inert):
  """The dtype of a storage. A storage is an array in the file, and tensors are views of it."""

  __slots__ = ("dtype",)

  def __init__(self, dtype: np.dtype) -> None:
    self.dtype = dtype


class _Mapping(dict):
  """An ordered dict that ignores attributes which a pickle sets."""

  def __setstate__(self, state: Any) -> None:
    pass


class _Settings(dict):
  """A substitute for `argparse.Namespace`: a dict of the arguments of a command."""

  def __setstate__(self, state: Any) -> None:
    if isinstance(state, dict):
      self.update(state)
