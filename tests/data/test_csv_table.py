"""The source `csv:FILE`: labels of three kinds, splits, and tables that cannot be used."""

import numpy as np
import pytest
from PIL import Image

from vitx.config.errors import ConfigError
from vitx.config.fields import default_config
from vitx.data.class_names import renumber
from vitx.data.sources import open_dataset, open_source

COUNT = 12


@pytest.fixture
def folder(tmp_path):
  for i in range(COUNT):
    level = np.full((6 + i, 9, 3), 20 * i, np.uint8)
    (tmp_path / "pictures").mkdir(exist_ok=True)
    Image.fromarray(level).save(tmp_path / "pictures" / f"{i}.png")
  return tmp_path


def write(folder, rows, head="file,label"):
  """Writes a table of images and labels; returns its path.

  A row without "/" gets the name of an image in front; any other row is a whole line.
  """
  lines = [
    row if "/" in row or not row else f"pictures/{i}.png,{row}" for i, row in enumerate(rows)
  ]
  (folder / "labels.csv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
  return folder / "labels.csv"


def data(table, **fields):
  config = default_config().data
  config.update(source=f"csv:{table}", **fields)
  return config


def test_each_image_has_a_class(folder):
  table = write(folder, [("cat", "dog", "ant")[i % 3] for i in range(COUNT)])
  source = open_source(data(table, validation=0.3), 0)
  assert source.info.class_names == ("ant", "cat", "dog")
  assert [len(source.role(name)) for name in ("train", "validation", "test")] == [6, 3, 3]
  for role in ("train", "validation", "test"):
    examples = source.role(role)
    for i in range(len(examples)):
      number = int(examples.name(i).split("/")[1].removesuffix(".png"))
      assert examples[i]["label"] == examples.labels[i] == (1, 2, 0)[number % 3]
      assert examples[i]["image"].shape == (6 + number, 9, 3)
      assert examples[i]["image"][0, 0, 0] == 20 * number


def test_classes_txt_orders_classes_and_split_gives_roles(folder):
  rows = [f"{'cat' if i % 2 else 'dog'},{('train', 'val', 'test')[i % 3]}" for i in range(COUNT)]
  table = write(folder, rows, "picture,kind,split")
  (folder / "classes.txt").write_text("dog\ncat\n")
  source = open_source(data(table), 0)
  assert source.info.class_names == ("dog", "cat") and source.info.numbered is False
  for place, role in enumerate(("train", "validation", "test")):
    examples = source.role(role)
    assert [examples.name(i) for i in range(4)] == [
      f"pictures/{i}.png" for i in range(place, COUNT, 3)
    ]


def test_a_cell_may_name_several_classes(folder):
  rows = ['""', "sun;sea", " sea | sky", "sky"]
  dataset = open_dataset(data(write(folder, rows), label_kind="classes"))
  assert dataset.info.class_names == ("sea", "sky", "sun")
  train = dataset.open_split("train")
  assert train.labels[:4].tolist() == [[0, 0, 0], [1, 0, 1], [1, 1, 0], [0, 1, 0]]
  other = renumber(dataset, ("sky", "snow", "sun", "sea")).open_split("train")
  assert other.labels[1].tolist() == [0, 0, 1, 1]
  for examples in (train, other):
    assert all((examples[i]["labels"] == labels).all() for i, labels in enumerate(examples.labels))


@pytest.mark.parametrize("separator", [" ", ", ", ",", "  "])
def test_listed_names_decide_whether_commas_and_spaces_separate_classes(folder, separator):
  cells = ["sun", f'"sun{separator}sea"', f'"sea{separator}sky"', "sky"]
  table = write(folder, [f"pictures/{i}.png,{cells[i % 4]}" for i in range(COUNT)])
  config = data(table, label_kind="classes")
  with pytest.raises(ConfigError, match=r"no cell has ';'.*'s.*classes\.txt"):
    open_dataset(config)
  (folder / "classes.txt").write_text("sun\nsea\nsky\n")
  labels = open_dataset(config).open_split("train").labels
  assert labels[:4].tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]]
  whole = [cell.strip('"') for cell in cells]
  (folder / "classes.txt").write_text("\n".join(whole))
  assert open_dataset(config).info.class_names == tuple(whole)


def test_each_class_may_have_a_column(folder):
  rows = ["0,0.0,x", "1.0,,x", "False,True,x"]
  table = write(folder, rows, "file,sun,sea,weight")
  fields = {"label_kind": "classes", "label_columns": ("sea", "sun")}
  train = open_dataset(data(table, **fields)).open_split("train")
  assert [train[i]["labels"].tolist() for i in range(3)] == [[0, 0], [0, 1], [1, 0]]


CATS = ["cat", "dog"] * 6
FORMS = (
  ("file,label", "{folder}/pictures/{i}.png,{label}"),
  ("file,label", "pictures\\{i}.png,{label}"),
  ("file,label", "pictures/{i},{label}"),
  ("file,label", 'pictures/{i}.png, "{label}"'),
  ("file;label", "pictures/{i}.png;{label}"),
  ("file\tlabel", "pictures/{i}.png\t{label}"),
  (",file,label", "7,pictures/{i}.png,{label}"),
)


@pytest.mark.parametrize(("head", "form"), FORMS)
def test_a_table_may_have_another_form(folder, head, form):
  lines = [form.format(folder=folder, i=i, label=label) for i, label in enumerate(CATS)]
  (folder / "labels.csv").write_text("\n\n".join([head, *lines]))
  dataset = open_dataset(data(folder / "labels.csv"))
  train = dataset.open_split("train")
  assert dataset.info.class_names == ("cat", "dog")
  assert [train.name(i) for i in range(COUNT)] == [f"pictures/{i}.png" for i in range(COUNT)]
  assert train.labels.tolist() == [0, 1] * 6


