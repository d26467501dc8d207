"""A run of several phases: the fields that each changes, its initial weights, its resumption."""

import json
import shutil
import signal

import numpy as np
import pytest
from ml_collections import ConfigDict

import vitx
from configs import sparsifiner_small
from tests import runs
from vitx.checkpoints.load import load
from vitx.checkpoints.tree import name_arrays
from vitx.checkpoints.workdir import to_plain
from vitx.config import registry, with_overrides
from vitx.config.describe import complete
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.data import sources
from vitx.runtime.signals import StopRequest
from vitx.tasks.classification import Classification
from vitx.training import compilation, loop, phases
from vitx.training.record import provenance

STEPS = ("evaluation.every=4 steps", "checkpoint.every=4 steps", "log_every=1 steps")
SMALL = "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=32,stem=linear,stem.patch=2"


def journey(*overrides: str):
  """Returns a config of three small phases, with eight steps each."""
  config = sparsifiner_small.get_config("digits_keep_0.5")
  steps = [
    f"{phase}{field}"
    for phase in ("phases.phase0.", "phases.phase1.", "")
    for field in ("duration=8 steps", "schedule.warmup=2 steps")
  ]
  small = SMALL.split(",")
  teacher = [f"task.teacher_{item}" for item in small if item.startswith("model")]
  teacher += ["task.teacher_model.stem={'name': 'linear', 'patch': 2}"]
  first = [f"phases.phase0.{item}" for item in small if item.startswith("model")]
  first += ["phases.phase0.model.stem={'name': 'linear', 'patch': 2}"]
  return with_overrides(config, ",".join([*small, *teacher, *first, *steps, *STEPS, *overrides]))


def test_phases_run_in_order_each_from_the_one_before():
  split = phases.split_phases(journey(), "w")
  assert list(split) == ["phase0", "phase1", "phase2"]
  assert [phase.init_from for phase in split.values()] == ["", "w/phase0", "w/phase1"]
  assert split["phase0"].task.name == "classification"
  assert [split[name].task.teacher for name in ("phase1", "phase2")] == ["w/phase0"] * 2
  assert [phase.model.token_mixer.get("sparse") for phase in split.values()] == [None, False, None]
  # A choice of another name replaces the config's choice; a choice of that name changes it.
  assert split["phase0"].model.token_mixer == {"name": "softmax"}
  assert split["phase1"].model.token_mixer.keep == 0.5
  assert split["phase2"].freeze and split["phase1"].freeze != split["phase2"].freeze


def test_a_dry_run_opens_the_data_once_and_needs_no_weights_of_earlier_phases(
  tmp_path, monkeypatch
):
  seen, opened, open_dataset = [], [], sources.open_dataset
  monkeypatch.setattr(compilation, "dry_run", seen.append)
  monkeypatch.setattr(sources, "open_dataset", lambda data: opened.append(1) or open_dataset(data))
  config = in_phases(a={}, b={"task": LEARNS})
  assert phases.train(config, tmp_path / "run", dry_run=True).finished and opened == [1]
  assert ["teacher" in experiment.constants for experiment in seen] == [False, True]
  assert not (tmp_path / "run").exists()


def test_the_first_phase_gives_the_teachers_network():
  config = journey()
  with config.unlocked():
    config.task.teacher_model = None
  split = phases.split_phases(config, "w")
  assert split["phase2"].task.teacher_model == split["phase0"].model


LEARNS = {"name": "distillation", "teacher": "phase:a", "hard_weight": 1.0}


@pytest.mark.parametrize(("graph_seed", "seed"), [(None, 5), (0, 0)])
def test_a_phases_network_teaches_with_the_random_graphs_of_its_training(graph_seed, seed):
  fields = {"graph_seed": graph_seed, "model": {"token_mixer": {"name": "bigbird", "block": 2}}}
  split = phases.split_phases(in_phases(a={"seed": 5, **fields}, b={"task": LEARNS}), "w")
  assert split["b"].task.teacher_model.token_mixer.seed == seed


