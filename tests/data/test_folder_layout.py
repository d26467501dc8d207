"""The directories of a folder: splits, classes, and those that are neither."""

import pytest

from vitx.config.errors import ConfigError
from vitx.data.sources import open_dataset, open_source
from vitx.data.split_names import find_role


@pytest.fixture
def make(tmp_path):
  """Returns a function that writes files at the given paths; no test decodes their content."""

  def write(*paths):
    for path in paths:
      (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / path).write_bytes(path.encode())
    return tmp_path

  return write


def files(directory, classes, count=4):
  return [f"{directory}/{name}/{i}.png" for name in classes for i in range(count)]


def find(root, **splits):
  data = {"source": f"folder:{root}", "splits": splits}
  source = open_source(data, 0)
  names = {
    role: {source.role(role).name(i).split("/")[0] for i in range(len(source.role(role)))}
    for role in ("train", "validation", "test")
  }
  return source.info.class_names, names


CLASSES = ("cat", "dog")
PAIRS = [("Train", "Val"), ("01-training", "02-holdout"), ("train images", "evaluation images")]


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_a_split_is_known_by_its_name(pair, make):
  train, test = pair
  root = make(*files(train, CLASSES), *files(test, CLASSES, 2))
  class_names, roles = find(root)
  assert class_names == CLASSES
  assert roles == {"train": {train}, "validation": {train}, "test": {test}}


def test_several_splits_of_one_role_are_refused(make):
  root = make(*(p for name in ("train2014", "train2017", "Val") for p in files(name, CLASSES)))
  with pytest.raises(ConfigError, match=r"data\.splits\.train is not set.*train2014 and train2017"):
    find(root)
  assert find(root, train="train2014")[1]["train"] == {"train2014"}
  assert find(root, train="train2014+train2017")[1]["train"] == {"train2014", "train2017"}


