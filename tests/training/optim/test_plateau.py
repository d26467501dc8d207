"""The plateau schedule against PyTorch's ReduceLROnPlateau, recorded by tests/golden."""

import json
from pathlib import Path

import pytest

from vitx.config.registry import build
from vitx.training.optim.schedules import SCHEDULES, RunLength

CASES = json.loads((Path(__file__).parents[2] / "golden" / "plateau.json").read_text())


def make(settings):
  """Makes vitx's schedule from PyTorch's settings."""
  ours = {"minimum" if key == "min_lr" else key: value for key, value in settings.items()}
  spec = {"name": "plateau", "warmup": "1 epochs", **ours}
  return build(SCHEDULES, spec, "schedule", hidden=("run",))(RunLength(100, 10))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["settings"]))
def test_the_scale_agrees_with_pytorch_and_passes_through_json(case):
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
