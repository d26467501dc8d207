"""Classes are matched by name wherever two lists of classes meet."""

import unicodedata

import numpy as np
import pytest

from tests.data.examples import Rows, names, roles
from vitx.config.errors import ConfigError
from vitx.data import class_names
from vitx.data.class_names import find_in_weights, imagenet_labels, match_classes
from vitx.data.dataset import Dataset, DatasetInfo
from vitx.data.sources import open_dataset, open_source

CAFE = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")
IDS = tuple(imagenet_labels())


def info(names, *, numbered=False):
  return DatasetInfo("mine", {}, tuple(names), numbered=numbered)


@pytest.fixture
def make(tmp_path):
  def write(*names, folder="pets", count=3):
    for name in names:
      (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
      for i in range(count):
        (tmp_path / folder / name / f"{i}.png").write_bytes(name.encode())
    return tmp_path / folder

  return write


@pytest.mark.parametrize(
  ("ordered", "numbered"),
  [
    (tuple(map(str, range(12))), True),
    (tuple(f"{i:02}" for i in range(12)), True),
    (tuple(f"class_{i}" for i in range(1, 13)), True),
    (tuple(f"{i}.x" for i in (2, 3, 10)), False),
    (("bird", "cat10", "cat9"), False),
    (("0", "01", "1"), False),
  ],
)
def test_numbered_folders_are_in_natural_order(ordered, numbered, make):
  folder = make(*ordered)
  dataset = open_dataset({"source": f"folder:{folder}"})
  assert dataset.info.class_names == ordered and dataset.info.numbered == numbered
  train = dataset.open_split("train")
  for i in range(len(train)):
    assert ordered[train.labels[i]] == train.name(i).split("/")[0]


def test_the_classes_of_imagenet_are_numbered():
  assert len(IDS) == 1000 and tuple(sorted(IDS)) == IDS and class_names.are_numbered(IDS)
  assert not class_names.are_numbered(IDS[:10])


@pytest.mark.parametrize(
  ("names", "others", "places"),
  [
    (("b", "a"), ("a", "b", "c"), (1, 0)),  # another order, a part
    (("3", "07"), tuple(map(str, range(12))), (3, 7)),
    (CAFE[:1], ("x", CAFE[1]), (1,)),
    (CAFE[1:], ("x", CAFE[0]), (1,)),
    ((IDS[7], IDS[3]), tuple(map(str, range(1000))), (7, 3)),  # weights without names
    (("7", "3"), IDS, None),
    (tuple(map(str, range(1000))), IDS[::-1], tuple(range(999, -1, -1))),  # as in ImageNetV2
    (("0", "1", "2"), ("cat", "dog", "owl"), None),  # as many other classes
    (("cat", "dog", "owl"), ("0", "1", "2"), None),
    (("a", "z"), ("a", "b"), None),
    (("a", "b"), ("0", "1"), None),  # the order of their names says nothing
    (("1", "2"), ("a", "b"), None),
    (("A", "b"), ("a", "b"), None),
  ],
)
def test_classes_are_matched_by_name(names, others, places):
  matched = match_classes(info(names), others)
  assert (None if matched is None else tuple(matched)) == places


def test_numbers_match_classes_that_the_set_numbers():
  named, numbered = info(("cat", "dog")), info(("cat", "dog"), numbered=True)
  assert match_classes(numbered, ("0", "1"), unnamed=True).tolist() == [0, 1]
  assert match_classes(numbered, ("0", "1")) is None  # where they are names, as of digits
  assert match_classes(numbered, ("0", "1", "2"), unnamed=True) is None
  assert match_classes(named, ("0", "1"), unnamed=True) is None


def test_classes_of_a_file_are_matched(tmp_path):
  """A file of weights states only the number of its classes."""
  source = str(tmp_path / "weights.pth")
  (tmp_path / "weights.pth").touch()
  assert find_in_weights(info(("a", "b"), numbered=True), source, None, 2).tolist() == [0, 1]
  reason = find_in_weights(info(("a", "b")), source, None, 2)
  assert "does not name its classes" in reason and "classes.txt" in reason
  assert find_in_weights(info(IDS[5:3:-1]), source, None, 1000).tolist() == [5, 4]
  (tmp_path / "classes.txt").write_text("b\na\n")
  assert find_in_weights(info(("a", "b")), source, None, 2).tolist() == [1, 0]
  assert "other classes" in find_in_weights(info(("a", "z")), source, None, 2)
  with pytest.raises(ConfigError, match=r"classes\.txt names 2 classes.*has 3"):
    find_in_weights(info(("a", "b")), source, None, 3)


LISTS = {
  "plain": "dog\ncat\n",
  "with a mark and blank lines": "\ufeffdog\r\n\r\n  cat  \r\n",
}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_classes_txt_gives_the_order(text, make):
  folder = make("cat", "dog")
  before = open_source({"source": f"folder:{folder}"}, 0)
  (folder / "classes.txt").write_text(text, newline="")
  after = open_source({"source": f"folder:{folder}"}, 0)
  assert before.info.class_names == ("cat", "dog") and not before.info.numbered
  assert after.info.class_names == ("dog", "cat") and after.info.numbered
  assert after.info.fingerprint == before.info.fingerprint
  for one, two in zip(roles(before), roles(after), strict=True):
    assert names(one) == names(two)
    np.testing.assert_array_equal(1 - one.labels, two.labels)


def test_words_after_wordnet_ids_are_comments(make):
  folder = make("n01440764", "n02102040")
  (folder / "classes.txt").write_text("n02102040 English springer\nn01440764 tench, Tinca tinca\n")
  names = open_dataset({"source": f"folder:{folder}"}).info.class_names
  assert names == ("n02102040", "n01440764")


def test_classes_txt_may_name_absent_classes(make):
  folder = make("cat", "dog")
  (folder / "classes.txt").write_text("ant\ncat\ndog\n")
  dataset = open_dataset({"source": f"folder:{folder}"})
  assert dataset.info.class_names == ("ant", "cat", "dog")
  assert set(dataset.open_split("train").labels) == {1, 2}


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("cat\n", "does not list the classes dog"),
    ("cat\ndog\ncat\n", "names 'cat' twice"),
    ("\n", "names no class"),
  ],
)
def test_an_unsuitable_classes_txt_is_refused(text, message, make):
  folder = make("cat", "dog")
  (folder / "classes.txt").write_text(text)
  with pytest.raises(ConfigError, match=message):
    open_dataset({"source": f"folder:{folder}"})
  (folder / "classes.txt").write_bytes(b"\xff\xfe\x00")
  with pytest.raises(ConfigError, match=r"classes\.txt cannot be read as a list of classes"):
    open_dataset({"source": f"folder:{folder}"})


