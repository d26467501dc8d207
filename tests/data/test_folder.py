import shutil

import numpy as np
import pytest
from PIL import Image

from tests.data.examples import names, roles
from vitx.config.errors import ConfigError
from vitx.config.settings import change
from vitx.data.sources import open_source


@pytest.fixture
def splits(tmp_path, draw):
  """A folder with the splits train, val and test of two classes."""
  for split, count in (("train", 6), ("val", 3), ("test", 4)):
    for class_name in ("ant", "bee"):
      for i in range(count):
        draw(tmp_path / "insects" / split / class_name / f"{i}.jpg", seed=i)
  return tmp_path / "insects"


def test_a_directory_per_class_is_divided(folder, make_data):
  source = open_source(make_data(source=f"folder:{folder}"), seed=0)
  assert source.info.class_names == ("cat", "dog", "owl")
  assert source.info.spec["image"].shape == (None, None, 3)
  assert np.bincount(source.test.labels).tolist() == [4, 2, 1]
  assert np.bincount(source.validation.labels).tolist() == [2, 1, 1]
  assert np.bincount(source.train.labels).tolist() == [14, 7, 3]
  joined = source.all_roles()
  assert len({*names(joined)}) == len(joined) == 35
  for i in range(35):
    assert joined.name(i).split("/")[0] == source.info.class_names[joined.labels[i]]
    assert joined[i]["label"] == joined.labels[i]


def test_a_test_split_without_labels_is_not_used(splits, make_data, draw):
  shutil.rmtree(splits / "test")
  draw(splits / "test" / "0.png")
  data = make_data(source=f"folder:{splits}")
  assert names(open_source(data, seed=0).test)[0].startswith("val/")
  data = change(data, {"splits.test": "test"})
  with pytest.raises(ConfigError, match=r"'test'.*has no labels"):
    open_source(data, seed=0)


def test_hidden_files_are_ignored_and_others_skipped_with_a_warning(
  folder, make_data, draw, caplog
):
  data = make_data(source=f"folder:{folder}")
  before = open_source(data, seed=0).info.fingerprint
  assert not caplog.records
  for i in range(7):
    (folder / "cat" / f"notes{i}.txt").write_text("soft")
  (folder / "README.md").write_text("pets")
  draw(folder / "cat" / ".hidden.png")
  draw(folder / ".cache" / "x.png")
  after = open_source(data, seed=0)
  assert len(after.info.class_names) == 3 and after.info.fingerprint == before
  (record,) = caplog.records
  assert "skipped 7 files" in record.getMessage()
  assert "cat/notes0.txt" in record.getMessage() and "and 2 more" in record.getMessage()


def test_a_folder_of_images_alone_has_no_labels(tmp_path, make_data, draw, caplog):
  pixels = {f"{i}.png": draw(tmp_path / f"{i}.png") for i in range(20)}
  (tmp_path / "notes.txt").write_text("x")
  source = open_source(make_data(source=f"folder:{tmp_path}"), seed=0)
  assert source.info.class_names is None and set(source.info.spec) == {"image"}
  assert [len(role) for role in roles(source)] == [14, 2, 4]
  assert {name for role in roles(source) for name in names(role)} == set(pixels)
  example = source.train[0]
  assert set(example) == {"image"} and source.train.labels is None
  np.testing.assert_array_equal(example["image"], pixels[source.train.name(0)])
  (record,) = caplog.records
  assert "skipped 1 files" in record.getMessage()


def test_every_suffix_and_inner_directories_are_read(folder, make_data, draw):
  for name in ["images/A.JPEG", "b.webp", "c.bmp", "d.gif", "e.tiff", "f.jfif", "g.tga", "h.jp2"]:
    shape = draw(folder / "owl" / name).shape
  source = open_source(make_data(source=f"folder:{folder}"), seed=0)
  examples = [(role.name(i), role[i]) for role in roles(source) for i in range(len(role))]
  added = [example for name, example in examples if not name.endswith(".png")]
  assert len(added) == 8 and {example["image"].shape for example in added} == {shape}


def test_the_config_states_how_images_are_read(folder, make_data, draw):
  def read(**fields):
    train = open_source(make_data(source=f"folder:{folder}", **fields), seed=0).train
    return train[train.labels.tolist().index(2)]["image"]

  for path in (folder / "owl").iterdir():
    pixels = np.array([[0, 2047, 4095]], np.uint16)
    Image.fromarray(pixels).save(path)
  assert read(channels=1, value_range=(0, 4095))[..., 0].tolist() == [[0, 127, 255]]
  assert read(channels=4, value_range=(0, 65535)).tolist() == [
    [[0, 0, 0, 255], [8] * 3 + [255], [16] * 3 + [255]]
  ]
  for fields, message in (
    (dict(channels=2), r"data\.channels=2 is unknown.*1, 3, 4"),
    (dict(value_range=(4095, 0)), r"data\.value_range=\(4095, 0\): black must be"),
  ):
    with pytest.raises(ConfigError, match=message):
      read(**fields)


def test_a_link_to_another_place_is_followed(folder, make_data, draw, tmp_path):
  draw(tmp_path / "more" / "x.png")
  (folder / "cat" / "more").symlink_to(tmp_path / "more", target_is_directory=True)
  source = open_source(make_data(source=f"folder:{folder}"), seed=0)
  assert any("cat/more/x.png" in names(role) for role in roles(source))


def test_fingerprint_follows_content_not_place(folder, make_data, draw, tmp_path):
  def fingerprint(path):
    return open_source(make_data(source=f"folder:{path}"), seed=0).info.fingerprint

  before = fingerprint(folder)
  copy = shutil.copytree(folder, tmp_path / "elsewhere")
  assert fingerprint(copy) == before
  (copy / "cat" / "0.png").rename(copy / "dog" / "x.png")  # another label
  relabeled = fingerprint(copy)
  image = folder / "cat" / "3.png"
  content = bytearray(image.read_bytes())
  content[-20] ^= 1  # same name, same size
  image.write_bytes(content)
  assert len({before, relabeled, fingerprint(folder)}) == 3