OTHER = runs.tiny().model.to_dict() | {"width": 32}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"a": {"sed": 1}}, r"phases\.a\.sed: the config has no field 'sed'.*Did you mean 'seed'"),
    ({"a": {"init_from": "phase:b"}}, r"phases\.a\.init_from='phase:b' must name an earlier phase"),
    (
      {"a": {}, "b": {"task": {"name": "distillation", "teacher": "phase:c"}}},
      r"phases\.b\.task\.teacher='phase:c' must name an earlier phase \(a\)",
    ),
    (
      {"a": {"model": {"width": 8}}, "b": {}},
      r"phases\.b: init_from=.*/a' does not fit.* 8 channels, the config 16\. Set model\.width=8",
    ),
    ({"a": {}, "b": {"init_from": "nowhere"}}, r"phases\.b: init_from='nowhere': .*is missing"),
    (
      {"a": {}, "b": {"task": LEARNS, "data": {"mean": (0.1,)}}},
      r"phases\.b: task\.teacher=.*/a' was trained with data\.mean=.* Set data\.mean",
    ),
    (
      {
        "a": {"model": {"width": 8}},
        "b": {"init_from": "", "task": {**LEARNS, "teacher_model": OTHER}},
      },
      r"phases\.b: task\.teacher=.*/a'.*shape",
    ),
  ],
)
def test_phases_that_cannot_work_are_refused_before_the_first_begins(tmp_path, changes, message):
  with pytest.raises(ConfigError, match=message):
    phases.train(in_phases(**changes), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_the_workdir_of_phases_is_the_last_with_a_checkpoint(tmp_path):
  from vitx.checkpoints.workdir import find_run

  assert find_run(tmp_path) == str(tmp_path)
  (tmp_path / "phases.json").write_text(json.dumps({"phases": ["one", "two", "three"]}))
  assert find_run(tmp_path) == f"{tmp_path}/one"
  for name in ("one", "two"):
    (tmp_path / name / "checkpoints" / "8").mkdir(parents=True)
  (tmp_path / "three" / "checkpoints").mkdir(parents=True)  # it has begun, and saved nothing yet
  assert find_run(tmp_path) == f"{tmp_path}/two"
  (tmp_path / "three" / "checkpoints" / "4").mkdir(parents=True)
  assert find_run(tmp_path) == f"{tmp_path}/three"


def test_a_workdir_has_either_phases_or_one_run(tmp_path, monkeypatch):
  """Otherwise, the phases would be loaded in place of the run."""
  calls = []
  monkeypatch.setattr(loop, "open_run", lambda *args: calls.append(args))
  for name, content, config in (
    ("phases.json", '{"phases": ["a"]}', runs.tiny()),
    ("config.json", '{"seed": 0}', in_phases(a={})),
  ):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"has {name}.*another directory"):
      phases.train(config, tmp_path)
    path.unlink()
  assert not calls


@pytest.mark.slow
def test_a_signal_at_the_end_of_a_phase_ends_the_run(tmp_path, monkeypatch):
  ran = []

  def train(config, workdir, **_):
    ran.append(workdir.rpartition("/")[2])
    with StopRequest() as request:
      request._handle(signal.SIGTERM, None)  # after the run has last looked for a signal
    return loop.Result(workdir, 8, True)

  monkeypatch.setattr(loop, "train", train)
  assert not phases.train(in_phases(a={}, b={}), tmp_path).finished and ran == ["a"]


class Mine(Classification):
  """A user's task."""


def in_phases(**phases):
  """Returns the tiny config with phases."""
  config = runs.tiny()
  with config.unlocked():
    config.phases = phases
  return config


@pytest.fixture
def begun(monkeypatch):
  """Records for each phase whether it may read code of `Mine`; nothing is trained."""
  trusted = {}

  def train(config, workdir, **_):
    with registry.trusting(False):  # as the weights of another phase are read
      trusted[workdir.rpartition("/")[2]] = registry.is_allowed(f"{__name__}:Mine")
    return loop.Result(workdir, 6, True)

  monkeypatch.setattr(loop, "train", train)
  return trusted


