"""An evaluation needs only the workdir, and its figures count every example once."""

import csv
import dataclasses
import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn import metrics as reference

import vitx
from tests import runs
from tests.cli import density_models
from vitx.checkpoints.workdir import find_places
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.fields import SplitSettings
from vitx.data.sources import open_source
from vitx.inference.evaluate import evaluate


@pytest.fixture(scope="module")
def run(finished_run):
  return finished_run


def examples_of(role="test"):
  """Returns the images, labels and names of a split, read as the training reads them."""
  source = open_source(runs.tiny().data, seed=0)
  role = source.role(role)
  images = np.stack([role[i]["image"] for i in range(len(role))])
  return images, np.asarray(role.labels), [role.name(i) for i in range(len(role))]


def probabilities_of(workdir, images, params="ema"):
  """Returns the class probabilities of the newest checkpoint, float64, computed in one batch."""
  loaded = vitx.load(workdir)
  config = loaded.config
  x = (images / 255 - np.array(config.data.mean)) / np.array(config.data.std)
  variables = {"params": runs.final_state(workdir)[params]}
  logits = np.asarray(jax.jit(loaded.model.apply)(variables, x.astype(np.float32)), np.float64)
  odds = np.exp(logits - logits.max(1, keepdims=True))
  return odds / odds.sum(1, keepdims=True)


def figures_of(p, labels):
  """Computes the metrics of an evaluation in NumPy, by their definitions."""
  hit, confidence = p.argmax(1) == labels, p.max(1)
  bins = np.ceil(confidence * 15).astype(int)
  gaps = [
    (bins == b).mean() * abs(hit[bins == b].mean() - confidence[bins == b].mean())
    for b in np.unique(bins)
  ]
  return {
    "examples": len(labels),
    "top1": hit.mean(),
    "top5": (np.argsort(-p, 1)[:, :5] == labels[:, None]).any(1).mean(),
    "nll": -np.log(p[np.arange(len(labels)), labels]).mean(),
    "ece": sum(gaps),
    "class_top1": [hit[labels == k].mean() for k in range(10)],
  }


def assert_figures(result, expected):
  for name, value in expected.items():
    assert result[name] == pytest.approx(value, rel=1e-5), name


def read_csv(path):
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def test_every_example_counts_once(run):
  assert jax.device_count() == 2
  workdir, _ = run
  images, labels, _ = examples_of()
  result = evaluate(workdir, batch_size=64, checkpoint="latest")
  assert_figures(result, figures_of(probabilities_of(workdir, images), labels))
  # The evaluated weights are the moving average.
  plain = figures_of(probabilities_of(workdir, images, "params"), labels)
  assert result["nll"] != pytest.approx(plain["nll"], rel=1e-4)


def test_the_figures_agree_with_those_of_training(run):
  workdir, trained = run
  result = evaluate(workdir)
  assert {name: result[name] for name in trained.test} == trained.test
  assert result["class_names"] == [str(i) for i in range(10)]


@pytest.mark.slow
def test_a_classifier_gets_intervals_and_a_temperature(run, tmp_path, capsys):
  workdir, _ = run
  images, labels, _ = examples_of()
  result = evaluate(workdir, checkpoint="latest", calibrate=True)
  guess = probabilities_of(workdir, images).argmax(1)
  assert result["confusion"] == reference.confusion_matrix(labels, guess).tolist()
  for name in ("top1", "nll", "ece", "f1", "balanced_accuracy"):
    low, high = result["intervals"][name]
    assert low <= high and (name == "ece" or low <= result[name] <= high), name
  fit = result["calibration"]
  assert fit["fitted_examples"] == 144
  assert fit["before"]["nll"] == pytest.approx(result["nll"], rel=1e-5)
  assert fit["validation"]["after"]["nll"] < fit["validation"]["before"]["nll"]
  same = evaluate(workdir, checkpoint="latest", calibrate=True, split="validation")
  assert same["calibration"]["temperature"] == pytest.approx(fit["temperature"], rel=1e-6)
  assert main(["evaluate", "--workdir", str(workdir), "--calibrate"]) == 0
  assert f"temperature         {fit['temperature']:.4f}, fitted on 144" in capsys.readouterr().out


