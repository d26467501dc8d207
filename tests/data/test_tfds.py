import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from tests.data.examples import roles
from vitx.config.errors import ConfigError
from vitx.config.settings import change
from vitx.data.builders import BUILDERS
from vitx.data.builders.digits.digits_dataset_builder import Digits, _png
from vitx.data.dataset import ArraySpec
from vitx.data.sources import open_source, tfds_dir

DIGITS = BUILDERS["digits"]


class TinyShapes(tfds.core.GeneratorBasedBuilder):
  """A set like ImageNet: the labels of test are -1, and the sizes of images vary."""

  VERSION = tfds.core.Version("2.0.0")

  def _info(self):
    features = {
      "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
      "label": tfds.features.ClassLabel(names=["square", "wide"]),
      "file_name": tfds.features.Text(),
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {
      "train": self._generate_examples(40, True),
      "validation": self._generate_examples(10, True),
      "test": self._generate_examples(8, False),
    }

  def _generate_examples(self, count, labeled):
    for i in range(count):
      pixels = np.full((6, 6 + 3 * (i % 2)), i, np.uint8)
      label = i % 2 if labeled else -1
      yield i, {"image": _png(pixels), "label": label, "file_name": f"{i}.png"}


@pytest.fixture(scope="module")
def shapes_dir(tmp_path_factory):
  directory = tmp_path_factory.mktemp("shapes")
  TinyShapes(data_dir=str(directory), file_format="array_record").download_and_prepare()
  return directory


def test_digits_agree_with_scikit_learn(data_dir, make_data):
  source = open_source(make_data(data_dir=str(data_dir)), seed=0)
  assert len(source.info.class_names) == 10
  assert source.info.spec["image"] == ArraySpec((8, 8, 1), "uint8")
  assert (len(source.train) + len(source.validation), len(source.test)) == (1438, 359)
  scans, seen = load_digits(), []
  for role in roles(source):
    for i in range(len(role)):
      index = int(role.name(i).removeprefix("digits_"))
      seen.append(index)
      assert role[i]["label"] == role.labels[i] == scans.target[index]
      assert (index % 5 == 4) == (role is source.test)
      np.testing.assert_array_equal(
        role[i]["image"][..., 0], (scans.images[index] * 255 / 16).round().astype(np.uint8)
      )
  assert sorted(seen) == list(range(1797))


def test_digits_prepare_themselves_at_first_use(tmp_path, make_data, monkeypatch, capfd):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  for fields in ({"source": "digits:1.0.0"}, {}, {"data_dir": str(tmp_path / "own")}):
    source = open_source(make_data(**fields), seed=0)
    assert len(source.test) == 359 and os.listdir(tmp_path) == ["cache"]
    assert os.listdir(tmp_path / "cache" / "vitx" / "tfds" / "digits") == ["1.0.0"]
  output, errors = capfd.readouterr()  # TFDS would print of a download and show progress bars
  assert not output and "Generating" not in errors and "examples/s" not in errors


READ_AND_PREPARE = """
import sys
from vitx.config.fields import DataSettings
from vitx.data import batches, sources
from vitx.data.images import statistics
from vitx.data.images.resizing import ResizeImages

data = DataSettings(data_dir=sys.argv[1], memory="never")
source = sources.open_source(data, 0)
statistics.statistics(data, source.info, source.train)
made = batches.TrainBatches(source.train, data, transform=ResizeImages(8), batch_size=8, seed=0)
next(made.iterate(0, 1))
bad = {"tensorflow", "cv2"} & set(sys.modules)
assert not bad, bad
assert len(sources.open_source({"data_dir": sys.argv[2]}, 0).test) == 359
"""


@pytest.mark.slow  # a whole process, with an import
def test_reading_and_preparing_import_no_tensorflow(tmp_path, data_dir):
  # A stand-in that can be imported, so that the test means something where TensorFlow is absent.
  (tmp_path / "tensorflow").mkdir()
  (tmp_path / "tensorflow/__init__.py").write_text("raise SystemExit('TensorFlow was imported')")
  places = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
  places["XDG_CACHE_HOME"] = str(tmp_path / "cache")
  command = [sys.executable, "-c", READ_AND_PREPARE, str(data_dir), str(tmp_path / "none")]
  process = subprocess.run(command, env=os.environ | places, capture_output=True, text=True)
  assert process.returncode == 0, process.stderr
  assert "OpenCV" not in process.stderr


def test_a_second_process_uses_the_digits_of_the_first(tmp_path, monkeypatch):
  generators, others = Digits._split_generators, []

  def overtaken(self, dl_manager):
    if not others:
      others.append(None)
      others.append(DIGITS.prepare(tmp_path))  # ends before this one renames its directory
    return generators(self, dl_manager)

  monkeypatch.setattr(Digits, "_split_generators", overtaken)
  assert DIGITS.prepare(tmp_path) == others[1]
  assert os.listdir(tmp_path / "digits") == ["1.0.0"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, make_data, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  with pytest.raises(ConfigError, match=r"'digits' cannot be prepared in .* XDG_CACHE_HOME"):
    open_source(make_data(data_dir=str(tmp_path / "none")), seed=0)


def test_a_set_without_builder_code_opens_from_its_directory(shapes_dir, make_data):
  source = open_source(make_data(source="tiny_shapes", data_dir=str(shapes_dir)), seed=0)
  assert source.info.class_names == ("square", "wide")
  assert source.info.spec["image"].shape == (None, None, 3)
  assert source.test.name(0).endswith(".png")
  for i in range(len(source.test)):
    number = int(source.test.name(i).removesuffix(".png"))
    assert source.test[i]["image"].shape == (6, 6 + 3 * (number % 2), 3)
    assert (source.test[i]["image"] == number).all() and source.test[i]["label"] == number % 2


def test_splits_may_be_sliced_and_joined(shapes_dir, make_data):
  splits = dict(train="train[:50%]", validation="train[50%:75%]", test="train[75%:]+validation")
  data = make_data(source="tiny_shapes", data_dir=str(shapes_dir), splits=splits)
  source = open_source(data, seed=0)
  assert list(map(len, roles(source))) == [20, 10, 20]
  data = change(data, {"splits.validation": "train[40%:60%]"})
  with pytest.raises(
    ConfigError, match=r"data\.splits\.validation='train\[40%:60%\]' shares examples"
  ):
    open_source(data, seed=0)


@pytest.mark.parametrize(
  ("text", "names"),
  [
    ('{"pythonClassName": "a.B", "x": [{"python_class_name": "c.D"}]}', {"a.B", "c.D"}),
    ('{"type": "a.B", "content": {"type": {"type": "c.D"}}}', {"a.B", "c.D"}),
    (json.dumps({"jsonFeature": {"json": json.dumps({"x": {"type": "a.B"}})}}), {"a.B"}),
    (json.dumps({"content": json.dumps({"json": json.dumps([{"type": "a.B"}])})}), {"a.B"}),
    ('{"description": "type a.B", "dtype": "uint8", "type": null}', set()),
  ],
)
def test_no_named_class_is_overlooked(text, names):
  assert set(tfds_dir.names_of_classes(json.loads(text))) == names


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("imagenet_2012", "Did you mean 'imagenet2012"),
    ("imagenette/160px-v2", "vitx prepare imagenette/160px-v2 --data_dir "),
    ("tiny_imagenet", "vitx prepare tiny_imagenet --from .*zip --data_dir "),
    ("tiny_imagenet:1.0.0", "vitx prepare tiny_imagenet:1.0.0 --from .*zip --data_dir "),
    ("digits:9.9.9", "'digits:9.9.9' is not prepared in "),
  ],
)
def test_a_set_that_cannot_be_opened_is_named(tmp_path, make_data, name, message, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  with pytest.raises(ConfigError, match=message):
    open_source(make_data(source=name, data_dir=str(tmp_path)), seed=0)


def test_the_newest_or_named_version_is_chosen(tmp_path):
  for version in ("1.0.0", "1.2.0", "1.10.0"):
    place = tmp_path / "many" / "small" / version
    place.mkdir(parents=True)
    (place / "dataset_info.json").write_text("{}")
  root = tfds_dir.default_data_dir(tmp_path)
  assert tfds_dir.find("many/small", root).name == "1.10.0"
  assert tfds_dir.find("many/small:1.2.0", root).name == "1.2.0"
  assert tfds_dir.find("many/small:9.0.0", root) is None
  with pytest.raises(ConfigError, match=r"several configs.*many/small"):
    tfds_dir.find("many", root)


def test_the_fingerprint_follows_the_content(tmp_path, data_dir, make_data):
  def fingerprint(directory):
    return open_source(make_data(data_dir=str(directory)), seed=0).info.fingerprint

  before = fingerprint(data_dir)
  DIGITS.prepare(tmp_path)
  assert fingerprint(tmp_path) == before
  names = tmp_path / "digits" / "1.0.0" / "label.labels.txt"
  names.write_text(names.read_text().replace("9", "nine"))
  assert fingerprint(tmp_path) != before
