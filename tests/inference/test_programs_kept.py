"""Functions that are called in a loop compile once, since the process keeps the programs."""

import dataclasses
import sys
import types

import jax
import pytest

import vitx
from vitx.checkpoints import load as loading
from vitx.config.errors import ConfigError
from vitx.data.sources import open_source
from vitx.inference.convert import export_weights
from vitx.inference.evaluate import evaluate
from vitx.inference.predict import predict
from vitx.inference.visualize import open_subject
from vitx.models.vit import ViT
from vitx.ops.implementation import choosing_by, current_rule
from vitx.runtime import cache
from vitx.sweeps.results import measure_sweep

_compiled: list[str] = []


def _note(event, seconds, **about):
  if "backend_compile" in event:
    _compiled.append(about.get("fun_name", ""))


jax.monitoring.register_event_duration_secs_listener(_note)


@pytest.fixture(scope="module")
def pictures(finished_run):
  config = vitx.load(finished_run[0]).config
  test = open_source(config.data, 0).test
  return [test[i]["image"] for i in range(3)]


def test_evaluate_and_predict_in_a_loop_compile_once(finished_run, pictures):
  workdir, loaded = finished_run[0], vitx.load(finished_run[0])
  calls = {
    "evaluate": lambda: evaluate(workdir, limit=20)["nll"],
    "evaluate a part": lambda: evaluate(workdir, limit=20, batch_size=8)["nll"],
    "predict": lambda: predict(workdir, pictures).logits.sum(),
    "predict with features": lambda: predict(workdir, pictures, features=True).features.sum(),
    "of one that is loaded": lambda: evaluate(loaded, limit=20)["nll"],
    "load": lambda: vitx.load(workdir).step,
  }
  first = {name: call() for name, call in calls.items()}
  _compiled.clear()
  for _ in range(2):
    assert {name: call() for name, call in calls.items()} == first
  assert not _compiled


class EnabledError(Exception):
  """An error that a test raises where the compilation cache would be enabled."""


# Calls of functions that compile a model, by the name of the command.
CALLS = {
  "predict": lambda run, out: predict(run, []),
  "convert": lambda run, out: export_weights(run, out / "a.safetensors"),
  "visualize a config": lambda run, out: open_subject(config="digits"),
  "visualize results": lambda run, out: measure_sweep("a", "digits"),
}


@pytest.mark.parametrize("name", CALLS)
def test_compiled_programs_are_cached_as_in_training(name, finished_run, tmp_path, monkeypatch):
  def enable():
    raise EnabledError

  monkeypatch.setattr(cache, "enable", enable)
  with pytest.raises(EnabledError):
    CALLS[name](finished_run[0], tmp_path)


@pytest.fixture
def config(finished_run):
  return vitx.load(finished_run[0]).config.copy_and_resolve_references()


@pytest.mark.parametrize(
  ("field", "value", "is_other"),
  [
    ("seed", 5, False),
    ("learning_rate", 1.0, False),
    ("model.depth", 3, True),
    ("data.mean", (0.25,), True),
    ("evaluation.crop_ratio", 0.5, True),
    ("task.label_smoothing", 0.4, True),
  ],
)
def test_some_fields_decide_the_task(config, field, value, is_other):
  before = loading.build_once(config)
  config.update_from_flattened_dict({field: value})
  assert (loading.build_once(config)[0] is not before[0]) == is_other


def test_another_rule_makes_another_program(config):
  before, rule = loading.build_once(config)[0], current_rule()

  with choosing_by(dataclasses.replace(rule, masked={**rule.masked, "linear": ((9, 9),)})):
    assert loading.build_once(config)[0] is not before
  assert loading.build_once(config)[0] is before


def test_redefined_code_makes_another_program(config, monkeypatch):
  """A class that a cell of a notebook defines again gives another program."""
  module = types.ModuleType("a_cell")
  monkeypatch.setitem(sys.modules, "a_cell", module)
  built = []
  config.model.name = "a_cell:Mine"
  for _ in range(2):
    module.Mine = type("Mine", (ViT,), {"__annotations__": {}})
    with vitx.config.registry.trusting(True):
      built += [loading.build_once(config)[0], loading.build_once(config)[0]]
  assert built[0] is built[1] and built[2] is built[3] and built[0] is not built[2]
  assert type(built[2].model) is module.Mine


def test_code_is_imported_again(config, tmp_path, monkeypatch):
  """A task that was built with a module is not used after the module was imported again."""
  (tmp_path / "a_file.py").write_text("from vitx.models.vit import ViT\nclass Mine(ViT):\n  pass\n")
  monkeypatch.syspath_prepend(str(tmp_path))
  config.model.name = "a_file:Mine"
  for _ in range(2):
    monkeypatch.delitem(sys.modules, "a_file", raising=False)
    with vitx.config.registry.trusting(True):
      first, second = loading.build_once(config)[0], loading.build_once(config)[0]
    assert first is second and type(first.model) is sys.modules["a_file"].Mine


def test_trust_is_checked_at_every_call(config, monkeypatch):
  module = types.ModuleType("a_cell")
  module.Mine = type("Mine", (ViT,), {"__annotations__": {}})
  monkeypatch.setitem(sys.modules, "a_cell", module)
  config.model.name = "a_cell:Mine"
  with vitx.config.registry.trusting(True):
    loading.build_once(config)
  with vitx.config.registry.trusting(False), pytest.raises(ConfigError, match="trust_code"):
    loading.build_once(config)


def test_programs_are_few_and_belong_to_one_task(finished_run):
  loaded = vitx.load(finished_run[0])
  for number in range(20):
    assert loaded.program(("a", number), lambda number=number: number) == number
  assert len(loaded.programs) == loading.PROGRAMS_KEPT
  config = loaded.config.copy_and_resolve_references()
  config.task.label_smoothing = 0.3

  other = dataclasses.replace(loaded, task=loading.build_once(config)[0])
  assert other.program(("a", 19), lambda: "new") == "new"