def test_a_loaded_model_keeps_its_checkpoint(run):
  loaded = vitx.load(run[0])
  for other in ({"checkpoint": loaded.step - 1}, {"weights": "raw"}):
    with pytest.raises(ConfigError, match=r"name others in vitx\.load"):
      evaluate(loaded, **other)


def test_predictions_are_written_for_every_example(run, tmp_path):
  workdir, _ = run
  images, labels, names = examples_of()
  result = evaluate(workdir, checkpoint="latest", batch_size=50, predictions=tmp_path / "p.csv")
  rows = read_csv(tmp_path / "p.csv")
  assert [row["name"] for row in rows] == names
  assert [row["label"] for row in rows] == [str(label) for label in labels]
  p = np.array([[row[f"p({k})"] for k in range(10)] for row in rows], np.float32)
  np.testing.assert_allclose(p, probabilities_of(workdir, images), rtol=1e-4, atol=1e-6)
  assert [row["prediction"] for row in rows] == [str(k) for k in p.argmax(1)]
  assert (p.argmax(1) == labels).mean() == pytest.approx(result["top1"])


@pytest.mark.slow
def test_a_moved_workdir_is_evaluated_alone(run, run_copy, tmp_path):
  """The command runs in another folder, on one device, and does not import TensorFlow."""
  workdir = shutil.copytree(run_copy, tmp_path / "elsewhere" / "run")
  shutil.rmtree(run_copy)
  (tmp_path / "traps" / "tensorflow").mkdir(parents=True)
  trap = "import os; os.write(2, b'TensorFlow was imported'); os._exit(3)"
  (tmp_path / "traps" / "tensorflow" / "__init__.py").write_text(trap)
  for path in (workdir, *workdir.rglob("*")):
    path.chmod(0o555 if path.is_dir() else 0o444)
  before = runs.snapshot(workdir)
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "1",
    "PYTHONPATH": os.pathsep.join([str(tmp_path / "traps"), str(runs.ROOT)]),
  }
  process = subprocess.run(
    [sys.executable, "-m", "vitx", "evaluate", "--workdir", "elsewhere/run", "--json", "f.json"],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stderr
  here = evaluate(run[0])
  figures = json.loads((tmp_path / "f.json").read_text())
  assert figures.pop("workdir") == "elsewhere/run" and here.pop("workdir")
  for name in ("intervals", "reliability", "calibration"):
    here.pop(name, None)
  for name in ("step", "source", "split", "class_names", "confusion"):
    assert figures[name] == here.pop(name)
  assert_figures(figures, here)
  assert f"{here['top1']:.2%}" in process.stdout
  assert runs.snapshot(workdir) == before


def test_a_limit_counts_the_windows_of_documents(tmp_path):
  (tmp_path / "book.txt").write_bytes(bytes(range(240)))
  options = {"source": f"bytes:{tmp_path / 'book.txt'}", "predictions": tmp_path / "p.csv"}
  result = evaluate(density_models.text(), limit=3, **options)
  assert (result["examples"], result["tokens"]) == (3, 72)
  names = [row["name"] for row in read_csv(options["predictions"])]
  assert names == ["book.txt[0:24]", "book.txt[72:96]", "book.txt[144:168]"]


@pytest.fixture
def exported(run, tmp_path):
  """Writes digits of the test split as a folder of images, six of each class.

  Returns the folder, the images and the labels.
  """
  images, labels, _ = examples_of()
  chosen = [i for k in range(10) for i in np.flatnonzero(labels == k)[:6]]
  for i in chosen:
    path = tmp_path / "digits" / str(labels[i]) / f"{i}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(images[i, ..., 0]).save(path)
  return tmp_path / "digits", images[chosen], labels[chosen]


@pytest.mark.slow
def test_another_source_is_evaluated_whole(run, exported):
  folder, images, labels = exported
  result = evaluate(run[0], source=f"folder:{folder}", checkpoint="latest")
  assert result["split"] == "all" and result["source"] == f"folder:{folder}"
  assert_figures(result, figures_of(probabilities_of(run[0], images), labels))
  counts = {
    split: evaluate(run[0], source=f"folder:{folder}", split=split)["examples"]
    for split in ("train", "validation", "test", "all")
  }
  assert counts == {"train": 40, "validation": 10, "test": 10, "all": 60}


@pytest.mark.slow
def test_the_own_source_keeps_its_test_split(run, warnings):
  assert evaluate(run[0], source="digits") == evaluate(run[0])
  assert not warnings
  assert evaluate(run[0], source="digits:1.0.0")["examples"] == 1797
  assert "contains the training examples" in warnings[0]


def test_changed_data_is_noticed(run_copy, warnings):
  environment = json.loads((run_copy / "environment.json").read_text())
  for fingerprint in ("", "other"):  # "" is that of a model without data
    assert not warnings
    environment["data"]["fingerprint"] = fingerprint
    (run_copy / "environment.json").write_text(json.dumps(environment))
    assert evaluate(run_copy)["examples"] == 359
  assert "digits has changed since the run" in warnings[0]


def test_relative_paths_count_from_the_folder_of_the_training(run_copy, tmp_path, monkeypatch):
  for name in ("in", "sets"):
    (tmp_path / "a" / name).mkdir(parents=True)
  monkeypatch.chdir(tmp_path / "a")
  fields = {"source": "folder:in", "data_dir": "sets"}
  places = find_places(fields)
  assert places == {"source": f"{tmp_path}/a/in", "data_dir": f"{tmp_path}/a/sets"}
  assert find_places({"source": f"folder:{tmp_path}"}) == find_places({"source": "digits"}) == {}
  for path, change in (("config.json", fields), ("environment.json", {"places": places})):
    record = json.loads((run_copy / path).read_text())
    record["data"] |= change
    (run_copy / path).write_text(json.dumps(record))

  def opened(folder):
    monkeypatch.chdir(folder)
    data = vitx.load(run_copy).config.data
    return [data.source, data.data_dir]

  assert opened(tmp_path / "a") == ["folder:in", "sets"]
  assert opened(tmp_path) == [f"folder:{places['source']}", places["data_dir"]]
  (tmp_path / "a").rename(tmp_path / "moved")
  assert opened(tmp_path / "moved") == ["folder:in", "sets"]
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=rf"'folder:in'.*{places['source']}.*--source"):
    evaluate(run_copy)


