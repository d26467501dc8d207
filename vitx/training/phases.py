"""Runs of several phases, such as a pretraining and a fine-tuning, in one workdir.

`config.phases` maps the name of each phase to the fields that it changes in the config. The phases
run in alphabetical order of their names. Each phase is a run in its own directory, `WORKDIR/NAME`,
and starts from the best checkpoint of the phase before. Loading the workdir loads the last phase
that has a checkpoint.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vitx.checkpoints import own_files, unevaluated
from vitx.checkpoints import workdir as wd
from vitx.config import registry
from vitx.config.errors import ConfigError, listing
from vitx.config.fields import (
  MISSING,
  check_config,
  check_is_config,
  find,
  seed_of,
  set_groups,
  suggest,
)
from vitx.models import resolve_model
from vitx.training import durations, loop, parallel, teacher
from vitx.training.distributed import is_writer
from vitx.training.experiment import Experiment, halve_batch, make_experiment
from vitx.training.failures import count_received
from vitx.training.loop import Result
from vitx.training.record import provenance
from vitx.training.restore import check_phase, check_source

PREFIX = "phase:"  # precedes a phase's name in a field that also takes a workdir or a file
# The fields that decide where a run ends.
ENDS = ("stop_after", "duration", "evaluation.stop_early")
MIX = ("mixup", "cutmix")  # operations on pairs of images, which lie on one device


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
  check_is_config(config)
  wd.check_name(workdir)
  with contextlib.suppress(ConfigError):  # reported later, with the name of its phase
    use_cores([config])
  with registry.trusting(trust_code or None):
    if not config.get("phases"):
      return loop.train(config, workdir, dry_run=dry_run)
    return _train_phases(config, str(workdir), dry_run)


def _train_phases(config: ConfigDict, workdir: str, dry_run: bool) -> Result:
  """Trains the phases of a run in order, until one of them ends the run."""
  phases = split_phases(config, workdir)
  experiments, runs = check(config, workdir), [wd.join(workdir, name) for name in phases]
  _check_ends(phases, experiments, workdir)
  _check_beginnings(experiments, runs, dry_run)
  if not dry_run:
    for run in runs:
      own_files.check_no_link(run)
    wd.check_writable(workdir, in_phases=True)
    if is_writer():
      wd.write_json(workdir, wd.PHASES, {"phases": list(phases)})
  before = count_received()
  for (name, phase), run, experiment in zip(phases.items(), runs, experiments, strict=True):
    print(f"{name}:", flush=True)
    if dry_run and phase.init_from in runs:
      phase.init_from = ""  # a dry run has no such weights, and needs none
    is_taught = dry_run and phase.task.get("teacher") in runs  # nor those of this teacher
    # A dry run does not check whether the workdir belongs to this run.
    is_own = not dry_run and _begins_from_own(phase, runs)
    with registry.trusting(is_own or None):
      result = loop.train(phase, run, dry_run=dry_run, blank_teacher=is_taught)
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


def _begins_from_own(phase: ConfigDict, runs: Sequence[str]) -> bool:
  """Returns whether a phase takes its initial weights and its teacher from the run's own phases.

  Then no further code needs trust, since the code that these phases' configs name has already run.

  Args:
    phase: The config of the phase, with its `init_from` and its teacher.
    runs: The workdirs of all phases of the run.
  """
  return {phase.init_from, phase.task.get("teacher", "")} <= {"", *runs}


def _check_beginnings(
  experiments: Sequence[Experiment], runs: Sequence[str], dry_run: bool
) -> None:
  """Checks before training that each phase will be able to begin when its turn comes.

  Args:
    experiments: The experiments of the phases.
    runs: The workdirs of the phases.
    dry_run: Whether the run is a dry run, which writes nothing.

  Raises:
    ConfigError: A phase's weights or teacher do not fit, or the phase's workdir has a run of
      another config.
  """
  for run, experiment in zip(runs, experiments, strict=True):
    config, source = experiment.config, experiment.task.teacher
    name = run.rpartition("/")[2]
    try:
      if config.init_from not in runs:
        check_source(experiment, run, writes=not dry_run)
      else:
        before = experiments[runs.index(config.init_from)]
        if not (registry.is_trusted() or _begins_from_own(config, runs)):
          parts = {"task": before.config.task, "model": before.config.model}
          registry.refuse_names_of_code(parts, "")
        check_phase(experiment, before)
      if not dry_run:
        provenance.check_same_run(run, config, experiment.source.info.fingerprint)
      if source is not None and source.source in runs:
        other = experiments[runs.index(source.source)]
        teacher.check_run(experiment.task, config, other.config, other.named_shapes())
      elif source is not None:
        teacher.check_source(experiment.task, config)
    except ConfigError as error:
      raise ConfigError(f"phases.{name}: {error}") from error


def _ends_run(config: ConfigDict, name: str, experiment: Experiment) -> bool:
  """Returns whether a phase is stopped early by a `stop_after` that is set for the whole run."""
  own, per_epoch = experiment.config, experiment.steps_per_epoch
  whole = durations.to_steps(own.duration, per_epoch, "duration")
  return "stop_after" not in config.phases[name] and experiment.total_steps < whole


def _check_ends(
  phases: Mapping[str, ConfigDict], experiments: Iterable[Experiment], workdir: str
) -> None:
  """Checks that no phase would train further after a later phase has begun from its weights.

  Raises:
    ConfigError: A field in `ENDS` has changed, so that a phase would end at a later step than the
      one from which another phase began.
  """
  for name, experiment in zip(phases, experiments, strict=True):
    run = wd.join(workdir, name)
    stored = wd.read_json(run, "config.json")
    wanted = experiment.config
    ends = [field for field in ENDS if find(stored, field) not in (MISSING, find(wanted, field))]
    step = unevaluated.find_step(run)
    if not ends or step >= experiment.total_steps:
      continue
    for other, later in phases.items():
      place = wd.join(workdir, other)
      if run in (later.init_from, later.task.get("teacher")) and unevaluated.find_step(place):
        raise ConfigError(
          f"phases.{name}.{ends[0]}={find(wanted, ends[0])!r} was {find(stored, ends[0])!r} when"
          f" {other} began from step {step} of {name}. Restore the old value, or move {place} away"
          f" so that {other} begins again."
        )


def use_cores(configs: Iterable[ConfigDict]) -> None:
  """Splits a CPU into as many devices as suit the batches of all runs, see `parallel.use_cores`.

  Args:
    configs: The configs of all runs of this process, with or without phases.

  Raises:
    ConfigError: A field has a wrong type or is out of range.
  """
  each: list[ConfigDict] = []
  for config in configs:
    if config.get("phases"):
      each += split_phases(config, "").values()  # it has checked every phase
    else:
      check_config(config)
      each.append(config)
  mixes = any(find(phase, f"augment.{name}") not in (MISSING, 0) for phase in each for name in MIX)
  batches = [halve_batch(phase, 0) // phase.grad_accum_steps for phase in each]
  parallel.use_cores(batches, multiple=2 if mixes else 1)


def check(config: ConfigDict, workdir: str | Path) -> list[Experiment]:
  """Builds the experiment of each phase, which checks everything that needs no compiling.

  The config of a teacher may name Python code, which is imported only inside
  `registry.trusting(True)`.

  Args:
    config: The config that `get_config` returned.
    workdir: The directory in which the config would be trained.

  Returns:
    An experiment for each phase, in order; a single one for a config without phases.

  Raises:
    ConfigError: A setting cannot work; the message names the field, and the phase if there is one.
  """
  if not config.get("phases"):
    return [make_experiment(config, is_trial=True)]
  experiments = []
  for name, phase in split_phases(config, str(workdir)).items():
    try:
      experiments.append(make_experiment(phase, is_trial=True))
    except ConfigError as error:
      raise ConfigError(f"phases.{name}: {error}") from error
  return experiments


def split_phases(config: ConfigDict, workdir: str) -> dict[str, ConfigDict]:
  """Returns the config of each phase, by its name, in the order in which the phases run.

  Args:
    config: A config with `phases`.
    workdir: The workdir of the whole run.

  Raises:
    ConfigError: A phase is no group of fields, has a field that does not exist or a value of the
      wrong type, or refers to a phase that does not come before it.
  """
  phases: dict[str, ConfigDict] = {}
  for name in sorted(config.get("phases") or ()):
    changes = config.phases[name]
    if not isinstance(changes, Mapping | ConfigDict) or not re.fullmatch(wd.PHASE_NAME, name):
      raise ConfigError(
        f"phases.{name}={changes!r} must be a group of fields with a name of"
        " letters, digits and _, such as phases.phase1=dict(duration='5 epochs')."
      )
    phase = config.copy_and_resolve_references()
    with phase.unlocked():
      phase.phases = ConfigDict()
      _change(phase, changes, f"phases.{name}")
      set_groups(phase)
      try:
        check_config(phase)
      except ConfigError as error:
        raise ConfigError(f"phases.{name}: {error}") from error
      if phases and "init_from" not in changes:
        phase.init_from = PREFIX + next(reversed(phases))
      phase.init_from = _locate(phase.init_from or "", "init_from", name, phases, workdir)
      if phase.task.get("teacher"):
        _share_teacher(phase.task, name, phases, workdir)
    phases[name] = phase
  return phases


def _change(config: ConfigDict, changes: Mapping[str, Any], where: str) -> None:
  """Applies the changes of a phase to a config in place.

  A change may choose another optimizer, model or the like by its name. Then the fields of the old
  choice are dropped.
  """
  for key, value in changes.items():
    old = config.get(key)
    if key not in config and "name" not in config:
      raise ConfigError(
        f"{where}.{key}: the config has no field {key!r}.{suggest(str(key), config)} Its fields"
        f" are {listing(config)}."
      )
    is_group = isinstance(value, ConfigDict) and isinstance(old, ConfigDict)
    if is_group and value.get("name", old.get("name")) == old.get("name"):
      _change(old, value, f"{where}.{key}")
    elif isinstance(old, ConfigDict) and "name" not in old:
      raise ConfigError(f"{where}.{key}={value!r} must be a group with the fields {listing(old)}.")
    else:
      if isinstance(old, ConfigDict | str) and type(old) is not type(value):
        del config[key]  # a choice may be a name, or a name with fields
      if isinstance(value, ConfigDict):  # a copy, in which fields are set later
        value = value.copy_and_resolve_references().unlock()
      try:
        config[key] = value
      except TypeError as error:
        raise ConfigError(f"{where}.{key}={value!r} must be a value like {old!r}.") from error


def _share_teacher(
  task: ConfigDict, name: str, phases: Mapping[str, ConfigDict], workdir: str
) -> None:
  """Replaces a teacher "phase:NAME" by that phase's workdir, and adds the config of its network."""
  if task.teacher.startswith(PREFIX) and task.get("teacher_model") is None:
    other = task.teacher.removeprefix(PREFIX)
    if other in phases:
      before = phases[other]
      try:  # the teacher keeps the random graphs of its training
        model = resolve_model(before.model, seed=seed_of(before, "graph_seed"))
      except ConfigError as error:
        raise ConfigError(f"phases.{other}: {error}") from error
      task.teacher_model = ConfigDict(model)
  task.teacher = _locate(task.teacher, "task.teacher", name, phases, workdir)


def _locate(
  source: str, field: str, name: str, phases: Mapping[str, ConfigDict], workdir: str
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
