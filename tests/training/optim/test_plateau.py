"""The plateau schedule against PyTorch's ReduceLROnPlateau, recorded by tests/golden."""

import json
from pathlib import Path

import pytest

from vitx.config.errors import ConfigError
from vitx.config.registry import build
from vitx.training.optim.schedules import SCHEDULES, RunLength

CASES = json.loads((Path(__file__).parents[2] / "golden" / "plateau.json").read_text())


def make(settings):
  """Makes vitx's schedule from PyTorch's settings."""
  ours = {"minimum" if key == "min_lr" else key: value for key, value in settings.items()}
  spec = {"name": "plateau", "warmup": "1 epochs", **ours}
  return build(SCHEDULES, spec, "schedule", hidden=("run",))(RunLength(100, 10))


def test_the_recording_has_falls_and_stays():
  falls = sum(case["rates"][-1] < 1 for case in CASES)
  assert 0 < falls < len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["settings"]))
def test_scale_is_pytorchs_rate_and_the_state_passes_through_json(case):
  state, scales = None, []
  for metric in case["metrics"]:
    state = make(case["settings"]).update(state, metric)
    scales.append(state["scale"])
    state = json.loads(json.dumps(state, allow_nan=False))
  assert scales == case["rates"]


def test_a_metric_that_is_no_number_is_bad():
  plateau = make(dict(patience=0))
  state = plateau.update(None, float("nan"))
  assert state["scale"] == 0.1
  assert plateau.update(state, 5.0)["best"] == 5.0


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
    make(settings)
