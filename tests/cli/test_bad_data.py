"""Damaged data sets, folders and files are named by path, before anything is compiled."""

import shutil

import pytest

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


TRAIN = "digits-train.array_record-00000-of-00001"
DAMAGES = [
  ("dataset_info.json", cut(0.5)),
  ("dataset_info.json", lambda _: b"[]"),
  ("features.json", cut(0.5)),
  (TRAIN, cut(0.99)),
  (TRAIN, flip),
  (TRAIN, None),
]


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case[0])
def test_a_damaged_set_is_named_by_its_path(case, digits_dir, tmp_path_factory, elsewhere, capsys):
  name, damage = case
  copy = shutil.copytree(digits_dir, tmp_path_factory.mktemp("damaged") / "tfds")
  path = copy / "digits" / "1.0.0" / name
  if damage is None:
    path.unlink()
  else:
    path.write_bytes(damage(path.read_bytes()))
  arguments = train(f"data.data_dir={copy}")
  refuse(capsys, elsewhere, arguments, f"{path} is damaged; prepare the set again")


@pytest.mark.parametrize(
  ("source", "part"),
  [
    ("folder:loop", "loop/ant/again leads back to"),
    ("folder:one", "two classes: ant. Put a directory per class"),
    ("folder:different", "different classes. Only in 'train': ant. Only in 'test': bee"),
    ("folder:sound", "fewer than two classes: none"),
    ("folder:sound/x.wav", "does not name a directory"),
    ("bytes:sound", "cannot be read"),
    ("audio:sound", "sound/x.wav cannot be read as WAV"),
  ],
)
def test_an_unsuitable_source_is_refused(source, part, elsewhere, capsys):
  for name in ("loop/bee/0.png", "loop/ant/0.png", "one/ant/0.png", "sound/x.wav"):
    (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
    (elsewhere / name).write_bytes(b"nothing of the kind")
  (elsewhere / "loop" / "ant" / "again").symlink_to(elsewhere / "loop")
  shutil.copytree(elsewhere / "one", elsewhere / "different" / "train")
  shutil.copytree(elsewhere / "one" / "ant", elsewhere / "different" / "test" / "bee")
  refuse(capsys, elsewhere, train(f"data.source={source},data.image_size=8"), part)
