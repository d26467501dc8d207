"""Writes files in the format of `torch.save`, without PyTorch: archives with PyTorch's names."""

import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from unittest import mock

import numpy as np

_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage"}
_STORAGES |= {"float64": "DoubleStorage", "bool": "BoolStorage", "uint8": "ByteStorage"}
_STORAGES |= {"complex64": "ComplexFloatStorage"}
_UNTYPED = ("float8_e4m3fn", "uint16")


def _modules():
  """Returns modules that replace PyTorch's while a pickle refers to names in them."""
  torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
  for name in (*_STORAGES.values(), *_UNTYPED, "UntypedStorage"):
    setattr(torch, name, type(name, (), {"__module__": "torch"}))
  for name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
    setattr(utils, name, type(name, (), {"__module__": "torch._utils"}))
  return {"torch": torch, "torch._utils": utils}


class _Storage:
  def __init__(self, key, array):
    self.key, self.array = key, array


class _Pickler(pickle.Pickler):
  """Writes arrays as tensors, each with a storage of its own."""

  def __init__(self, file):
    super().__init__(file, 2)
    self.storages = []

  def persistent_id(self, thing):
    if isinstance(thing, _Storage):
      kind = _STORAGES.get(thing.array.dtype.name, "UntypedStorage")
      size = thing.array.nbytes if kind == "UntypedStorage" else thing.array.size
      return ("storage", getattr(sys.modules["torch"], kind), thing.key, "cpu", size)
    return None

  def reducer_override(self, thing):
    if not isinstance(thing, np.ndarray):
      return NotImplemented
    array = np.ascontiguousarray(thing).reshape(thing.shape)
    storage = _Storage(str(len(self.storages)), array)
    self.storages.append(storage)
    stride = tuple(step // array.itemsize for step in array.strides)
    place = (storage, 0, array.shape, stride, False, OrderedDict())
    utils, name = sys.modules["torch._utils"], array.dtype.name
    if name not in _UNTYPED:
      return utils._rebuild_tensor_v2, place
    return utils._rebuild_tensor_v3, (*place, getattr(sys.modules["torch"], name), None)


def save(content, path):
  """Writes plain values, and arrays as tensors; returns the path as text."""
  with zipfile.ZipFile(path, "w") as file, mock.patch.dict(sys.modules, _modules()):
    with file.open("archive/data.pkl", "w") as pickled:
      pickler = _Pickler(pickled)
      pickler.dump(content)
    for storage in pickler.storages:
      file.writestr(f"archive/data/{storage.key}", storage.array.tobytes())
  return str(path)
