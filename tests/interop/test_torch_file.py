"""Files of `torch.save` are read without PyTorch, and no code in their pickles is executed."""

import argparse
import collections
import datetime
import decimal
import io
import os
import pickle
import random
import re
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.interop import torch_writer
from vitx.config.errors import ConfigError
from vitx.interop import foreign
from vitx.interop.torch_file import Opaque, read_torch

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = ("torch_archive.pth", "torch_stream.pth")
EXPECTED = dict(np.load(GOLDEN / "torch_files.npz"))


@pytest.mark.parametrize("name", FILES)
def test_both_formats_of_pytorch_are_read(name):
  content = read_torch(GOLDEN / name)
  assert content["epoch"] == 3 and content["args"] == {"lr": 0.5, "name": "small"}
  for group in ("model", "tensors"):
    expected = {key.split("/")[1]: x for key, x in EXPECTED.items() if key.startswith(group)}
    assert list(content[group]) == list(expected)
    for key, value in expected.items():
      array = content[group][key]
      assert str(array.dtype) == ("bfloat16" if key == "bfloat16" else str(value.dtype)), key
      np.testing.assert_array_equal(array.astype(value.dtype), value, err_msg=key)
      assert array.flags.writeable and array.flags.owndata


class Wicked:
  """An object that runs a command, which creates a file, when it is unpickled."""

  def __init__(self, path, call=os.system):
    self.path, self.call = path, call

  def __reduce__(self):
    return self.call, (f"touch {self.path}",)


def archive(content, path, **data):
  with zipfile.ZipFile(path, "w") as file:
    file.writestr("archive/data.pkl", content)
    for key, value in data.items():
      file.writestr(f"archive/data/{key}", value)
  return path


def stream(content, path):
  parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
  path.write_bytes(b"".join(parts) + content + pickle.dumps([], 2))
  return path


@pytest.mark.parametrize("write", [archive, stream])
@pytest.mark.parametrize("call", [os.system, eval, exec, getattr])
def test_a_pickle_executes_nothing(tmp_path, write, call):
  touched = tmp_path / "touched"
  content = pickle.dumps({"model": Wicked(touched, call)}, 2)
  path = write(content, tmp_path / "wicked.pth")
  before = path.read_bytes()
  assert isinstance(read_torch(path)["model"], Opaque)
  weights, beside = foreign.read_arrays(str(path))
  assert weights == {} and re.fullmatch(rf"a .*{call.__name__}, .* not executed", beside["model"])
  assert not touched.exists() and path.read_bytes() == before


class Own:
  """A class of the training code, which the reader of the file does not have."""

  def __init__(self):
    self.inner = [Own] * 2


# Objects that training code saves beside weights, and the reader's words for them.
BESIDE = {
  "epoch": (3, "of the type int"),
  "best_acc": (np.float64(77.1), "multiarray.scalar"),
  "dtype": (np.dtype("float32"), "numpy.dtype"),
  "random": (random.Random(0).getstate(), "of the type tuple"),
  "args": (argparse.Namespace(lr=0.1, out=Path("/x")), "a dict"),
  "path": (Path("/home/x"), "PosixPath"),
  "date": (datetime.datetime(2026, 1, 2), "datetime.datetime"),
  "none": (None, "NoneType"),
  "set": ({1, 2}, "set"),
  "counts": (collections.Counter("aab"), "collections.Counter"),
  "defaults": (collections.defaultdict(list, {1: [2]}), "collections.defaultdict"),
  "queue": (collections.deque([1, 2]), "collections.deque"),
  "decimal": (decimal.Decimal("1.5"), "decimal.Decimal"),
  "complex": (1j, "complex"),
  "own": (Own(), "Own"),
  "a_class": (Own, "of the type type"),
  "optimizer": ({"state": {0: {"step": 1}}, "param_groups": [{"lr": 0.1}]}, "a dict"),
}


def test_values_beside_weights_are_described(tmp_path):
  weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((), np.int64)}
  content = {"model": weights, **{name: value for name, (value, _) in BESIDE.items()}}
  arrays, beside = foreign.read_arrays(torch_writer.save(content, tmp_path / "a.pth"))
  assert arrays.keys() == weights.keys() and beside.keys() == {"model.", *BESIDE}
  for name, value in weights.items():
    np.testing.assert_array_equal(arrays[name], value)
  for name, (_, said) in BESIDE.items():
    assert said in beside[name], name


