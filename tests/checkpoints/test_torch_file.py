"""Files of `torch.save`: what PyTorch wrote is read, and nothing that a pickle says is executed."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitx.checkpoints.torch_file import read_torch
from vitx.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = ("torch_archive.pth", "torch_stream.pth")
EXPECTED = dict(np.load(GOLDEN / "torch_files.npz"))


@pytest.mark.parametrize("name", FILES)
def test_what_pytorch_wrote(name):
  content = read_torch(GOLDEN / name)
  assert content["epoch"] == 3 and content["args"] == {"lr": 0.5, "name": "small"}
  for group in ("model", "tensors"):
    expected = {key.split("/")[1]: x for key, x in EXPECTED.items() if key.startswith(group)}
    assert list(content[group]) == list(expected)
    for key, value in expected.items():
      found = content[group][key]
      assert str(found.dtype) == ("bfloat16" if key == "bfloat16" else str(value.dtype)), key
      np.testing.assert_array_equal(found.astype(value.dtype), value, err_msg=key)
      assert found.flags.writeable and found.flags.owndata


class Wicked:
  """What writes a file when it is unpickled."""

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
def test_a_pickle_that_wants_to_execute_is_refused(tmp_path, write, call):
  touched = tmp_path / "touched"
  content = pickle.dumps({"model": Wicked(touched, call)}, 2)
  path = write(content, tmp_path / "wicked.pth")
  before = path.read_bytes()
  with pytest.raises(ConfigError, match=r"wicked\.pth.*names .*\..*nothing of it was executed"):
    read_torch(path)
  assert not touched.exists() and path.read_bytes() == before


def persistent(*entries):
  """A pickle whose persistent references PyTorch's reader resolves."""

  class Pickler(pickle.Pickler):
    def persistent_id(self, thing):
      return thing.pid if isinstance(thing, Reference) else None

  file = io.BytesIO()
  Pickler(file, 2).dump(entries)
  return file.getvalue()


class Reference:
  def __init__(self, *pid):
    self.pid = pid


@pytest.mark.parametrize(
  "pid", [("storage",), ("module", "x"), ("storage", "FloatStorage", "0", "cpu", 3)]
)
def test_references_that_are_no_storage(tmp_path, pid):
  path = archive(persistent(Reference(*pid)), tmp_path / "a.pth", **{"0": bytes(12)})
  with pytest.raises(ConfigError, match=r"a\.pth.*is no readable file of torch\.save"):
    read_torch(path)


def rebuild(offset, size, stride, count=4):
  """The pickle of one float32 tensor over a storage of four numbers."""
  kind = b"ctorch\nFloatStorage\n"
  numbers = lambda *n: b"(" + b"".join(b"I%d\n" % i for i in n) + b"t"  # noqa: E731
  storage = b"(X\x07\x00\x00\x00storage" + kind + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
  storage += b"I%d\ntQ" % count
  call = b"ctorch._utils\n_rebuild_tensor_v2\n("
  rest = b"I%d\n" % offset + numbers(*size) + numbers(*stride) + b"I00\n}tR"
  return b"\x80\x02" + call + storage + rest + b"."


def test_a_tensor_within_its_storage(tmp_path):
  data = np.arange(4, dtype=np.float32).tobytes()
  path = archive(rebuild(1, (3,), (1,)), tmp_path / "a.pth", **{"0": data})
  np.testing.assert_array_equal(read_torch(path), [1, 2, 3])


@pytest.mark.parametrize(
  ("offset", "size", "stride"),
  [(1, (4,), (1,)), (0, (2, 3), (2, 1)), (0, (10**9,), (0,)), (-1, (2,), (1,)), (0, (2,), (-1,))],
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path, offset, size, stride):
  path = archive(rebuild(offset, size, stride), tmp_path / "a.pth", **{"0": bytes(16)})
  with pytest.raises(ConfigError, match=r"a\.pth.*(beyond its storage|negative extent)"):
    read_torch(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.99])
def test_a_truncated_file_is_an_error(tmp_path, name, share):
  path = tmp_path / name
  content = (GOLDEN / name).read_bytes()
  path.write_bytes(content[: int(share * len(content))])
  with pytest.raises(ConfigError, match=f"{name}.*is no readable file of torch.save"):
    read_torch(path)


def test_flipped_bytes_never_escape_as_another_error(tmp_path):
  """Whatever stands in the pickle: arrays, or one clear error."""
  path = tmp_path / "a.pth"
  random = np.random.default_rng(1)
  for name in FILES:
    whole = (GOLDEN / name).read_bytes()
    for _ in range(60):
      content = bytearray(whole)
      for place in random.integers(0, min(len(content), 2500), 2):
        content[place] = random.integers(256)
      path.write_bytes(content)
      try:
        read_torch(path)
      except ConfigError as error:
        assert "a.pth" in str(error) and "\n" not in str(error)


def test_a_missing_file_says_so(tmp_path):
  with pytest.raises(FileNotFoundError):
    read_torch(tmp_path / "none.pth")