@pytest.mark.slow
def test_a_phase_has_a_task_of_another_name_than_the_config(tmp_path, begun):
  """A phase may set its task as a group, as a bare name, or as a user's class.

  Another phase begins from the one with the user's class.
  """
  task = {"name": f"{__name__}:Mine"}
  config = in_phases(a={"task": task}, b={"task": ConfigDict(LEARNS)}, c={"task": "classification"})
  before = config.to_dict()
  split = phases.split_phases(config, "w")
  names = [phase.task.name for phase in split.values()]
  assert names == [task["name"], "distillation", "classification"]
  assert split["b"].task.teacher_model == config.model.to_dict()
  assert config.to_dict() == before and split["b"].task.teacher == "w/a"
  assert phases.train(config, tmp_path).finished
  assert list(begun.values()) == [True] * 3  # the run trusts the code that its config names


def test_a_phase_of_another_run_is_refused_before_the_first_begins(tmp_path, begun):
  config = in_phases(a={}, b={})
  stored = to_plain(phases.split_phases(config, str(tmp_path))["b"]) | {"batch_size": 16}
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "config.json").write_text(json.dumps(stored))
  with pytest.raises(ConfigError, match=r"phases\.b: workdir=.*\n.*batch_size: 16 in the workdir"):
    phases.train(config, tmp_path)
  assert not begun


def test_a_phase_goes_on_with_its_very_data_in_another_place(tmp_path, begun):
  config = in_phases(a={}, b={})
  experiment = phases.check(config, tmp_path)[1]
  stored = to_plain(experiment.settings) | {"data": {**experiment.settings.data, "source": "moved"}}
  data = {"fingerprint": experiment.source.info.fingerprint}
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "config.json").write_text(json.dumps(to_plain(stored)))
  (tmp_path / "b" / "environment.json").write_text(json.dumps({"data": data}))
  assert phases.train(config, tmp_path).finished and list(begun) == ["a", "b"]


@pytest.mark.parametrize(
  ("override", "ran"),
  [
    ("stop_after=6", ["a"]),  # of the whole run, which can be resumed there
    ("phases.a.stop_after=6", ["a", "b"]),  # only of this phase
    ("stop_after=40", ["a", "b"]),  # the step where each phase ends
    ("stop_after=50", ["a", "b"]),  # beyond every phase
  ],
)
def test_a_stop_of_the_whole_run_keeps_later_phases_from_beginning(tmp_path, begun, override, ran):
  config = with_overrides(in_phases(a={}, b={}), override)
  assert phases.train(config, tmp_path).finished and list(begun) == ran


def test_a_phase_with_a_successor_keeps_its_end(tmp_path, begun):
  """A phase may not end elsewhere once the next phase has begun from its weights."""
  config = in_phases(a={}, b={}, c={})
  for name, experiment in zip("abc", phases.check(config, tmp_path), strict=True):
    (tmp_path / name / "checkpoints" / "6").mkdir(parents=True)
    stored = to_plain(experiment.settings) | ({"stop_after": "6 steps"} if name == "a" else {})
    (tmp_path / name / "config.json").write_text(json.dumps(stored))
    (tmp_path / name / "environment.json").write_text('{"data": {"fingerprint": ""}}')
  with pytest.raises(ConfigError, match=r"phases\.a: .*\n  stop_after: '6 steps' in the workdir"):
    phases.train(config, tmp_path)
  assert not begun
  for name in ("b", "c"):
    shutil.rmtree(tmp_path / name)
  assert phases.train(config, tmp_path).finished and len(begun) == 3


def test_a_moved_run_recognizes_its_phases(tmp_path):
  def check(workdir, old, new):
    provenance.check_same_fields(workdir, {"init_from": old}, {"init_from": new}, ())

  (tmp_path / "phases.json").write_text('{"phases": ["a", "b"]}')
  check(tmp_path / "b", "runs/journey/a", f"{tmp_path}/a")
  for old, new in (("runs/journey/c", f"{tmp_path}/a"), ("runs/journey/a", "runs/a")):
    with pytest.raises(ConfigError, match="init_from: "):
      check(tmp_path / "b", old, new)
  with pytest.raises(ConfigError, match="init_from: "):
    check(tmp_path / "c", "runs/a", f"{tmp_path}/a")  # no phase of that run


