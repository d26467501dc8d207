"""Runs of several phases, such as a pretraining and a fine-tuning, in one workdir.

`config.phases` maps the name of each phase to the fields that it changes in the config. The phases
run in alphabetical order of their names. Each phase is a run in its own directory, `WORKDIR/NAME`,
and starts from the best checkpoint of the phase before. Loading the workdir loads the last phase
that has a checkpoint.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vitx.checkpoints import workdir as wd
from vitx.config import fields, registry
from vitx.config.errors import ConfigError, listing, naming
from vitx.config.fields import RunSettings
from vitx.config.settings import change
from vitx.data import sources
from vitx.models import resolve_model
from vitx.runtime import parallel
from vitx.runtime.signals import count_received
from vitx.runtime.weights import check_teacher
from vitx.tasks import settle
from vitx.training import durations, loop
from vitx.training.distributed import is_writer
from vitx.training.experiment import Experiment, find_multiple, halve_batch, make_experiment
from vitx.training.loop import Result
from vitx.training.record import provenance
from vitx.training.restore import check_phase, check_source

PREFIX = "phase:"  # precedes a phase's name in a field that also takes a workdir or a file
# The fields that decide where a run ends.
ENDS = ("stop_after", "duration", "evaluation.stop_early")


def train(
  config: ConfigDict, workdir: str | Path, *, dry_run: bool = False, trust_code: bool = False
) -> Result:
  """Trains a config, in one run or in its phases, or continues the run that the workdir holds.

  A phase starts from the best checkpoint of the phase before, unless it sets `init_from`. The
  values of `init_from` and `task.teacher` may be "phase:NAME". All phases are checked before the
  first begins. If `stop_after` is set for the whole run, it applies to every phase that sets none,
  and the run ends with the first phase that it stops early.

  Args:
    config: The config that `get_config` returned.
    workdir: A directory or a URL such as `gs://...`; created if absent.
    dry_run: Whether to train nothing and write nothing, but to compile and to print parameters,
      memory and seconds per step.
    trust_code: Whether to import the Python code that the config of a teacher or of the run in
      `init_from` refers to.

  Returns:
    The outcome of the run, or of the last phase that began: `workdir`, `step`, whether the run is
    `finished`, and `test`, the figures of the best checkpoint on the test examples.

  Raises:
    ConfigError: A setting cannot work; nothing was compiled or changed.
    NonFiniteError, OutOfMemoryError, CheckpointError: A run failed, see `loop.train`.
  """
  wd.check_name(workdir)
  with contextlib.suppress(ConfigError):  # reported later, with the name of its phase
    use_cores([config])
  with registry.trusting(trust_code or None):
    if not config.get("phases"):
      return loop.train(config, workdir, dry_run=dry_run)
    return _train_phases(config, str(workdir), dry_run)


@sources.sharing()
def _train_phases(config: ConfigDict, workdir: str, dry_run: bool) -> Result:
  """Trains the phases of a run in order, until one of them ends the run."""
  phases = split_phases(config, workdir)
  experiments, runs = check(config, workdir), [wd.join(workdir, name) for name in phases]
  _check_beginnings(dict(zip(runs, experiments, strict=True)), dry_run)
  if not dry_run:
    wd.check_writable(workdir, in_phases=True)
    if is_writer():
      wd.write_json(workdir, wd.PHASES, {"phases": list(phases)})
  before = count_received()
  for (name, phase), run, experiment in zip(phases.items(), runs, experiments, strict=True):
    print(f"{name}:", flush=True)
    if dry_run and phase.init_from in runs:
      phase = change(phase, {"init_from": ""})  # a dry run needs no such weights
    result = loop.train(phase, run, dry_run=dry_run)
    # A signal may have come at the end of a phase, too late to break it off.
    is_stopped = name != list(phases)[-1] and count_received() > before
    if is_stopped or not result.finished:
      result = dataclasses.replace(result, finished=False)
      break
    if not dry_run and _ends_run(config, name, experiment):
      print(
        f"stop_after={config.stop_after!r} ended {name} before its duration. The later phases begin"
        f" once {name} is complete; remove stop_after and give the same command again.",
        flush=True,
      )
      break
  return result


def _check_beginnings(experiments: Mapping[str, Experiment], dry_run: bool) -> None:
  """Checks before training that each phase will be able to begin when its turn comes."""
  for run, experiment in experiments.items():
    settings, source = experiment.settings, experiment.task.teacher
    with naming(f"phases.{run.rpartition('/')[2]}"):
      if (before := experiments.get(settings.init_from or "")) is not None:
        check_phase(experiment, before)
      else:
        check_source(experiment, run, writes=not dry_run)
      if not dry_run:
        fixed = ENDS if _has_successor(run, experiments) else ()
        provenance.check_same_run(run, settings, experiment.source.info.fingerprint, fixed)
      if source is not None:
        check_teacher(source, settings, experiments.get(source.source))


def _ends_run(config: ConfigDict, name: str, experiment: Experiment) -> bool:
  """Returns whether a phase is stopped early by a `stop_after` that is set for the whole run."""
  whole = durations.to_steps(experiment.settings.duration, experiment.steps_per_epoch)
  return "stop_after" not in config.phases[name] and experiment.total_steps < whole


def _has_successor(run: str, experiments: Mapping[str, Experiment]) -> bool:
  """Returns whether a later phase has trained from a phase that would now train further."""
  return max(wd.list_steps(run), default=0) < experiments[run].total_steps and any(
    run in (later.settings.init_from, later.settings.task.get("teacher")) and wd.list_steps(place)
    for place, later in experiments.items()
  )


def use_cores(configs: Iterable[Mapping[str, Any]]) -> None:
  """Splits a CPU into as many devices as suit the batches of all runs, see `parallel.use_cores`."""
  runs: list[RunSettings] = []
  for config in configs:
    runs += split_phases(config, "").values() if config.get("phases") else [settle.read(config)]
  batches = [halve_batch(run, 0) // run.grad_accum_steps for run in runs]
  parallel.use_cores(batches, multiple=max(map(find_multiple, runs)))


def check(config: ConfigDict, workdir: str | Path) -> list[Experiment]:
  """Returns the experiment of each phase, which checks everything that needs no compiling.

  A config without phases has a single experiment. The config of a teacher may name Python code,
  which is imported only as `registry.trusting` allows.
  """
  if not config.get("phases"):
    return [make_experiment(config, is_trial=True)]
  experiments = []
  for name, phase in split_phases(config, str(workdir)).items():
    with naming(f"phases.{name}"):
      experiments.append(make_experiment(phase, is_trial=True))
  return experiments


def split_phases(config: ConfigDict, workdir: str) -> dict[str, RunSettings]:
  """Returns the settings of each phase of a run, by its name, in the order in which they run."""
  phases: dict[str, RunSettings] = {}
  for name in sorted(config.get("phases") or ()):
    changes = config.phases[name]
    phase = config.copy_and_resolve_references()
    with phase.unlocked():
      phase.phases = ConfigDict()
      _change(phase, changes, f"phases.{name}")
    with naming(f"phases.{name}"):
      settings = settle.read(phase)
    is_successor = phases and "init_from" not in changes
    source = PREFIX + next(reversed(phases)) if is_successor else settings.init_from or ""
    source = _locate(source, "init_from", name, phases, workdir)
    settings = change(settings, {"init_from": source})
    if settings.task.get("teacher"):
      settings = _share_teacher(settings, name, phases, workdir)
    phases[name] = settings
  return phases


def _change(config: ConfigDict, changes: Mapping[str, Any], where: str) -> None:
  """Applies the changes of a phase to a config in place."""
  for key, value in changes.items():
    old = config.get(key)
    if key not in config and "name" not in config:
      raise ConfigError(
        f"{where}.{key}: the config has no field {key!r}.{fields.suggest(str(key), config)}"
      )
    is_group = isinstance(value, ConfigDict) and isinstance(old, ConfigDict)
    if is_group and value.get("name", old.get("name")) == old.get("name"):
      _change(old, value, f"{where}.{key}")
    else:
      is_choice = isinstance(old, str) or (isinstance(old, ConfigDict) and "name" in old)
      if is_choice and type(old) is not type(value):
        del config[key]  # a choice may be a name, or a name with fields
      if isinstance(value, ConfigDict):  # a copy, in which fields are set later
        value = value.copy_and_resolve_references().unlock()
      try:
        config[key] = value
      except TypeError as error:
        raise ConfigError(f"{where}.{key}={value!r} must be a value like {old!r}.") from error


def _share_teacher(
  settings: RunSettings, name: str, phases: Mapping[str, RunSettings], workdir: str
) -> RunSettings:
  """Replaces a teacher "phase:NAME" by that phase's workdir, and adds the config of its network."""
  source = settings.task.teacher
  changes: dict[str, Any] = {"task.teacher": _locate(source, "task.teacher", name, phases, workdir)}
  if source.startswith(PREFIX) and settings.task.get("teacher_model") is None:
    other = source.removeprefix(PREFIX)
    with naming(f"phases.{other}"):  # the teacher keeps the random graphs of its training
      seed = fields.seed_of(phases[other], "graph_seed")
      changes["task.teacher_model"] = resolve_model(phases[other].model, seed=seed)
  return change(settings, changes)


def _locate(
  source: str, field: str, name: str, phases: Mapping[str, RunSettings], workdir: str
) -> str:
  """Returns the workdir of the phase in "phase:NAME"; any other source is returned unchanged."""
  if not source.startswith(PREFIX):
    return source
  other = source.removeprefix(PREFIX)
  if other not in phases:
    raise ConfigError(
      f"phases.{name}.{field}={source!r} must name an earlier phase ({listing(phases) or 'none'})."
    )
  return wd.join(workdir, other)
