"""Damaged data sets, folders and files are named by path, before anything is compiled."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from tests import runs
from tests.cli.conftest import digits_dir
from tests.cli.refusal import elsewhere, refuse

__all__ = ["digits_dir", "elsewhere"]


def train(override):
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  return ["train", "--config", config, "--workdir", "run"]


def cut(share):
  return lambda data: data[: int(len(data) * share)]


def flip(data):
  place = len(data) * 3 // 10
  return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


DAMAGES = [
  ("dataset_info.json", cut(0.5)),
  ("dataset_info.json", lambda _: b"{}"),
  ("dataset_info.json", lambda _: b"[]"),
  ("dataset_info.json", lambda _: b"\xff\xfe\x00"),
  ("features.json", cut(0.5)),
  ("features.json", lambda _: b"{}"),
  ("digits-train.array_record-00000-of-00001", cut(0)),
  ("digits-train.array_record-00000-of-00001", cut(0.5)),
  ("digits-train.array_record-00000-of-00001", cut(0.99)),
  ("digits-train.array_record-00000-of-00001", flip),
  ("digits-test.array_record-00000-of-00001", cut(0.5)),
]


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case[0])
def test_a_damaged_set_is_named_by_its_path(case, digits_dir, tmp_path_factory, elsewhere, capsys):
  name, damage = case
  copy = shutil.copytree(digits_dir, tmp_path_factory.mktemp("damaged") / "tfds")
  path = copy / "digits" / "1.0.0" / name
  path.write_bytes(damage(path.read_bytes()))
  arguments = train(f"data.data_dir={copy}")
  refuse(capsys, elsewhere, arguments, f"{path} is damaged", "prepare the set again")


def test_a_file_of_a_set_is_missing(digits_dir, tmp_path_factory, elsewhere, capsys):
  copy = shutil.copytree(digits_dir, tmp_path_factory.mktemp("damaged") / "tfds")
  path = copy / "digits" / "1.0.0" / "digits-train.array_record-00000-of-00001"
  path.unlink()
  refuse(capsys, elsewhere, train(f"data.data_dir={copy}"), f"{path} does not exist")


@pytest.fixture
def images(elsewhere):
  """A folder of two classes."""
  for name in ("ant", "bee"):
    (elsewhere / "images" / name).mkdir(parents=True)
    for i in range(40):
      pixels = np.full((8, 8, 3), i, np.uint8)
      Image.fromarray(pixels).save(elsewhere / "images" / name / f"{i}.png")
  return elsewhere / "images"


FOLDER = "data.source=folder:images,data.image_size=8"


def loop(root):
  (root / "ant" / "again").symlink_to(root)


def not_utf8(root):
  with open(os.path.join(os.fsencode(root), b"ant", b"\xff.png"), "wb"):
    pass


def one_class(root):
  shutil.rmtree(root / "bee")


def empty_class(root):
  (root / "cow").mkdir()


def dangling(root):
  (root / "ant" / "x.png").symlink_to(root / "nothing.png")


def other_classes(root):
  for split, names in (("train", "ab"), ("test", "ac")):
    for name in names:
      (root / split / name).mkdir(parents=True)
      shutil.copy(root / "ant" / "0.png", root / split / name)


@pytest.mark.parametrize(
  ("change", "parts"),
  [
    (loop, ["images/ant/again leads back to", "Remove the link"]),
    (not_utf8, [r"\xff.png' is not UTF-8. Rename the file"]),
    (
      one_class,
      ["two classes: ant. Put", "directory per class", "alone: folder:images/ant"],
    ),
    (empty_class, ["no images of cow", "one of the suffixes"]),
    (dangling, ["images/ant/x.png"]),
    (other_classes, ["have different classes. Only in 'train': b. Only in 'test': c"]),
  ],
)
def test_a_folder_that_cannot_be_read(change, parts, images, capsys):
  change(images)
  refuse(capsys, images.parent, train(FOLDER), *parts)


@pytest.mark.parametrize(
  ("source", "parts"),
  [
    ("folder:empty", ["fewer than two classes: none. Put", "directory per class"]),
    ("folder:file.png", ["file.png is not a directory"]),
    ("bytes:empty", ["empty is a directory. Name one file"]),
    ("bytes:nothing", ["nothing does not exist"]),
    ("audio:empty", ["has no WAV files"]),
    ("audio:file.png", ["file.png is not a directory"]),
    ("audio:sound", ["sound/x.wav"]),
  ],
)
def test_a_source_that_holds_nothing(source, parts, elsewhere, capsys):
  for name in ("empty", "sound"):
    (elsewhere / name).mkdir()
  for name in ("file.png", "sound/x.wav"):
    (elsewhere / name).write_bytes(b"nothing of the kind")
  refuse(capsys, elsewhere, train(f"data.source={source}"), *parts)