def test_a_list_of_other_names_is_ignored(make):
  folder = make("cat", "dog")
  (folder / "classes.txt").write_text("1 001.Black_footed_Albatross\n")
  dataset = open_dataset({"source": f"folder:{folder}"})
  assert dataset.info.class_names == ("cat", "dog")
  assert dataset.unread["lists of other classes"] == ["classes.txt"]


def test_both_encodings_of_accents_are_one_name(make):
  make(CAFE[0], "bar", folder="all/train")
  folder = make(CAFE[1], "bar", folder="all/test").parent
  source = open_source({"source": f"folder:{folder}"}, 0)
  assert source.info.class_names == ("bar", CAFE[0])
  assert set(source.test.labels) == {0, 1}
  both = open_dataset({"source": f"folder:{make(*CAFE, 'bar', folder='both')}"})
  assert both.info.class_names == ("bar", CAFE[0])
  assert np.bincount(both.open_split("train").labels).tolist() == [3, 6]


# Runs of commit 42b6bff recorded these fingerprints.
FINGERPRINTS = {
  "numbers": "58e3d5702f73bc1b771fb06c4742020d",
  "splits": "b459a2b345e07452804bc047e2a38039",
  "accents": "8a2040eaa3673735c70e9aa7805ad7a5",
  "named": "5ad80d6d4d468d4e61c2a07037e1f3d6",
}


def test_fingerprints_equal_those_of_earlier_runs(tmp_path):
  def fill(base, names, count):
    for name in names:
      for i in range(count):
        path = tmp_path / base / name / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{base} {name} {i}".encode())

  fill("numbers", map(str, range(12)), 2)
  fill("splits/train", ("dog", "cat"), 2)
  fill("splits/val", ("dog", "cat"), 2)
  fill("splits/more", ("dog", "cat"), 1)
  fill("accents", (CAFE[1], "bar"), 2)
  for name, count in (("fit", 2), ("other", 1), ("checked", 1)):
    fill(f"named/{name}", ("a", "b"), count)
  splits = {"named": {"train": "fit", "test": "checked"}}
  for name, before in FINGERPRINTS.items():
    data = {"source": f"folder:{tmp_path / name}", "splits": splits.get(name, {})}
    assert open_dataset(data).info.fingerprint == before, name


def test_a_run_keeps_its_order_and_its_examples(make):
  folder = make(*map(str, range(12)), count=10)
  before = tuple(sorted(map(str, range(12))))  # older runs numbered their classes in this order
  now = open_source({"source": f"folder:{folder}"}, 0)
  older = open_source({"source": f"folder:{folder}"}, 0, before)
  assert older.info.class_names == before != now.info.class_names
  assert older.info.fingerprint == now.info.fingerprint
  for one, two in zip(roles(older), roles(now), strict=True):
    assert names(one) == names(two)
    for i, name in enumerate(names(one)):
      assert before[one.labels[i]] == name.split("/")[0] == now.info.class_names[two.labels[i]]
  other = open_source({"source": f"folder:{folder}"}, 0, tuple("abcdefghijkl"))
  assert other.info.class_names == now.info.class_names  # the recorded classes are of other data


def test_examples_are_renumbered():
  rows = Rows([{"label": np.int32(k)} for k in (0, 2, 1)])
  dataset = Dataset(info(("a", "b", "c")), ("train",), lambda split: rows)
  renamed = class_names.renumber(dataset, ("c", "d", "b", "a"))
  examples = renamed.open_split("train")
  assert renamed.info.class_names == ("c", "d", "b", "a")
  assert examples.labels.tolist() == [3, 0, 2] and examples.labels.dtype == np.int32
  assert [examples[i]["label"].tolist() for i in range(3)] == [3, 0, 2]
  assert class_names.renumber(dataset, ("a", "b")) is None


@pytest.mark.parametrize("names", [("a", "a"), ("a", ""), ("a", 3), ("a", " ")])
def test_equal_or_empty_names_are_refused(names):
  with pytest.raises(ConfigError, match=r"class_names=.* must be different"):
    DatasetInfo("mine", {}, names)


def test_names_fit_the_lines_of_a_list(tmp_path):
  path = tmp_path / "classes.txt"
  for lines in (["a b", "é"], ["a\nb"], [" a"], ["b\x85"], ["c", ""], ["n01440764 tench"]):
    path.write_text("".join(f"{name}\n" for name in lines), encoding="utf-8")
    is_read = class_names.read_names(path) == tuple(lines)
    assert class_names.fit_lines(lines) == is_read, lines