@pytest.mark.parametrize(("head", "columns"), [("file", None), ("file,age,sex", ())])
def test_a_table_needs_no_labels(folder, head, columns):
  lines = [f"pictures/{i}.png" + ",x" * head.count(",") for i in range(COUNT)]
  table = data(write(folder, lines, head), label_columns=columns)
  dataset, again = open_dataset(table), open_dataset(table)
  assert dataset.info == again.info and dataset.info.class_names is None
  assert set(dataset.open_split("train")[0]) == set(dataset.info.spec) == {"image"}


def test_a_column_of_groups_is_no_label_and_changes_the_fingerprint(folder):
  sets = []
  for size in (3, 4):
    rows = [f"{label},{i // size}" for i, label in enumerate(CATS)]
    sets += [open_dataset(data(write(folder, rows, "file,kind,patient"), groups="patient"))]
  assert [dataset.groups("pictures/3.png") for dataset in sets] == ["1", "0"]
  assert sets[0].info.class_names == ("cat", "dog")
  assert sets[0].info.fingerprint != sets[1].info.fingerprint


def test_each_image_may_have_a_number(folder):
  rows = [f"{i / 4},x" for i in range(COUNT)]
  table = write(folder, rows, "file,age,note")
  source = open_source(data(table, label_kind="number", label_columns=("age",)), 0)
  assert source.info.class_names is None and source.train.labels is None
  examples = source.validation
  assert len(examples) == 1
  number = int(examples.name(0).split("/")[1].removesuffix(".png"))
  assert examples[0]["target"] == number / 4 and examples[0]["target"].dtype == np.float32


def test_the_fingerprint_follows_labels_and_pixels_but_not_the_place(folder):
  rows = [("cat", "dog")[i % 2] for i in range(COUNT)]
  first = open_dataset(data(write(folder, rows))).info.fingerprint
  assert open_dataset(data(write(folder, rows[1:] + rows[:1]))).info.fingerprint != first
  (folder / "labels.csv").rename(folder / "other.csv")
  write(folder, rows)
  assert open_dataset(data(folder / "labels.csv")).info.fingerprint == first
  Image.new("RGB", (6, 9)).save(folder / "pictures" / "3.png")
  assert open_dataset(data(folder / "labels.csv")).info.fingerprint != first


BAD = (
  (["cat"] * 12, "file,label", {}, "the labels name fewer than two classes: cat"),
  ([*CATS[:4], "pictures/4.png,"], "file,label", {}, "line 6: the cell of 'label' is empty"),
  ([*CATS[:4], "pictures/x.png,cat"], "file,label", {}, "line 6: 'pictures/x.png' is no image"),
  ([*CATS[:4], "pictures/4.png"], "file,label", {}, "line 6 must have 2 cells, not 1"),
  ([*CATS[:4], "../4.png,cat"], "file,label", {}, "line 6: '../4.png' is no image"),
  ([*CATS[:4], "./pictures//1.png,cat"], "file,label", {}, "line 6: 'pictures/1.png' is in line 3"),
  ([], "file,label", {}, "fewer than two classes: none"),
  (CATS, "file,file", {}, "must name different columns"),
  (CATS, "pictures/0.png,cat", {}, "must name different columns"),
  ([*CATS[:4], "/other/1.png,cat"], "file,label", {}, "line 6: '/other/1.png' is no image file"),
  ([f"{x},1" for x in CATS], "file,label,b", {}, "columns b, label; name the one.*called 'split'"),
  (CATS, "file,label", {"label_columns": ("labl",)}, "'labl' is no column.*Did you mean 'label'"),
  ([*CATS[:4], "cat;dog", "cat|dog"], "file,label", {}, "line 6: 'cat;dog' names several.*2 of 6"),
  (CATS, "file,label", {"label_kind": "number"}, "line 2: label='cat' is no finite number"),
  (["1e39"] * 3, "file,label", {"label_kind": "number"}, "line 2: label='1e39' is no finite"),
  (["0,2"] * 3, "file,a,b", {"label_kind": "classes"}, "line 2: b='2' must be 0 or 1"),
  (["cat,train", "dog,"], "file,label,split", {}, "line 3: the cell of 'split' is empty"),
  (["cat,train", "dog,test"], "file,label,split", {}, "'train' has no images of dog"),
  (["cat,a", "dog,b"], "file,label,split", {"splits": {"train": "a"}}, "'a' has no images of dog"),
)


@pytest.mark.parametrize(("rows", "head", "fields", "message"), BAD)
def test_an_unsuitable_table_is_refused_with_the_line(folder, rows, head, fields, message):
  config = data(write(folder, rows, head), **fields)
  with pytest.raises(ConfigError, match=message):
    open_dataset(config)


def test_every_line_is_named(folder):
  rows = ["cat", "pictures/a.png,cat", "pictures/b.png,dog", "dog"]
  with pytest.raises(ConfigError, match=r"2 examples.*\n.*line 3.*\n.*line 4"):
    open_dataset(data(write(folder, rows)))


def test_a_file_of_another_kind_is_refused(folder):
  with pytest.raises(ConfigError, match="cannot be read as a table"):
    open_dataset(data(folder / "none.csv"))
  (folder / "labels.csv").write_bytes(b"\xff\xfe\x00")
  with pytest.raises(ConfigError, match="cannot be read as a table"):
    open_dataset(data(folder / "labels.csv"))