def test_tensors_with_types_of_their_own_are_read(tmp_path):
  """Float8 and uint16 are read; complex arrays are not, since no network of vitx has them."""
  content = {
    "float8": np.array([0.5, -1, 448], ml_dtypes.float8_e4m3fn),
    "uint16": np.array([[1, 65535]], np.uint16),
    "complex": np.ones(2, np.complex64),
  }
  arrays, beside = foreign.read_arrays(torch_writer.save(content, tmp_path / "a.pth"))
  assert arrays.keys() == {"float8", "uint16"}
  assert beside == {"complex": "a torch.ComplexFloatStorage, which was not executed"}
  for name, value in arrays.items():
    assert value.dtype == content[name].dtype
    np.testing.assert_array_equal(value, content[name])


def test_a_pickled_network_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r"a\.pth.*Own, .*not executed; save the state_dict"):
    foreign.read_arrays(torch_writer.save(Own(), tmp_path / "a.pth"))


def persistent(*entries):
  """Returns a pickle whose persistent references PyTorch's reader resolves."""

  class Pickler(pickle.Pickler):
    def persistent_id(self, thing):
      return thing.pid if isinstance(thing, Reference) else None

  file = io.BytesIO()
  Pickler(file, 2).dump(entries)
  return file.getvalue()


class Reference:
  def __init__(self, *pid):
    self.pid = pid


@pytest.mark.parametrize("pid", [("storage",), ("storage", "FloatStorage", "0", "cpu", 3)])
def test_references_to_no_storage_are_refused(tmp_path, pid):
  path = archive(persistent(Reference(*pid)), tmp_path / "a.pth", **{"0": bytes(12)})
  with pytest.raises(ConfigError, match=r"a\.pth.*is no readable file of torch\.save"):
    read_torch(path)


def test_the_source_of_a_class_is_skipped(tmp_path):
  reference = Reference("module", None, "net.py", "class Net: pass")
  assert read_torch(archive(persistent(reference), tmp_path / "a.pth")) == (None,)


def rebuild(offset, size, stride, count=4):
  """Returns the pickle of one float32 tensor over a storage of `count` numbers."""
  kind = b"ctorch\nFloatStorage\n"
  numbers = lambda *n: b"(" + b"".join(b"I%d\n" % i for i in n) + b"t"  # noqa: E731
  storage = b"(X\x07\x00\x00\x00storage" + kind + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
  storage += b"I%d\ntQ" % count
  call = b"ctorch._utils\n_rebuild_tensor_v2\n("
  rest = b"I%d\n" % offset + numbers(*size) + numbers(*stride) + b"I00\n}tR"
  return b"\x80\x02" + call + storage + rest + b"."


def test_a_tensor_views_a_part_of_its_storage(tmp_path):
  data = np.arange(4, dtype=np.float32).tobytes()
  path = archive(rebuild(1, (3,), (1,)), tmp_path / "a.pth", **{"0": data})
  np.testing.assert_array_equal(read_torch(path), [1, 2, 3])
  expanded = archive(rebuild(2, (5,), (0,)), tmp_path / "b.pth", **{"0": data})
  np.testing.assert_array_equal(read_torch(expanded), [2] * 5)


@pytest.mark.parametrize(
  ("offset", "size", "stride"),
  [(1, (4,), (1,)), (0, (2, 3), (2, 1)), (-1, (2,), (1,)), (0, (2,), (-1,))],
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path, offset, size, stride):
  path = archive(rebuild(offset, size, stride), tmp_path / "a.pth", **{"0": bytes(16)})
  with pytest.raises(ConfigError, match=r"a\.pth.*(beyond its \d|no integer >= 0)"):
    read_torch(path)


def test_a_big_endian_file_is_refused(tmp_path):
  path = archive(rebuild(0, (4,), (1,)), tmp_path / "a.pth", **{"0": bytes(16)})
  with zipfile.ZipFile(path, "a") as file:
    file.writestr("archive/byteorder", "big")
  with pytest.raises(ConfigError, match=r"a\.pth.*big-endian"):
    read_torch(path)


def test_a_view_of_another_tensors_data_is_refused(tmp_path):
  """The format before PyTorch 1.6 may name a view of a storage, which would be a wrong array."""
  reference = Reference("storage", None, "0", "cpu", 4, ("1", 0, 4))
  path = archive(persistent(reference), tmp_path / "a.pth", **{"0": bytes(16)})
  with pytest.raises(ConfigError, match=r"a\.pth.*views the data of another"):
    read_torch(path)
