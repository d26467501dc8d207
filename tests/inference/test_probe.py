"""Probes of a run and of a config: their features, which are computed once, and errors."""

import csv
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

import vitx
from tests import runs
from tests.cli import density_models
from tests.test_folder_end_to_end import draw
from vitx.analysis.figures.few_shot import plot_few_shot
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.data.sources import open_source
from vitx.inference import features as features_file
from vitx.inference.probe import draw_shots, probe

QUICK = {"methods": ("ridge",), "draws": 0}


@pytest.fixture(scope="module")
def folder(loaded, tmp_path_factory):
  """A folder of the run's features, which the tests of this file share."""
  directory = tmp_path_factory.mktemp("features")
  probe(loaded, **QUICK, cache=directory)
  return directory


@pytest.fixture
def frozen(monkeypatch):
  """Makes a test fail if it computes a feature."""

  def fail(*_):
    raise AssertionError("computed")

  monkeypatch.setattr(features_file, "_compute", fail)


def read_roles(model):
  """Returns the features of each role, as `vitx.predict` gives them, and the labels."""
  source = open_source(runs.tiny().data, seed=0)
  features = {}
  for name in ("train", "validation", "test"):
    role = source.role(name)
    images = np.stack([role[i]["image"] for i in range(len(role))])
    features[name] = vitx.predict(model, images, features=True).features, np.asarray(role.labels)
  return features


def test_a_probe_agrees_with_predict_and_scikit_learn(loaded, folder):
  roles = read_roles(loaded)
  result = probe(loaded, **QUICK, cache=folder)
  (file,) = folder.glob("*.npz")
  with np.load(file) as arrays:
    for name, (values, labels) in roles.items():
      np.testing.assert_allclose(arrays[f"{name}_values"], values, rtol=1e-5, atol=1e-6)
      np.testing.assert_array_equal(arrays[f"{name}_labels"], labels)
  assert result["examples"] == {"train": 1294, "validation": 144, "test": 359}
  assert result["features"] == 16 and result["few_shot"] == []
  ridge = result["methods"]["ridge"]
  x, y = roles["train"]
  scaler = StandardScaler().fit(x.astype(np.float64))
  peer = RidgeClassifier(ridge["alpha"]).fit(scaler.transform(x), y)
  for name in ("validation", "test"):
    values, labels = roles[name]
    assert abs(peer.score(scaler.transform(values), labels) - ridge[name]) < 1e-3


def test_a_second_call_computes_nothing_and_without_draws_there_is_no_picture(
  run, folder, frozen, tmp_path
):
  assert probe(run, **QUICK, cache=folder, out=tmp_path)["cached"]
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", ["weights", "preparation"])
def test_other_weights_or_preparation_need_other_features(loaded, folder, frozen, change):
  if change == "weights":
    more = jax.tree.map(lambda x: x + 1, loaded.variables)
    changed = dataclasses.replace(loaded, variables=more)
  else:
    changed = runs.change_settings(loaded, {"evaluation.crop_ratio": 0.8})
  with pytest.raises(AssertionError, match="computed"):
    probe(changed, **QUICK, cache=folder)


@pytest.mark.slow
def test_a_config_takes_the_weights_of_init_from(run, folder, frozen, capsys):
  """The config's features are those of the run, bit by bit, so one file of features serves both."""
  text = f"configs/digits.py:{runs.replace(runs.TINY, f'init_from={run}')}"
  result = probe(config=text, **QUICK, cache=folder)
  assert result["cached"] and result["methods"] == probe(run, **QUICK, cache=folder)["methods"]
  assert result["model"] == text and f"init_from {run}" in capsys.readouterr().out


def test_another_source_may_have_other_classes(run, tmp_path):
  draw(tmp_path / "photos", per_class=8)
  options = {"draws": 2, "shots": (2, 100), "cache": tmp_path, "methods": ("knn", "logistic")}
  # The run's images are gray, and a folder of images is read as the run's data are.
  result = probe(run, source=f"folder:{tmp_path / 'photos'}", **options)
  assert result["class_names"] == ["bright", "dark", "striped"]
  assert [(row["method"], row["shots"]) for row in result["few_shot"]] == [
    ("knn", 2),
    ("logistic", 2),
  ]


def divided(loaded, **data):
  """Returns the model of a run whose config divides its data by these fields."""
  return runs.change_settings(loaded, {f"data.{field}": value for field, value in data.items()})


def test_another_source_is_divided_by_its_own_splits(loaded, tmp_path):
  draw(tmp_path / "photos" / "train", per_class=8)
  draw(tmp_path / "photos" / "test", per_class=2)
  model = divided(loaded, folds=4, fold=1, validation_choice="sparse_transformer_cifar10")
  result = probe(model, source=f"folder:{tmp_path / 'photos'}", **QUICK, cache=tmp_path / "kept")
  assert result["examples"] == {"train": 21, "validation": 3, "test": 6}


