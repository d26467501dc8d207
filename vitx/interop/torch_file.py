"""Reads `torch.save` files without PyTorch, and without executing the code that they contain.

Such a file contains a pickle, a program that may call anything it names. Here every name resolves
to a harmless substitute. The substitutes of tensors and plain containers hold the data; any other
name becomes an `Opaque` object, and the real object is neither imported nor called.
"""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from vitx.files import reading

_FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")  # ml_dtypes registers them
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
  **{f"float8_{kind}": np.dtype(f"float8_{kind}") for kind in _FLOAT8},
  **{name: np.dtype(name) for name in ("uint16", "uint32", "uint64")},
}


def read_torch(path: str | Path) -> Any:
  """Returns the content of a `torch.save` file, with tensors as NumPy arrays.

  PyTorch's archive format and its older format (before 1.6) are read. Any object other than a
  tensor, a plain container, a number or text is replaced by an `Opaque`.
  """
  with reading(f"{str(path)!r} is no readable file of torch.save"):
    return _read_archive(path) if zipfile.is_zipfile(path) else _read_stream(path)


def _read_archive(path: str | Path) -> Any:
  with zipfile.ZipFile(path) as archive:
    (name,) = (name for name in archive.namelist() if name.split("/", 1)[-1] == "data.pkl")
    folder = name.removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in archive.namelist() and archive.read(order) != b"little":
      raise ValueError("its numbers are big-endian; save it on a little-endian machine")

    def load(key: str, dtype: np.dtype) -> np.ndarray:
      return np.frombuffer(archive.read(f"{folder}data/{key}"), dtype)

    return _Reader(io.BytesIO(archive.read(name)), load).load()


def _read_stream(path: str | Path) -> Any:
  """Reads a file of the format before PyTorch 1.6.

  The objects are read twice, since the storages that they use come after them in the file.
  """
  storages: dict[str, np.ndarray] = {}
  dtypes: dict[str, np.dtype] = {}

  def note(key: str, dtype: np.dtype) -> Opaque:
    dtypes[key] = dtype
    return Opaque()

  with open(path, "rb") as file:
    for _ in range(3):  # a magic number, the number of the format, and the writer's machine
      _Reader(file, note).load()
    start = file.tell()
    _Reader(file, note).load()
    for key in _Reader(file, note).load():
      size = int.from_bytes(file.read(8), "little") * dtypes[key].itemsize
      storages[key] = np.frombuffer(file.read(size), dtypes[key])
    file.seek(start)
    return _Reader(file, lambda key, _: storages[key]).load()


class _Reader(pickle._Unpickler):
  """An unpickler that resolves every name to an inert substitute.

  It extends the unpickler that is written in Python. A damaged file of twenty bytes can make the
  one in C reserve gigabytes for its memo, the table of the objects that were read.
  """

  def __init__(self, file: Any, load: Callable) -> None:
    super().__init__(file)
    self._load = load
    self._substitutes: dict[str, Any] = {
      "argparse.Namespace": _Settings,  # Training checkpoints often contain one.
      "collections.OrderedDict": _Mapping,
      "torch._utils._rebuild_parameter": _StandIn(lambda data, *_: data),
      "torch._utils._rebuild_parameter_with_state": _StandIn(lambda data, *_: data),
      "torch._utils._rebuild_tensor_v2": _StandIn(self._view),
      "torch._utils._rebuild_tensor_v3": _StandIn(self._view_typed),
    }

  def find_class(self, module: str, name: str) -> Any:
    if module in ("torch", "torch.storage") and name in _DTYPES:
      return _StorageType(np.dtype(_DTYPES[name]))
    full = f"{module}.{name}"
    if full not in self._substitutes:
      self._substitutes[full] = type(full, (Opaque,), {"__slots__": ()})
    return self._substitutes[full]

  def _view(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Any:
    """Returns a copy of the part of a storage that a tensor views."""
    if isinstance(storage, Opaque):
      return storage
    if not all(isinstance(n, int) and n >= 0 for n in (offset, *size, *stride)):
      raise ValueError("a tensor has an offset, size or stride that is no integer >= 0")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 in size:
      return np.empty(size, storage.dtype)
    if last >= storage.size:
      raise ValueError(f"a tensor of shape {tuple(size)} reaches beyond its {storage.size} numbers")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps).copy()

  def _view_typed(self, storage: Any, offset: int, size: Any, stride: Any, *more: Any) -> Any:
    _, _, kind, *_ = more
    if isinstance(storage, Opaque) or not isinstance(kind, _StorageType):
      return Opaque()
    return self._view(storage.view(kind.dtype), offset, size, stride)

  def persistent_load(self, pid: Any) -> Any:
    tag, kind, *rest = pid
    if tag == "module":
      return kind  # The older format includes the source of a class.
    key, _, _, *view = rest
    if any(part is not None for part in view):
      raise ValueError("a tensor views the data of another; save it with a newer PyTorch")
    if not isinstance(kind, _StorageType):
      return kind()  # NumPy has no such type of number.
    return self._load(key, kind.dtype)


class _Inert:
  """An object that a pickle may name but not change."""

  __slots__ = ()

  def __setstate__(self, state: Any) -> None:
    pass


class Opaque(_Inert):
  """A substitute for any object that is neither a tensor nor a container; it drops all arguments.

  Each name gets a class of its own, so that a pickle may instantiate the class, call it as a
  function and set any attribute that it would set on the real object.
  """

  def __new__(cls, *_: Any, **__: Any) -> "Opaque":
    return super().__new__(cls)

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


class _Mapping(_Inert, dict):
  """An ordered dict that ignores attributes which a pickle sets."""


class _Settings(dict):
  """A substitute for `argparse.Namespace`: a dict of the arguments of a command."""

  def __setstate__(self, state: Any) -> None:
    if isinstance(state, dict):
      self.update(state)