def test_other_classes_or_channels_are_refused(run, exported, run_copy, capsys):
  folder, _, _ = exported
  shutil.move(folder / "9", folder / "ten")
  command = ["evaluate", "--workdir", str(run[0]), "--source", f"folder:{folder}"]
  assert main(command) == 1
  error = capsys.readouterr().err
  assert "not in the source: ['9']; not in the model: ['ten']" in error
  color = {"data.channels": 3, "data.source": "folder:of_color"}
  loaded = runs.change_settings(vitx.load(run_copy), color)
  with pytest.raises(ConfigError, match="images of 1 channels; the model takes 3"):
    evaluate(loaded, source="digits")


def test_another_source_is_not_divided_as_the_run(run, exported):
  choice = {"data.validation_choice": "sparse_transformer_cifar10"}
  loaded = runs.change_settings(vitx.load(run[0]), {"data.folds": 4, "data.fold": 1, **choice})
  assert evaluate(loaded, source=f"folder:{exported[0]}", split="validation")["examples"] == 10


def rename(workdir, class_names, **data):
  """Changes the names of the classes, and other fields, in a run's record of its data."""
  environment = json.loads((workdir / "environment.json").read_text())
  environment["data"] |= {"class_names": list(class_names)} | data
  (workdir / "environment.json").write_text(json.dumps(environment))
  return workdir


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the mean over a class without examples
def test_classes_are_matched_by_name(exported, run_copy):
  """The model's output k is called 9 - k, and the source lacks two classes."""
  folder, images, labels = exported
  for name in ("3", "7"):
    shutil.rmtree(folder / name)
  (folder / "4").rename(folder / "04")
  rename(run_copy, map(str, reversed(range(10))))
  present = ~np.isin(labels, (3, 7))
  result = evaluate(run_copy, source=f"folder:{folder}", checkpoint="latest")
  p, places = probabilities_of(run_copy, images[present]), 9 - labels[present]
  expected = figures_of(p, places)
  del expected["class_top1"]
  assert_figures(result, expected)
  hits = [
    None if k in (3, 7) else (p.argmax(1) == places)[places == 9 - k].mean() for k in range(10)
  ]
  assert result["class_top1"] == [None if x is None else pytest.approx(x) for x in hits[::-1]]
  figures = evaluate(run_copy, checkpoint="latest")  # The run's own source is matched by names too.
  images, labels, _ = examples_of()
  assert figures["top1"] == pytest.approx(
    (probabilities_of(run_copy, images).argmax(1) == 9 - labels).mean()
  )