@pytest.mark.slow  # two whole runs of three phases
def test_the_journey_stops_goes_on_and_ends_as_if_it_had_not_stopped(tmp_path, monkeypatch):
  whole, stopped = tmp_path / "whole", tmp_path / "stopped"
  quick = "steps_per_dispatch=1", "model.token_mixer.implementation=masked"
  config = journey(*quick, *runs.PLAIN)
  result = vitx.train(config, stopped)
  assert result.finished and result.workdir.endswith("phase2")
  shutil.copytree(stopped, whole)
  for name in ("phase1", "phase2"):  # phase0 is not trained again
    shutil.rmtree(stopped / name)
  _stop_in_phase1_then_go_on(config, stopped, monkeypatch)
  for name in ("phase1", "phase2"):
    assert runs.rows(whole / name) == runs.rows(stopped / name)
    a, b = (name_arrays(runs.final_state(w / name)) for w in (whole, stopped))
    for path, x in a.items():
      np.testing.assert_array_equal(x, b[path], err_msg=path)
      assert "teacher" not in path
  _check_what_was_frozen(whole)
  loaded = load(whole)
  assert loaded.workdir.endswith("phase2") and loaded.model.token_mixer.keywords["keep"] == 0.5
  figures = vitx.evaluate(whole)
  assert figures["top1"] == result.test["top1"] and 0 <= figures["coefficient_sparsity"] <= 1
  assert vitx.read_metrics(whole)[-1]["kind"] == "test"


def _stop_in_phase1_then_go_on(config, workdir, monkeypatch):
  """Interrupts a run at the fourth step of its second phase, as a signal would, and resumes it."""
  train = loop._train

  def interrupted(run):
    if run.workdir.endswith("phase1"):
      steps = []
      count = run.recorder.count_step
      run.recorder.count_step = lambda *a: (steps.append(a[0]), count(*a))[1]
      run.request.is_received = lambda: len(steps) >= 3
    return train(run)

  with monkeypatch.context() as patch:
    patch.setattr(loop, "_train", interrupted)
    result = vitx.train(config, workdir)
  assert not result.finished and result.workdir.endswith("phase1") and 0 < result.step < 8
  assert not (workdir / "phase2").exists()
  assert vitx.train(config, workdir).finished


def _check_what_was_frozen(workdir):
  """Checks that the second phase kept its start's backbone, and the third its predictor."""
  best = [name_arrays(load(workdir / f"phase{n}").variables["params"]) for n in range(3)]
  last = [runs.final_state(workdir / f"phase{n}")["params"] for n in range(3)]
  names = [name_arrays(x) for x in last]
  predictor = {name for name in names[2] if name not in names[0]}
  assert len(predictor) == 6
  for name, x in names[2].items():
    if name in predictor:
      np.testing.assert_array_equal(x, best[1][name], err_msg=name)
    else:
      np.testing.assert_array_equal(names[1][name], best[0][name], err_msg=name)
  assert all(np.any(names[2][name] != best[0][name]) for name in names[0])


def test_phases_are_set_by_overrides_and_survive_json(tmp_path):
  row = "configs/sparsifiner_small.py:digits_keep_0.25"
  config = load_config(f"{row},phases.phase1.seed=3,phases.phase1.duration=7,phases.phase3.seed=5")
  assert (config.phases.phase1.seed, config.phases.phase1.duration) == (3, "7")
  assert list(phases.split_phases(config, "w")) == [f"phase{n}" for n in range(4)]
  config = load_config(f"{row},phases.phase2.augment.hflip=0.5,phases.phase2.optimizer=sgd")
  last = phases.split_phases(config, "w")["phase2"]
  assert last.augment.hflip == 0.5 and last.optimizer == {"name": "sgd"}
  path = tmp_path / "config.json"
  path.write_text(json.dumps(complete(load_config(row))))
  once, again = (phases.split_phases(load_config(c), "w") for c in (row, str(path)))
  assert {k: complete(c)["task"] for k, c in once.items()} == {
    k: complete(c)["task"] for k, c in again.items()
  }
