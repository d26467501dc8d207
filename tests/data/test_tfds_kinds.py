"""TFDS sets of images without labels and of texts are read; sets of other kinds are refused."""

from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data.examples import join, roles
from vitx.config.errors import ConfigError
from vitx.data.builders.digits.digits_dataset_builder import _png
from vitx.data.dataset import ArraySpec, check_arrays
from vitx.data.documents import Documents
from vitx.data.sources import open_dataset, open_source
from vitx.data.sources.tfds import _describe as describe
from vitx.data.sources.tfds_records import Content, find_content

features = tfds.features
IMAGE = features.Image(shape=(4, 4, 3), encoding_format="png")
LABEL = features.ClassLabel(num_classes=2)


class Small(tfds.core.GeneratorBasedBuilder):
  """A set whose subclasses list its examples."""

  VERSION = tfds.core.Version("1.0.0")
  KINDS: ClassVar[dict] = {}
  SPLITS: ClassVar[dict] = {}
  SUPERVISED: ClassVar[tuple | None] = None

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      features=features.FeaturesDict(self.KINDS),
      supervised_keys=self.SUPERVISED,
    )

  def _split_generators(self, dl_manager):
    return {split: self._generate_examples(examples) for split, examples in self.SPLITS.items()}

  def _generate_examples(self, examples):
    yield from enumerate(examples)


def pictures(count, shift):
  return [{"image": _png(np.full((4, 4), shift + i, np.uint8)), "id": i} for i in range(count)]


class SmallImages(Small):
  """A set like downsampled_imagenet, whose splits train and validation have only images."""

  KINDS: ClassVar[dict] = {"image": IMAGE, "id": features.Scalar(np.int64)}
  SPLITS: ClassVar[dict] = {"train": pictures(20, 0), "validation": pictures(6, 100)}


class SmallText(Small):
  """A set like tiny_shakespeare, in which each split is one text."""

  KINDS: ClassVar[dict] = {"text": features.Text()}
  SPLITS: ClassVar[dict] = {
    "train": [{"text": "All the world's a stage, and all the men and women merely players."}],
    "validation": [{"text": "They have their exits é"}],
    "test": [{"text": "and their entrances"}],
  }


class SmallReviews(Small):
  """A set like imdb_reviews, which has many texts with a label."""

  KINDS: ClassVar[dict] = {"text": features.Text(), "label": LABEL}
  SPLITS: ClassVar[dict] = {
    "train": [{"text": "good " * (i + 1), "label": i % 2} for i in range(9)]
  }
  SUPERVISED = ("text", "label")


class SmallGaps(Small):
  """A set with the labels of some images only."""

  KINDS: ClassVar[dict] = {"image": IMAGE, "id": features.Scalar(np.int64), "label": LABEL}
  SPLITS: ClassVar[dict] = {
    "train": [{**item, "label": (-1, 0, 1, 0, 1, 0)[item["id"] % 6]} for item in pictures(20, 0)],
    "test": [{**item, "label": -1} for item in pictures(5, 100)],
  }
  SUPERVISED = ("image", "label")


BUILDERS = (SmallImages, SmallText, SmallReviews, SmallGaps)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  directory = tmp_path_factory.mktemp("kinds")
  for builder in BUILDERS:
    builder(data_dir=str(directory), file_format="array_record").download_and_prepare()
  return str(directory)


def test_images_may_have_no_labels(directory, make_data):
  source = open_source(make_data(source="small_images", data_dir=directory), seed=0)
  with pytest.raises(ConfigError, match="Did you mean 'small_images'"):
    open_source(make_data(source="small_imags", data_dir=directory), seed=0)
  assert source.info.class_names is None and source.info.vocabulary is None
  assert source.info.spec == {"image": ArraySpec((4, 4, 3), "uint8")}
  assert list(map(len, roles(source))) == [18, 2, 6]
  assert source.test.name(3) == "validation#3"  # the feature "id" is no text
  seen = []
  for role in roles(source):
    assert role.labels is None
    for i in range(len(role)):
      assert set(role[i]) == {"image"} and role[i]["image"].shape == (4, 4, 3)
      seen.append(int(role[i]["image"][0, 0, 0]))
  assert sorted(seen) == [*range(20), *range(100, 106)] and min(seen[20:]) >= 100


