"""The classes of a run keep their numbers, whatever order the folders have later."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

import vitx
from tests import runs
from vitx.checkpoints.workdir import find_data
from vitx.config.errors import ConfigError
from vitx.data import class_names
from vitx.runtime.weights import load_constants
from vitx.training import loop
from vitx.training.experiment import make_experiment
from vitx.training.record import provenance

NAMES = tuple(map(str, range(12)))
BEFORE = tuple(sorted(NAMES))  # 0, 1, 10, 11, 2, ...: how folders were numbered before


@pytest.fixture
def numbered(tmp_path):
  rng = np.random.default_rng(0)
  for name in NAMES:
    for i in range(8):
      path = tmp_path / "in" / name / f"{i}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      pixels = rng.integers(0, 90, (8, 8, 3)) + 13 * int(name)
      Image.fromarray(pixels.astype(np.uint8)).save(path)
  return tmp_path / "in"


def config(source, *overrides):
  settings = f"dataset=folder:{source}", "data.image_size=8", "batch_size=8", "duration=8 steps"
  settings += runs.PLAIN
  return runs.tiny(*settings, "checkpoint.every=4 steps", "evaluation.every=4 steps", *overrides)


@pytest.mark.slow  # whole runs
def test_a_run_with_an_older_order_of_classes_keeps_its_bits(numbered, tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(class_names, "sort_names", lambda names: tuple(sorted(names)))
    loop.train(config(numbered), tmp_path / "whole")
    loop.train(config(numbered, "stop_after=4 steps"), tmp_path / "parts")
  result = loop.train(config(f"{numbered.parent}/./in/"), tmp_path / "parts")  # another spelling
  assert result.step == 8 and find_data(tmp_path / "parts")["class_names"] == list(BEFORE)
  whole, parts = (runs.final_state(tmp_path / name) for name in ("whole", "parts"))
  jax.tree.map(np.testing.assert_array_equal, parts, whole)
  assert vitx.evaluate(tmp_path / "parts")["top1"] == result.test["top1"]
  assert make_experiment(config(numbered)).source.info.class_names == NAMES


def test_a_phase_has_the_order_of_the_run(tmp_path):
  for name, names in (("one", list(BEFORE)), ("two", None)):
    (tmp_path / name).mkdir()
    data = {"fingerprint": "a", "class_names": names}
    (tmp_path / name / "environment.json").write_text(json.dumps({"data": data}))
  assert not find_data(tmp_path / "two")
  (tmp_path / "phases.json").write_text(json.dumps({"phases": ["one", "two", "three"]}))
  records = [find_data(tmp_path / name) for name in ("two", "three", "one", "four", "")]
  assert [x.get("class_names") for x in records] == [list(BEFORE)] * 3 + [None] * 2


def test_other_splits_of_a_continued_run_are_refused(tmp_path):
  data = {"source": "x", "fingerprint": "a", "examples": {"train": 3, "test": 2}, "unreadable": []}
  (tmp_path / "environment.json").write_text(json.dumps({"data": data}))
  provenance.check_same_data(tmp_path, data)
  with pytest.raises(ConfigError, match=r"began: examples .*'test': 2.*'test': 5"):
    provenance.check_same_data(tmp_path, data | {"examples": {"train": 3, "test": 5}})


def test_another_spelling_of_a_place_is_the_same_source(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in").mkdir()
  (tmp_path / "link").symlink_to("in")

  def check(old, new, kind="folder"):
    fields = ({"data": {"source": f"{kind}:{place}"}} for place in (old, new))
    provenance.check_same_fields("run", *fields, ())

  for new in ("./in", "in/", tmp_path / "in", "link", "../" + tmp_path.name + "/in"):
    check("in", new)
    check("in", new, "audio")
  for old, new, kind in (("in", "out", "folder"), ("in", "./in", "my_module")):
    with pytest.raises(ConfigError, match=r"data\.source"):
      check(old, new, kind)


def name_classes(run, names):
  """Replaces the names of the classes in the record of a run."""
  environment = json.loads((run / "environment.json").read_text())
  environment["data"]["class_names"] = names
  (run / "environment.json").write_text(json.dumps(environment))


@pytest.mark.slow
def test_a_teachers_classes_are_found_by_their_names(run_copy):
  """The record says that the teacher's output k is called 9 - k."""
  loaded = vitx.load(run_copy)
  names = list(loaded.class_names)
  options = "task=distillation", f"task.teacher={run_copy}", "augment.mixup=0.0"
  heads = []
  for classes in (names, names[::-1], ["ten", *names[1:]]):
    name_classes(run_copy, classes)
    experiment = make_experiment(runs.tiny(*options), is_trial=True)
    arguments = experiment.task, experiment.settings, experiment.source.info
    if "ten" in classes:
      with pytest.raises(ConfigError, match=r"task\.teacher=.*this run's classes: other classes"):
        load_constants(*arguments)
    else:
      heads.append(load_constants(*arguments)["teacher"]["params"]["head"])
  for leaf in ("kernel", "bias"):
    np.testing.assert_array_equal(heads[0][leaf], loaded.variables["params"]["head"][leaf])
    np.testing.assert_array_equal(heads[1][leaf], heads[0][leaf][..., ::-1])
