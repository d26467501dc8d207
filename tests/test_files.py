"""Files that others made: which are opened, their arrays, and the limit of their size."""

import contextlib
import io
import os
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.data import wav
from vitx.data.builders.tiny_imagenet.archive import Archive
from vitx.data.class_names import read_names
from vitx.data.sources import open_dataset
from vitx.files import check_inflated, open_file, read_arrays, read_bytes, replace_text
from vitx.inference import code_file
from vitx.tasks.image_inputs import read_image


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


def test_the_limit_is_of_declared_bytes_and_of_their_share():
  check_inflated("a", 2**28, 1)
  check_inflated("a", 20 * 2**30, 2**30)  # a file that is large itself is no bomb
  with pytest.raises(ConfigError, match=r"a has 3,000,000 bytes .* becomes 3,000,000,000.*=3$"):
    check_inflated("a", 3 * 10**9, 3 * 10**6)


def test_arrays_that_declare_too_much_are_refused_before_they_are_inflated(tmp_path, monkeypatch):
  path = tmp_path / "zeros.npz"
  np.savez_compressed(path, a=np.zeros(2**18), b=np.zeros(2**18))  # neither alone is too large
  monkeypatch.setenv("VITX_MAX_INFLATED_GIB", str(3 * 2**-10))
  monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)
  with pytest.raises(ConfigError, match=r"zeros\.npz' has .* becomes 4,194,"):
    read_arrays(path)
  monkeypatch.undo()
  assert read_arrays(path)["b"].size == 2**18


@pytest.mark.parametrize("shape", [(2**60,), (2**31, 2**31), (10**15,), (-1,), (2**62, 0)])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_head_that_declares_more_than_the_file_has(tmp_path, shape, suffix):
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


# Neither a pipe nor a device is opened: reading a pipe waits, and reading a device never ends.
READERS = {
  "file": read_bytes,
  "array": read_arrays,
  "sound": wav.read_head,
  "code": code_file.read,
  "image": lambda path: read_image(str(path), 3, 0),
  "classes": read_names,
  "bytes": lambda path: open_dataset({"source": f"bytes:{path}"}),
  "config": lambda path: load_config(str(path)),
}


@pytest.fixture(params=["pipe", "device", "socket", "link"])
def strange(request, tmp_path):
  path = tmp_path / "x.json"
  if request.param == "pipe":
    os.mkfifo(path)
  elif request.param == "socket":
    with socket.socket(socket.AF_UNIX) as listener:
      listener.bind(str(path))
  else:
    os.mkfifo(tmp_path / "pipe")
    path.symlink_to("/dev/zero" if request.param == "device" else tmp_path / "pipe")
  return path


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_named_at_once(reader, strange):
  with pytest.raises((ConfigError, OSError), match=str(strange)):
    READERS[reader](strange)


def test_a_file_is_read(tmp_path):
  (tmp_path / "x").write_bytes(b"abc")
  (tmp_path / "link").symlink_to("x")
  with open_file(tmp_path / "link") as file:
    assert file.read() == b"abc"
  with pytest.raises(OSError, match="not a regular file"):
    read_bytes(tmp_path)


def test_an_archive_that_declares_too_much_is_refused(tmp_path, monkeypatch):
  path = tmp_path / "tiny-imagenet-200.zip"
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
    file.writestr("tiny-imagenet-200/wnids.txt", "n01443537")
    file.writestr("tiny-imagenet-200/words.txt", bytes(2**21))
  monkeypatch.setenv("VITX_MAX_INFLATED_GIB", str(2**-10))
  with pytest.raises(ConfigError, match=r"tiny-imagenet-200\.zip has .* becomes 2,097,161"):
    Archive(path)
  monkeypatch.undo()
  assert Archive(path).wnids == ["n01443537"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
  path = tmp_path / "new" / "x.json"
  replace_text(path, "old")
  with monkeypatch.context() as patch:
    patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
      replace_text(path, "new")
  assert path.read_text() == "old"
  replace_text(path, "new")
  assert path.read_text() == "new" and len(list(path.parent.iterdir())) == 1