def test_only_a_copy_of_the_data_of_the_run_has_its_splits(loaded, tmp_path):
  """All splits have equal labels, so the labels do not show that the features are others."""
  for split in ("train", "val", "test"):
    draw(tmp_path / "photos" / split, per_class=3)
  shutil.copytree(tmp_path / "photos", tmp_path / "copy")
  splits = {"train": "train", "validation": "test", "test": "val"}
  model = divided(loaded, source=f"folder:{tmp_path / 'photos'}", splits=splits)
  options = {**QUICK, "cache": tmp_path / "kept"}
  copy, names = f"folder:{tmp_path / 'copy'}", ["striped", "dark", "bright"]
  (tmp_path / "photos" / "classes.txt").write_text("\n".join(names))  # and not in the copy
  assert not probe(model, **options)["cached"]
  fingerprint = open_source(model.config.data, seed=0).info.fingerprint
  trained = dataclasses.replace(model, data={"fingerprint": fingerprint, "class_names": names})
  assert probe(trained, source=copy, **options)["cached"]
  assert not probe(model, source=copy, **options)["cached"]
  assert probe(model, **options)["cached"]


def test_shots_are_drawn_for_each_class_and_nested():
  labels = np.repeat([3, 0, 7], [5, 9, 20])
  few, more = (draw_shots(labels, count, seed=1, draw=2) for count in (2, 5))
  assert set(few) < set(more) and np.bincount(labels[more]).tolist() == [5, 0, 0, 5, 0, 0, 0, 5]
  draws = {tuple(draw_shots(labels, 2, seed, draw)) for seed in (0, 1) for draw in range(3)}
  assert len(draws) == 6
  np.testing.assert_array_equal(few, draw_shots(labels, 2, 1, 2))


def test_few_shot_curves_are_drawn_in_percent():
  rows = [
    {"method": "knn", "shots": shots, "values": [0.5, 0.7], "mean": mean, "low": low, "high": 0.8}
    for shots, mean, low in ((1, 0.5, None), (4, 0.6, 0.4))
  ]
  result = {"features": 16, "source": "digits", "examples": {"train": 1000}, "few_shot": rows}
  (axes,) = plot_few_shot(result | {"methods": {"knn": {"test": 0.9}}}).axes
  lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
  assert lines == [([1, 4], [50, 60]), ([4, 4], [40, 80]), ([8], [90])]


@pytest.mark.slow
def test_the_command_prints_and_writes(run, folder, tmp_path, capsys, frozen):
  table, data, pictures = tmp_path / "p.csv", tmp_path / "p.json", tmp_path / "pictures"
  words = ["probe", "--workdir", str(run), "--cache", str(folder), "--methods", "ridge,knn"]
  words += ["--shots", "1,3", "--draws", "2", "--out", str(pictures)]
  assert main([*words, "--csv", str(table), "--json", str(data)]) == 0
  out, result = capsys.readouterr().out, json.loads(data.read_text())
  assert "16 features (read from the cache)" in out and "alpha = " in out and "k = " in out
  assert (pictures / "few_shot.png").stat().st_size > 1000
  with table.open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert [(row["method"], row["shots"]) for row in rows] == [
    *(("ridge", "all"), ("knn", "all")),
    *(("ridge", "1"), ("ridge", "3"), ("knn", "1"), ("knn", "3")),
  ]
  assert float(rows[0]["test"]) == result["methods"]["ridge"]["test"]
  assert f"{result['few_shot'][0]['mean']:.2%}" in out


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({}, "give a workdir, or a config"),
    ({"workdir": "x", "config": "digits"}, "give a workdir, or a config"),
    ({"config": "digits", "source": "cifar10"}, "sets its own data.source"),
    ({"config": "digits"}, "has no weights; set init_from"),
    ({"workdir": "x", "methods": ("knn", "tree")}, "methods='tree' is unknown"),
    ({"workdir": "x", "shots": (0,)}, r"shots\[0\]=0 is out of range"),
    ({"workdir": "x", "draws": -1}, "draws=-1 is out of range"),
    ({"config": "digits:init_from=nowhere"}, "nowhere"),
  ],
)
def test_a_wrong_argument_is_refused(options, message, tmp_path):
  with pytest.raises(ConfigError, match=message):
    probe(**{"cache": tmp_path, **options})
  assert not list(tmp_path.iterdir())


def test_a_model_or_data_without_classes_is_refused(loaded, tmp_path):
  density = runs.change_settings(density_models.make(), {"data_seed": 0})
  with pytest.raises(ConfigError, match=r"the head of this network reads .* not one vector"):
    probe(density, cache=tmp_path)
  (tmp_path / "text").write_text("words " * 2000)
  with pytest.raises(ConfigError, match="has no class for each example"):
    probe(loaded, source=f"bytes:{tmp_path / 'text'}", cache=tmp_path / "cache")
  loaded = divided(loaded, channels=3)
  with pytest.raises(ConfigError, match="has images of 1 channels; the model takes 3"):
    probe(loaded, source="digits", cache=tmp_path)


def test_features_that_are_not_finite_are_refused(loaded, tmp_path):
  broken = jax.tree.map(lambda x: np.full_like(x, np.nan), loaded.variables)
  with pytest.raises(ConfigError, match="in train are not finite"):
    probe(dataclasses.replace(loaded, variables=broken), **QUICK, cache=tmp_path)
