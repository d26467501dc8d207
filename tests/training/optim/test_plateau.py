"""The plateau schedule against PyTorch's ReduceLROnPlateau, recorded by tests/golden."""

import json
from pathlib import Path

import pytest

from vitx.config.errors import ConfigError
from vitx.training.optim.plateau import Plateau

CASES = json.loads((Path(__file__).parents[2] / "golden" / "plateau.json").read_text())


def spec(settings):
  """PyTorch's settings in our words."""
  ours = {"minimum" if key == "min_lr" else key: value for key, value in settings.items()}
  return {"name": "plateau", "warmup": "1 epochs", **ours}


def test_the_recording_has_falls_and_stays():
  falls = sum(case["rates"][-1] < 1 for case in CASES)
  assert 0 < falls < len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["settings"]))
def test_scale_is_pytorchs_rate(case):
  plateau = Plateau.from_config(spec(case["settings"]))
  scales = []
  for metric in case["metrics"]:
    plateau = plateau.update(metric)
    scales.append(plateau.scale)
  assert scales == case["rates"]


@pytest.mark.parametrize("case", CASES[2::4], ids=lambda case: str(case["settings"]))
def test_goes_on_exactly_from_json_at_every_evaluation(case):
  settings = spec(case["settings"])
  plateau = Plateau.from_config(settings)
  for metric in case["metrics"]:
    text = json.dumps(plateau.to_dict(), allow_nan=False)
    assert Plateau.from_config(settings, json.loads(text)) == plateau
    plateau = Plateau.from_config(settings, json.loads(text)).update(metric)
  assert plateau.scale == case["rates"][-1]


def test_a_metric_that_is_no_number_is_bad():
  plateau = Plateau(patience=0).update(float("nan"))
  assert plateau.scale == 0.1
  assert plateau.update(5.0).best == 5.0


@pytest.mark.parametrize(
  "settings, message",
  [
    (dict(patiense=3), r"schedule\.patiense.*Did you mean 'patience'"),
    (dict(bad=3), r"schedule\.bad"),
    (dict(mode="low"), r"schedule\.mode='low'.*max, min"),
    (dict(threshold_mode="share"), r"schedule\.threshold_mode='share'"),
    (dict(factor=1.0), r"schedule\.factor=1\.0.*\(0, 1\)"),
    (dict(factor="half"), r"schedule\.factor='half'"),
    (dict(minimum=2.0), r"schedule\.minimum=2\.0"),
    (dict(patience=-1), r"schedule\.patience=-1"),
    (dict(cooldown=1.5), r"schedule\.cooldown=1\.5"),
  ],
)
def test_bad_settings(settings, message):
  with pytest.raises(ConfigError, match=message):
    Plateau.from_config(spec(settings))


def test_a_state_of_another_kind_is_refused():
  with pytest.raises(ValueError, match="scale, best, bad, cooling"):
    Plateau.from_config({"name": "plateau"}, {"scale": 1.0})
