"""The runs of a sweep over seeds or folds answer as one model, and calibrate prediction sets."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import vitx
from tests import runs
from vitx.analysis.prediction_sets import find_threshold
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.workdir import POINT
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.data.sources import open_source
from vitx.inference import ensemble
from vitx.inference.evaluate import evaluate, evaluate_split
from vitx.inference.folds import predict_folds
from vitx.inference.opening import open_split
from vitx.inference.publish import publish


@pytest.fixture(scope="module")
def members(run):
  """Two models with the weights of one run: the moving average, and the last ones."""
  return [vitx.load(run, "latest", weights=weights) for weights in ("ema", "raw")]


def with_data(loaded, **fields):
  return runs.change_settings(loaded, {f"data.{name}": value for name, value in fields.items()})


@pytest.fixture
def sweep(run, tmp_path):
  """The directory of a sweep of two finished runs, which have examples for calibration."""
  for seed in range(2):
    place = shutil.copytree(run, tmp_path / f"tiny_seed-{seed}")
    config = json.loads((place / "config.json").read_text())
    config["data"]["calibration"] = 0.2
    (place / "config.json").write_text(json.dumps(config))
    (place / POINT).write_text(json.dumps({"method": "tiny", "seed": seed, "config": config}))
  return tmp_path


def test_an_ensemble_averages_probabilities(members):
  images = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 1), np.uint8)
  joined = ensemble.join(members, "runs/two")
  result = vitx.predict(joined, images)
  expected = np.mean([vitx.predict(member, images).probabilities for member in members], axis=0)
  np.testing.assert_allclose(result.probabilities, expected, rtol=1e-5)
  np.testing.assert_allclose(np.exp(result.logits), expected, rtol=1e-5)


def test_a_sweep_has_no_features_and_is_no_model_to_publish(sweep, tmp_path):
  images = np.zeros((1, 8, 8, 1), np.uint8)
  with pytest.raises(ConfigError, match="each run of a sweep has its own features"):
    vitx.predict(sweep, images, features=True)
  with pytest.raises(ConfigError, match=r"config\.json is missing"):
    publish(sweep, str(tmp_path / "published"))
  assert not (tmp_path / "published").exists()


def test_folds_are_answered_by_the_runs_that_test_them(members, tmp_path):
  divided = [with_data(member, folds=2, fold=fold) for fold, member in enumerate(members)]
  alone = [evaluate(member) for member in divided]
  whole = evaluate(ensemble.join(divided, "runs/folds"), predictions=tmp_path / "p.csv")
  counts = [result["examples"] for result in alone]
  assert whole["examples"] == sum(counts) == 1438
  for name in ("top1", "nll"):
    expected = np.average([result[name] for result in alone], weights=counts)
    assert whole[name] == pytest.approx(expected, rel=1e-6), name
  assert np.array(whole["confusion"]).sum() == 1438
  assert evaluate(ensemble.join(divided, "runs/folds"), limit=9)["examples"] == 10  # five of each
  names = [line.split(",")[0] for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
  tests = [open_source(member.settings.data, seed=0).test for member in divided]
  assert names == [test.name(i) for test in tests for i in range(len(test))]


@pytest.mark.parametrize("field", [{"class_names": list("abcdefghij")}, {"fingerprint": "other"}])
def test_members_must_have_the_same_data(field, members):
  other = dataclasses.replace(members[1], data={**members[1].data, **field})
  with pytest.raises(ConfigError, match="classifiers of the same data"):
    ensemble.join([members[0], other], "runs/two")


def test_an_ensemble_has_no_temperature_and_says_so_before_it_is_evaluated(members, tmp_path):
  with pytest.raises(ConfigError, match="may have learned from it"):
    evaluate(ensemble.join(members, "runs/two"), calibrate=True, predictions=tmp_path / "p.csv")
  assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("split", ["train", "validation", "all", "test"])
def test_an_ensemble_is_not_evaluated_on_what_its_members_learned(split, members):
  divided = [with_data(member, folds=2, fold=fold) for fold, member in enumerate(members)]
  with pytest.raises(ConfigError, match="may have learned from it"):  # test of one fold alone
    open_split(ensemble.join(divided, "runs/folds"), split, None, None)
  if split != "test":
    with pytest.raises(ConfigError, match="may have learned from it"):
      evaluate(ensemble.join(members, "runs/two"), split=split)


def test_the_finished_runs_of_one_method_are_loaded(sweep, warnings):
  for place in (sweep, sweep / "tiny"):
    runs_of = [member.workdir for member in ensemble.load_model(place).members]
    assert runs_of == [str(sweep / f"tiny_seed-{seed}") for seed in range(2)]
  (sweep / "tiny_seed-1" / "metrics.jsonl").write_text("")
  loaded = ensemble.load_model(sweep)  # an ensemble of one run is that run
  assert loaded.workdir == str(sweep / "tiny_seed-0") and "1 of 2 runs are finished" in warnings[-1]
  record = {"method": "other", "seed": 1, "config": {}}
  (sweep / "tiny_seed-1" / POINT).write_text(json.dumps(record))
  with pytest.raises(ConfigError, match=r"methods other, tiny; add .*/other'"):
    ensemble.load_model(sweep)
  with pytest.raises(ConfigError, match=r"other/config\.json is missing"):
    ensemble.load_model(sweep / "other")
  assert "0 of 1 runs are finished" in warnings[-1]


def test_out_of_fold_predictions_are_those_of_the_ensemble(sweep):
  names = [str(i) for i in range(10)]
  answers = predict_folds(str(sweep), names)
  assert len(answers) == 359
  np.testing.assert_allclose(sum(answers.values()).sum(), 359, rtol=1e-5)


def test_sets_of_twenty_divisions_of_the_digits_cover_nine_of_ten(members):
  # Examples on which nothing was chosen: those of test, divided in twenty ways.
  test = open_source(members[0].settings.data, seed=0).test
  prediction = vitx.predict(members[0], np.stack([test[i]["image"] for i in range(len(test))]))
  logits, labels = prediction.logits, np.asarray(test.labels)
  covered = []
  for seed in range(20):
    known, new = np.split(np.random.default_rng(seed).permutation(len(labels)), [180])
    sets = find_threshold(labels[known], logits[known], 0.9).choose(logits[new])
    covered.append(sets[np.arange(len(new)), labels[new]].mean())
  assert np.mean(covered) == pytest.approx(0.9, abs=0.02)


def test_sets_are_calibrated_on_examples_of_their_own(members):
  model = with_data(members[0], calibration=0.2)
  result = evaluate(model, coverage=0.8, limit=100)
  source = open_source(model.settings.data, seed=0)
  calibration = source.calibration
  images = np.stack([calibration[i]["image"] for i in range(len(calibration))])
  threshold = find_threshold(
    np.asarray(calibration.labels), vitx.predict(model, images).logits, 0.8
  )
  assert result["sets"]["examples"] == len(calibration) == 287
  assert result["sets"]["thresholds"] == pytest.approx([threshold.value], rel=1e-5)
  assert 0.6 < result["coverage"] < 1 and len(result["class_coverage"]) == 10
  prediction = vitx.predict(model, images[:9], coverage=0.8)
  chosen = prediction.probabilities >= result["sets"]["thresholds"][0]
  assert [sorted(names) for names in prediction.sets] == [
    [str(i) for i in np.flatnonzero(row)] for row in chosen
  ]


def test_sets_need_examples_for_calibration(members, monkeypatch):
  monkeypatch.setattr(Loaded, "program", lambda *_: pytest.fail("predicted before"))
  with pytest.raises(ConfigError, match=r"train with data\.calibration=0\.1"):
    vitx.predict(members[0], np.zeros((1, 8, 8, 1), np.uint8), coverage=0.9)
  with pytest.raises(ConfigError, match=r"train with data\.calibration=0\.1"):
    evaluate(members[0], coverage=0.9)
  with pytest.raises(ConfigError, match="coverage"):
    evaluate(with_data(members[0], calibration=0.2), coverage=1.0)
  with pytest.raises(ConfigError, match="set the thresholds"):
    evaluate(with_data(members[0], calibration=0.2), split="calibration", coverage=0.9)


@pytest.mark.slow  # evaluates, and draws all figures
def test_a_sweep_answers_the_commands(sweep, tmp_path, capsys):
  assert main(["evaluate", "--workdir", str(sweep), "--report", str(tmp_path / "report")]) == 0
  shown = capsys.readouterr().out
  assert "checkpoint [40, 40]" in shown and "calibrated on 287 examples" in shown
  page = (tmp_path / "report" / "index.html").read_text()
  assert "Sets for a coverage of 90%" in page and "temperature" not in page
  digits = open_source(runs.tiny().data, seed=0).test
  np.savez(tmp_path / "digit.npz", image=digits[0]["image"])
  options = ["--coverage", "0.99", "--json", str(tmp_path / "p.json")]
  assert main(["predict", "--workdir", str(sweep), str(tmp_path / "digit.npz"), *options]) == 0
  (row,) = json.loads((tmp_path / "p.json").read_text())
  assert capsys.readouterr().out.splitlines()[1].endswith(", ".join(row["set"]))
  assert row["set"][0] == row["prediction"] and len(row["set"]) > 1


def test_a_report_of_a_run_has_sets_beside_its_temperature(members):
  model = with_data(members[0], calibration=0.2)
  result = evaluate_split(model, calibrate=True, coverage=0.9, limit=60).result
  assert result["calibration"]["fitted_examples"] > 30 and result["sets"]["coverage"] == 0.9