SHAPES = {
  "sites": ("hospital_a", "hospital_b"),
  "folds": ("fold1", "fold2", "fold3"),
  "parts": ("A", "B", "C"),
  "years": ("2019", "2020"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_splits_without_a_role_are_never_trained_on(kind, make):
  names = SHAPES[kind]
  root = make(*(path for name in names for path in files(name, CLASSES)))
  with pytest.raises(ConfigError, match=rf"{names[0]}, .* equal names.*data\.splits\.train=cat"):
    find(root)
  class_names, roles = find(root, train=names[0], test=names[1])
  assert class_names == CLASSES
  assert roles == {"train": {names[0]}, "validation": {names[0]}, "test": {names[1]}}
  dataset = open_dataset({"source": f"folder:{root}"})  # `vitx evaluate` needs no roles
  assert dataset.info.class_names == CLASSES and dataset.splits == names


def test_splits_of_different_classes_are_refused(make):
  root = make(*files("a", ("cat", "dog", "owl")), *files("b", CLASSES))
  with pytest.raises(ConfigError, match=r"have different classes.*owl"):
    find(root)


def test_folds_are_joined(make):
  root = make(*(path for i in (1, 2, 3) for path in files(f"fold{i}", CLASSES)))
  _, roles = find(root, train="fold1 + fold3", validation="fold2")
  assert roles["train"] == {"fold1", "fold3"} and roles["validation"] == {"fold2"}
  for splits, message in (
    (dict(train="fold1+fold2", validation="fold2"), "shares examples"),
    (dict(train="fold1+fold1"), "not a sum of different splits"),
    (dict(train="fold1[:50%]"), "not a sum of different splits"),
  ):
    with pytest.raises(ConfigError, match=message):
      find(root, **splits)


def test_each_class_may_have_a_directory_per_split(make):
  root = make(*(p for name in CLASSES for p in files(name, ("Train", "Test", "masks"))))
  source = open_source({"source": f"folder:{root}"}, 0)
  assert source.info.class_names == CLASSES and len(source.test) == 8
  assert {source.test.name(i).split("/")[1] for i in range(8)} == {"Test"}
  assert len(source.train) + len(source.validation) == 8


def test_directories_inside_a_class_need_not_be_splits(make):
  """Each class has one directory, like Tiny ImageNet's `images`, or directories of its own."""
  assert find(make(*(p for name in CLASSES for p in files(f"a/{name}", ("images",)))) / "a")[0]
  nested = [*files("b/cat", ("siamese", "persian", "other")), *files("b/dog", ("pug", "poodle"))]
  assert find(make(*nested, *files("b/dog", ("other",))) / "b")[0] == CLASSES


def grid(outer, inner):
  return [path for name in outer.split() for path in files(name, inner.split())]


AMBIGUOUS = [
  (
    grid("bus car train", "2019 2020"),
    "split or, like bus, car, a class",
    {"train": 8, "2019": 12},
  ),
  ([*grid("bus car", "."), *grid("train", "2019 2020")], "split or, like bus, car", {"train": 8}),
  (
    grid("cat dog", "images masks"),
    "are classes, name.*classes.txt",
    {"images": 8, "images+masks": 16},
  ),
  (grid("cat dog", ". masks"), "have images and .* equal names, masks", {".": 8, "train": 16}),
  (grid("train tset", "cat dog"), "like tset, a class. Did you mean 'test'", {"train": 8}),
  (grid("Train/a Train/b Dev/a Dev/b", "images x"), "=Train/images to", {"Train/images": 16}),
  (["classes.txt", *grid("cat dog", "x y z")], "equal names, x, y, z", {"x": 8, "train": 24}),
]


@pytest.mark.parametrize(("paths", "message", "splits"), AMBIGUOUS)
def test_ambiguous_directories_are_refused_until_a_split_is_named(paths, message, splits, make):
  root = make(*paths)
  if "classes.txt" in paths:
    (root / "classes.txt").write_text("cat\ndog\n")
  with pytest.raises(ConfigError, match=message):
    find(root)
  for train, count in splits.items():
    source = open_source({"source": f"folder:{root}", "splits": {"train": train}}, 0)
    assert sum(map(len, (source.train, source.validation, source.test))) == count
  dataset = open_dataset({"source": f"folder:{root}"})
  if "train" in map(find_role, dataset.splits):  # an existing run goes on with its data
    assert open_source({"source": f"folder:{root}"}, 0, dataset.info.class_names).train


def test_classes_txt_turns_directories_into_classes(make):
  root = make(*(p for name in CLASSES for p in files(name, ("day", "night"))), "notes/0.txt")
  (root / "classes.txt").write_text("dog\ncat\n")
  source = open_source({"source": f"folder:{root}", "splits": {"train": "train"}}, 0)
  assert source.info.class_names == ("dog", "cat") and source.info.numbered
  assert len(source.train) + len(source.validation) + len(source.test) == 16
  for name in CLASSES:  # a directory for each split in each class is still a split
    make(*files(name, ("train", "val")))
  assert set(open_dataset({"source": f"folder:{root}"}).splits) == {"train", "val"}


def test_one_line_names_all_that_is_not_read(make, caplog):
  splits = [p for name in ("train", "test", "trian") for p in files(name, CLASSES)]
  root = make(*splits, "val/0.png", "0.png", "train/cat/a.txt", "xml/cat/a", "backup/old/0.png")
  assert find(root)[1] == {"train": {"train"}, "validation": {"train"}, "test": {"test"}}
  (record,) = caplog.records
  message, *others = record.getMessage().split("; ")
  assert message.endswith(
    "skipped 1 splits that no role reads: trian (8 examples) Did you mean 'train'?"
  )
  assert others[:3] == [
    "1 splits without labels: val",
    "2 directories that are neither splits nor classes: backup (1 images), xml (0 images)",
    "1 images outside of the class directories: 0.png",
  ]
  assert others[3].endswith(": train/cat/a.txt") and len(others) == 4


def test_splits_without_classes_are_refused(make):
  root = make("train/0.png", "train/1.png", "Test/0.png")
  with pytest.raises(
    ConfigError, match=r"Test, train are the names of splits.*such as folder:.*/train\."
  ):
    find(root)
  vehicles = make(*files("vehicles", ("car", "train", "bus"))) / "vehicles"
  assert find(vehicles)[0] == ("bus", "car", "train")


LEFTOVERS = [
  "__MACOSX/cat/._0.png",
  "__macosx/pictures/0.png",
  ".ipynb_checkpoints/0-checkpoint.png",
  "@eaDir/0.png/SYNOPHOTO_THUMB.png",
  "cat/@eaDir/0.png/SYNOPHOTO_THUMB.png",
  "dog/__pycache__/0.png",
]


@pytest.mark.parametrize("splits", [False, True])
def test_leftovers_are_ignored(splits, make):
  where = "Train/" if splits else ""
  clean = make(*files(f"{where}.", CLASSES), *(files("Test", CLASSES) if splits else ()))
  before = open_dataset({"source": f"folder:{clean}"})
  make(*LEFTOVERS, *(where + path for path in LEFTOVERS))
  after = open_dataset({"source": f"folder:{clean}"})
  assert after.info == before.info and after.splits == before.splits


@pytest.mark.parametrize(
  "run",
  [
    ["run/config.json", "run/checkpoints/4/state/x", "run/log.txt"],
    ["runs/a/log.txt", "runs/a/checkpoints/.keep"],  # a run that was killed as it began
    ["runs/sweep/a_0/config.json", "runs/sweep/a_0/checkpoints/4/x", "runs/sweep/table.md"],
    ["runs/p/phases.json", "runs/p/one/config.json", "runs/p/one/checkpoints/1/x"],
    ["cat/run/config.json", "cat/run/checkpoints/4/x", "cat/run/figures/attention.png"],
  ],
  ids=lambda paths: paths[0],
)
def test_workdirs_in_the_folder_are_ignored(run, make, monkeypatch):
  monkeypatch.chdir(make(*files(".", CLASSES)))
  before = open_dataset({"source": "folder:."})
  make(*run)
  assert open_dataset({"source": "folder:."}).info == before.info
  assert before.info.class_names == CLASSES


def test_the_inner_folder_is_suggested(make):
  root = make(*files("archive/Training", CLASSES))
  with pytest.raises(
    ConfigError, match=rf"fewer than two classes: .*Did you mean folder:{root}/archive\?"
  ):
    find(root)
  with pytest.raises(ConfigError, match=r"data\.source='folder:' does not name a directory"):
    open_dataset({"source": "folder:"})
