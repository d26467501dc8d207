"""Files that others made: which are opened, their arrays, and the limit of their size."""

import contextlib
import io
import zipfile

import numpy as np
import pytest
from etils import epath

from vitx.config.errors import ConfigError
from vitx.files import read_arrays, replace_text


def test_arrays_of_both_kinds_of_files_are_read(tmp_path):
  a, b = np.arange(6).reshape(2, 3), np.ones(2, np.uint8)
  np.savez(tmp_path / "two.npz", a=a, b=b)
  np.save(tmp_path / "one.npy", a)
  arrays = read_arrays(tmp_path / "two.npz")
  assert arrays.keys() == {"a", "b"} and arrays["b"].dtype == np.uint8
  np.testing.assert_array_equal(arrays["a"], a)
  np.testing.assert_array_equal(read_arrays(str(tmp_path / "one.npy"))[""], a)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"word", b"\x93NUMPY\x01\x00"])
def test_a_file_that_has_no_arrays_is_refused(tmp_path, content):
  path = tmp_path / "file.npz"
  path.write_bytes(content)
  with pytest.raises(ConfigError, match=r"file\.npz' cannot be read as arrays"):
    read_arrays(path)


def test_a_truncated_file_is_refused(tmp_path):
  path = tmp_path / "file.npz"
  np.savez(path, a=np.arange(1000))
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(ConfigError, match="cannot be read as arrays"):
    read_arrays(path)


def test_nothing_pickled_is_executed(tmp_path):
  np.save(tmp_path / "file.npy", np.array([{1: 2}], object), allow_pickle=True)
  with pytest.raises(ConfigError, match="cannot be read as arrays"):
    read_arrays(tmp_path / "file.npy")


def test_a_missing_file_is_refused(tmp_path):
  with pytest.raises(ConfigError, match="No such file"):
    read_arrays(tmp_path / "absent.npz")


@pytest.mark.parametrize("shape", [(2**60,), (2**31, 2**31), (10**15,), (-1,), (2**62, 0)])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_header_that_declares_more_than_the_file_has_is_refused(tmp_path, shape, suffix):
  head = io.BytesIO()
  fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
  np.lib.format.write_array_header_1_0(head, fields)
  path = tmp_path / f"a.{suffix}"
  if suffix == "npy":
    path.write_bytes(head.getvalue() + bytes(64))
  else:
    with zipfile.ZipFile(path, "w") as file:
      file.writestr("a.npy", head.getvalue() + bytes(64))
  with contextlib.suppress(ConfigError):  # NumPy takes the empty one
    assert read_arrays(path).popitem()[1].size == 0


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
  def fail(*_):
    raise OSError("no space")

  path = tmp_path / "new" / "x.json"
  replace_text(path, "old")
  with monkeypatch.context() as patch:
    patch.setattr(
      type(epath.Path()), "replace", lambda *_: (_ for _ in ()).throw(OSError("no space"))
    )
    with pytest.raises(OSError, match="no space"):
      replace_text(path, "new")
  assert path.read_text() == "old"
  replace_text(path, "new")
  assert path.read_text() == "new" and len(list(path.parent.iterdir())) == 1