@pytest.mark.slow
def test_numbered_classes_follow_a_list(exported, run_copy):
  """Weights that were converted without their data have numbers as the names of classes."""
  folder, images, labels = exported
  names = ["cat", "dog", "ant", "bee", "fly", "emu", "elk", "asp", "bat", "cod"]
  for k, name in enumerate(names):
    (folder / str(k)).rename(folder / name)
  with pytest.raises(ConfigError, match=r"not in the model: \['ant', 'asp'.*classes\.txt"):
    evaluate(rename(run_copy, map(str, range(10)), fingerprint=""), source=f"folder:{folder}")
  (folder / "classes.txt").write_text("\n".join(names))
  result = evaluate(run_copy, source=f"folder:{folder}", checkpoint="latest")
  assert_figures(result, figures_of(probabilities_of(run_copy, images), labels))


@pytest.mark.slow
def test_moved_data_keep_the_roles_of_the_run(exported, run_copy, tmp_path, warnings):
  folder, _, _ = exported
  for split in ("train", "site_a", "site_b"):
    shutil.copytree(folder, tmp_path / "in" / split)
  splits = SplitSettings(train="train", validation="site_a", test="site_b")
  data = {"source": f"folder:{tmp_path / 'in'}", "splits": splits, "fraction": 0.5}
  loaded = runs.change_settings(vitx.load(run_copy), {f"data.{x}": y for x, y in data.items()})
  opened = open_source(loaded.settings.data, 0).info
  loaded = dataclasses.replace(loaded, data={**loaded.data, "fingerprint": opened.fingerprint})
  os.symlink(tmp_path / "in", tmp_path / "link")
  shutil.copytree(tmp_path / "in", tmp_path / "moved")
  for place in (None, f"{tmp_path}/./in/", f"{tmp_path}/link", f"{tmp_path}/moved"):
    source = place and f"folder:{place}"
    evaluate(loaded, source=source, split="test", predictions=tmp_path / "p.csv")
    names = [row["name"] for row in read_csv(tmp_path / "p.csv")]
    assert len(names) == 60 and all(name.startswith("site_b/") for name in names)
    assert evaluate(loaded, source=source, split="train")["examples"] == 30
  (tmp_path / "in").rename(tmp_path / "gone")
  there = {"source": f"folder:{tmp_path}/moved", "split": "test"}
  assert evaluate(loaded, **there, calibrate=True)["calibration"]["fitted_examples"] == 60
  evaluate(loaded, source=f"folder:{folder}", split="all", report=tmp_path / "report")
  with pytest.raises(ConfigError, match="names another place"):  # before anything is evaluated
    there = {"source": f"folder:{folder}", "predictions": tmp_path / "q.csv"}
    evaluate(loaded, **there, split="all", calibrate=True)
  assert not (tmp_path / "q.csv").exists()
  assert sum("contains the training examples" in text for text in warnings) == 3
  (tmp_path / "moved" / "site_b" / "0").rename(tmp_path / "moved" / "site_b" / "1" / "more")
  with pytest.raises(ConfigError, match="the splits have different classes"):
    evaluate(loaded, source=f"folder:{tmp_path}/moved")
  assert evaluate(loaded, source=f"folder:{folder}", split="all")["examples"] == 60
