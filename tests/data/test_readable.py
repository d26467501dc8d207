"""One broken file of many is named, and may be left out before anything is trained."""

import numpy as np
import pytest

from tests.data.examples import Rows, names, roles
from vitx.config.errors import ConfigError, UnreadableError
from vitx.config.settings import change
from vitx.data import in_memory
from vitx.data.batches import evaluation_batches
from vitx.data.dataset import Dataset, DatasetInfo
from vitx.data.images.resizing import ResizeImages
from vitx.data.images.settings import image_spec
from vitx.data.images.statistics import compute
from vitx.data.readable import listing_all
from vitx.data.sources import open_dataset, open_source


def truncate(path):
  path.write_bytes(path.read_bytes()[:90])


def replace_by_link(path):
  path.unlink()
  path.symlink_to("nowhere.png")


def replace_by_directory(path):
  path.unlink()
  path.symlink_to(path.parent.parent / "dog", target_is_directory=True)


BROKEN = [truncate, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"no image")]
BROKEN += [replace_by_link]


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_an_unreadable_file_is_named_or_left_out(damage, folder, make_data, caplog):
  damage(folder / "cat" / "3.png")
  data = make_data(source=f"folder:{folder}")
  with pytest.raises(ConfigError, match=r"cat/3\.png cannot be read"):
    for examples in roles(open_source(data, seed=0)):
      in_memory.keep(examples, transform=ResizeImages(8), memory="always", threads=2)
  data = change(data, {"on_unreadable": "skip"})
  source = open_source(data, seed=0)
  assert source.unreadable == ("cat/3.png",)
  assert "skipped 1 of 35 examples of 'train', which cannot be read:\n" in caplog.text
  assert f"{folder}/cat/3.png cannot be read" in caplog.text
  rest = [name for role in roles(source) for name in names(role)]
  assert len({*rest}) == 34 and "cat/3.png" not in rest
  for examples, again in zip(roles(source), roles(open_source(data, seed=0)), strict=True):
    assert names(examples) == names(again)
    in_memory.keep(examples, transform=ResizeImages(8), memory="always", threads=2)
    folders = [name.split("/")[0] for name in names(examples)]
    assert [source.info.class_names[k] for k in examples.labels] == folders


def test_every_unreadable_image_of_all_roles_is_named(folder, make_data):
  broken = sorted((folder / "cat").iterdir())
  for path, damage in zip(broken, BROKEN * 5, strict=True):
    damage(path)
  source = open_source(make_data(source=f"folder:{folder}"), seed=0)
  tested = [folder / name for name in names(source.test) if name.startswith("cat")]
  settings = dict(transform=ResizeImages(8), threads=2)
  with pytest.raises(UnreadableError) as computed, listing_all(source.all_roles(), threads=2):
    compute(source.train)
  with pytest.raises(UnreadableError) as stored, listing_all(source.all_roles(), threads=2):
    in_memory.keep(source.test, memory="always", **settings)
  with pytest.raises(UnreadableError) as evaluated:
    list(evaluation_batches(source.test, batch_size=4, **settings))
  for error, listed in ((computed, broken), (stored, broken), (evaluated, tested)):
    text = str(error.value)
    assert text.startswith(f"{len(listed)} examples cannot be read:\n")
    assert all(f"\n  {path} cannot be read" in text for path in listed)
    assert text.endswith("\n" + in_memory.SKIP)


def test_a_directory_named_like_an_image_is_ignored(folder, make_data):
  replace_by_directory(folder / "cat" / "3.png")
  source = open_source(make_data(source=f"folder:{folder}"), seed=0)
  assert not [name for name in names(source.train) if name == "cat/3.png"]


def test_losing_a_whole_class_is_refused(folder, make_data):
  data = make_data(source=f"folder:{folder}", on_unreadable="skip")
  for path in (folder / "owl").iterdir():
    truncate(path)
  with pytest.raises(
    ConfigError, match=r"leaves no example of owl in .*: 5 of 35 examples.*\n.*owl"
  ):
    open_source(data, seed=0)
  for path in folder.glob("*/*"):
    path.write_bytes(b"")
  with pytest.raises(ConfigError, match=r"leaves no example of any class in .*: 35 of 35"):
    open_source(data, seed=0)


def open_holes(data):
  rows = [{"image": np.full((2, 2, 1), i, np.uint8), "label": i % 2} for i in range(6)]
  holes = Rows(rows)
  rows[4] = ConfigError("example four is broken")
  info = DatasetInfo("holes", image_spec(1, (2, 2)), ("even", "odd"), fingerprint="abc")
  return Dataset(info, ("train", "test"), lambda split: holes)


def test_any_source_skips_but_documents_do_not(tmp_path):
  source = {"source": f"{__name__}:open_holes", "on_unreadable": "skip"}
  dataset = open_dataset(source)
  assert names(dataset.open_split("train")) == [f"example {i}" for i in (0, 1, 2, 3, 5)]
  assert list(dataset.unreadable) == ["example 4"]
  (tmp_path / "text").write_bytes(b"words")
  with pytest.raises(ConfigError, match=r"data\.on_unreadable='skip' does not work.*documents"):
    open_dataset({"source": f"bytes:{tmp_path}/text", "on_unreadable": "skip"})