def test_an_image_without_its_label_is_refused_or_left_out(directory, make_data):
  data = make_data(source="small_gaps", data_dir=directory)
  dataset = open_dataset(data)
  assert (dataset.splits, dataset.unlabeled) == (("train",), ("test",))
  with pytest.raises(ConfigError, match=r"'test'.*has no labels"):
    open_source({**data, "splits": {"test": "test"}}, seed=0)
  train = dataset.open_split("train")
  assert train.labels[0] == -1 < train.labels[1]
  with pytest.raises(ConfigError, match=r"example train#0 has no label"):
    train[0]
  source = open_source({**data, "on_unreadable": "skip"}, seed=0)
  assert sum(map(len, roles(source))) == 16 and len(source.unreadable) == 4


def test_each_split_of_a_text_is_a_document(directory, make_data):
  source = open_source(make_data(source="small_text", data_dir=directory), seed=0)
  assert source.info.spec["tokens"] == ArraySpec((None,), "uint8")
  assert (source.info.vocabulary, source.info.class_names) == (256, None)
  assert join(source.train).startswith("All the world") and source.train.labels is None
  assert join(source.validation) == "They have their exits é"
  assert source.validation.lengths.tolist() == [24]  # bytes, of which é has two
  assert join(source.test) == "and their entrances" and source.test.name(0) == "test#0"


def test_many_texts_are_many_documents(directory, make_data):
  source = open_source(make_data(source="small_reviews", data_dir=directory), seed=0)
  whole = open_dataset(make_data(source="small_reviews", data_dir=directory)).open_split("train")
  assert isinstance(whole, Documents) and sorted(whole.lengths) == [5 * i for i in range(1, 10)]
  assert [len(whole[i]["tokens"]) for i in range(9)] == whole.lengths.tolist()
  assert join(source.train) + join(source.validation) + join(source.test) == join(whole)
  assert source.test.lengths.sum() == 45 and source.test[0]["tokens"].dtype == np.uint8


def info(kinds, supervised=None):
  class Info:
    features = tfds.features.FeaturesDict(kinds)
    supervised_keys = supervised

  return Info()


TEXT = features.Text()


BIRD = {"image": IMAGE, "kind": LABEL, "sex": LABEL}


@pytest.mark.parametrize(
  ("kinds", "supervised", "columns", "content"),
  [
    ({"image": IMAGE, "label": LABEL, "file_name": TEXT}, None, None, Content("image", "label")),
    ({"a": IMAGE, "b": IMAGE, "x": LABEL, "y": LABEL}, ("b", "y"), None, Content("b", "y")),
    ({"image": IMAGE, "id": TEXT}, None, None, Content("image")),
    (BIRD, None, None, Content("image")),
    (BIRD, None, ("sex",), Content("image", "sex")),
    (BIRD, ("image", "kind"), ("sex",), Content("image", "sex")),
    (BIRD, ("image", "kind"), (), Content("image")),
    ({"text": TEXT}, ("text", "text"), None, Content(text="text")),
    ({"title": TEXT}, None, None, Content(text="title")),
    ({"title": TEXT, "text": TEXT}, None, None, Content(text="text")),
    ({"title": TEXT, "text": TEXT}, ("title", "text"), None, Content(text="title")),
    ({"line": TEXT, "label": LABEL}, None, None, Content(text="line")),
  ],
)
def test_the_content_of_a_set_is_chosen(kinds, supervised, columns, content):
  assert find_content(info(kinds, supervised), "name", columns) == content


@pytest.mark.parametrize("kinds", [BIRD, {"image": IMAGE, "kind": features.Scalar(np.int64)}])
def test_a_set_that_leaves_its_label_open_names_its_features(kinds):
  described = describe(kinds, "name", find_content(info(kinds), "name"), 3)
  with pytest.raises(ConfigError, match=r"no array 'label'.*data\.label_columns.*kind \((C|S)"):
    check_arrays(described, {"label": ("integer", 0)}, "classification")


@pytest.mark.parametrize(
  "kinds",
  [
    {"image": IMAGE, "mask": IMAGE},
    {"question": TEXT, "answer": TEXT},
    {"audio": features.Tensor(shape=(None,), dtype=np.float32), "text": TEXT},
  ],
)
def test_sets_of_other_features_are_refused(kinds):
  with pytest.raises(ConfigError, match=r"data\.source='name' is neither .* texts.* features are"):
    find_content(info(kinds), "name")
