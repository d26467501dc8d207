"""Files of arrays: both kinds, and what is none."""

import numpy as np
import pytest

from vitx.data.array_files import read_arrays
from vitx.errors import ConfigError


def test_both_kinds(tmp_path):
  a, b = np.arange(6).reshape(2, 3), np.ones(2, np.uint8)
  np.savez(tmp_path / "two.npz", a=a, b=b)
  np.save(tmp_path / "one.npy", a)
  found = read_arrays(tmp_path / "two.npz")
  assert found.keys() == {"a", "b"} and found["b"].dtype == np.uint8
  np.testing.assert_array_equal(found["a"], a)
  np.testing.assert_array_equal(read_arrays(str(tmp_path / "one.npy"))[""], a)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"word", b"\x93NUMPY\x01\x00"])
def test_what_is_none(tmp_path, content):
  path = tmp_path / "file.npz"
  path.write_bytes(content)
  with pytest.raises(ConfigError, match=r"file\.npz' cannot be read as arrays"):
    read_arrays(path)


def test_a_file_cut_short(tmp_path):
  path = tmp_path / "file.npz"
  np.savez(path, a=np.arange(1000))
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(ConfigError, match="cannot be read as arrays"):
    read_arrays(path)


def test_nothing_pickled_is_executed(tmp_path):
  np.save(tmp_path / "file.npy", np.array([{1: 2}], object), allow_pickle=True)
  with pytest.raises(ConfigError, match="cannot be read as arrays"):
    read_arrays(tmp_path / "file.npy")


def test_no_file(tmp_path):
  with pytest.raises(ConfigError, match="No such file"):
    read_arrays(tmp_path / "absent.npz")
