"""A pipe has no end until somebody writes into it, and a device has none: neither is opened."""

import os
import socket

import pytest

from vitx.cli import code_file
from vitx.cli.configs import load_config
from vitx.data import array_files, wav
from vitx.data.class_names import read_names
from vitx.data.regular_file import open_file, read_bytes
from vitx.data.sources import open_dataset
from vitx.errors import ConfigError
from vitx.tasks.image_inputs import read_image

READERS = {
  "file": read_bytes,
  "array": array_files.read_arrays,
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
  with pytest.raises(OSError, match="no regular file"):
    read_bytes(tmp_path)
