"""Runs of several phases, each from the best of the one before, in one workdir.

`config.phases` says what each phase changes, by its name; they run in alphabetical order of their
names, each as a run of its own in a directory of its name, `WORKDIR/phase1`, `WORKDIR/phase2`, ....
What loads the workdir finds the last of them that has a checkpoint.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vitx.checkpoints import own_files
from vitx.checkpoints import workdir as wd
from vitx.config import registry
from vitx.config.errors import ConfigError, listing
from vitx.config.fields import check_config, check_is_config, suggest
from vitx.training import durations, loop, parallel, teacher, unevaluated
from vitx.training.distributed import is_writer
from vitx.training.experiment import Experiment, make_experiment
from vitx.training.failures import count_received
from vitx.training.loop import Result
from vitx.training.record import provenance
from vitx.training.restore import check_source

PREFIX = "phase:"  # before the name of a phase, where a workdir or file could stand
ENDS = ("stop_after", "duration")  # fields by which a run ends


def train(
  config: ConfigDict, workdir: str | Path, *, dry_run: bool = False, trust_code: bool = False
) -> Result:
  """Trains as the config says, in one run or in its phases; goes on where the workdir stands.

  A phase starts from the best checkpoint of the one before, unless its `init_from` says otherwise;
  `init_from` and `task.teacher` may be "phase:NAME". All phases are checked before the first
  begins. A `stop_after` that is not of a phase's own ends the run in its first phase.

  Args:
    config: of `get_config`.
    workdir: a directory or a URL such as `gs://...`; created if absent.
    dry_run: compile, print parameters, memory and seconds per step, and return; writes nothing.
    trust_code: whether code that the config of `init_from`, or of a teacher, names may be imported.

  Returns:
    How the last run that began has ended.

  Raises:
    ConfigError: a setting cannot work; nothing was compiled or changed.
    NonFiniteError, OutOfMemoryError, CheckpointError: as of one run.
  """
  check_is_config(config)
  wd.check_name(workdir)
  with registry.trusting(trust_code or None):
    if not config.get("phases"):
      return loop.train(config, workdir, dry_run=dry_run)
    return _train_phases(config, str(workdir), dry_run)


def _train_phases(config: ConfigDict, workdir: str, dry_run: bool) -> Result:
  """Trains a run's phases one after the other, to the end of one that ends the run."""
  phases = split_phases(config, workdir)
  experiments = check(config, workdir)
  _check_ends(phases, experiments, workdir)
  _check_beginnings(experiments, [wd.join(workdir, name) for name in phases], dry_run)
  if not dry_run:
    for name in phases:
      own_files.check_no_link(wd.join(workdir, name))
    wd.check_writable(workdir)
    if is_writer():
      wd.write_json(workdir, wd.PHASES, {"phases": list(phases)})
  before = count_received()
  for (name, phase), experiment in zip(phases.items(), experiments, strict=True):
    print(f"{name}:", flush=True)
    if dry_run and phase.init_from in [wd.join(workdir, other) for other in phases]:
      phase.init_from = ""  # its weights are not there yet, nor needed
    # Of a dry run nobody has seen whether the workdir is this run's.
    is_own = not dry_run and _begins_from_own(phase, [wd.join(workdir, each) for each in phases])
    with registry.trusting(is_own or None):
      result = loop.train(phase, wd.join(workdir, name), dry_run=dry_run)
    is_stopped = name != list(phases)[-1] and count_received() > before  # as good as over
    if is_stopped or not result.finished:
      result = dataclasses.replace(result, finished=False)
      break
    if not dry_run and _ends_run(config, name, experiment):
      print(
        f"stop_after={config.stop_after!r} ended {name} before its duration; the phases after it"
        " begin when it has gone on",
        flush=True,
      )
      break
  return result


def _begins_from_own(phase: ConfigDict, runs: Sequence[str]) -> bool:
  """Returns whether all weights that a phase takes over are of this run, whose code is its own."""
  return {phase.init_from, phase.task.get("teacher", "")} <= {"", *runs}


def _check_beginnings(
  experiments: Sequence[Experiment], runs: Sequence[str], dry_run: bool
) -> None:
  """Raises ConfigError for a phase that could not begin when its turn has come.

  Args:
    experiments: of the phases.
    runs: their workdirs.
    dry_run: whether nothing is written.
  """
  for run, experiment in zip(runs, experiments, strict=True):
    config, source = experiment.config, experiment.task.teacher
    name = run.rpartition("/")[2]
    try:
      if config.init_from not in runs:
        check_source(experiment, run, writes=not dry_run)
      elif not (registry.is_trusted() or _begins_from_own(config, runs)):
        before = experiments[runs.index(config.init_from)].config
        registry.refuse_names_of_code({"task": before.task, "model": before.model}, "")
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
  """Returns whether `stop_after` of the whole run, not of a phase's own, ends a phase early."""
  own, per_epoch = experiment.config, experiment.steps_per_epoch
  whole = durations.to_steps(own.duration, per_epoch, "duration")
  return "stop_after" not in config.phases[name] and experiment.total_steps < whole


def _check_ends(
  phases: Mapping[str, ConfigDict], experiments: Iterable[Experiment], workdir: str
) -> None:
  """Refuses another end of a phase from whose end another phase has begun."""
  for (name, phase), experiment in zip(phases.items(), experiments, strict=True):
    run = wd.join(workdir, name)
    stored = wd.read_json(run, "config.json")
    ends = [field for field in ENDS if field in stored and stored[field] != phase.get(field)]
    step = unevaluated.find_step(run)
    if not ends or step >= experiment.total_steps:
      continue
    for other, later in phases.items():
      place = wd.join(workdir, other)
      if run in (later.init_from, later.task.get("teacher")) and unevaluated.find_step(place):
        raise ConfigError(
          f"phases.{name}.{ends[0]}={phase[ends[0]]!r} was {stored[ends[0]]!r} when {other} began"
          f" from step {step} of {name}; set it back, or move {place} away, so that {other} begins"
          " anew"
        )


def use_cores(configs: Iterable[ConfigDict]) -> None:
  """Makes a CPU's cores devices that the batches of every run divide among; see `parallel`.

  Args:
    configs: of all that this process will train, each of one run or of phases.

  Raises:
    ConfigError: a field of another type or range.
  """
  runs = (split_phases(c, "").values() if c.get("phases") else [c] for c in configs)
  each = [phase for run in runs for phase in run]
  for phase in each:
    check_config(phase)
  parallel.use_cores(phase.batch_size // phase.grad_accum_steps for phase in each)


def check(config: ConfigDict, workdir: str | Path) -> list[Experiment]:
  """Makes the experiment of each run as a trial: all that can be checked is, nothing is compiled.

  Code that a teacher's config names is imported inside `registry.trusting(True)` alone.

  Args:
    config: of `get_config`.
    workdir: where it would train.

  Returns:
    One for each phase in their order; one of a config without phases.

  Raises:
    ConfigError: naming the phase, if there are any, and the field.
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
  """Returns the config of each phase, by its name, in the order in which they run.

  Args:
    config: with `phases`.
    workdir: of all of them.

  Raises:
    ConfigError: a phase that is no group of fields, a field that does not exist, or a reference to
      a phase that does not come before.
  """
  phases: dict[str, ConfigDict] = {}
  for name in sorted(config.phases):
    changes = config.phases[name]
    if not isinstance(changes, Mapping | ConfigDict) or not re.fullmatch(wd.PHASE_NAME, name):
      raise ConfigError(
        f"phases.{name}={changes!r} must be a group of fields, such as"
        " phases.phase1=dict(duration='5 epochs')"
      )
    phase = config.copy_and_resolve_references()
    with phase.unlocked():
      phase.phases = ConfigDict()
      _change(phase, changes, f"phases.{name}")
      if isinstance(task := phase.task, str):
        del phase.task  # which would keep its type
        phase.task = ConfigDict({"name": task})
      if phases and "init_from" not in changes:
        phase.init_from = PREFIX + next(reversed(phases))
      phase.init_from = _locate(phase.init_from, "init_from", name, phases, workdir)
      if phase.task.get("teacher"):
        _share_teacher(phase.task, name, phases, workdir)
    phases[name] = phase
  return phases


def _change(config: ConfigDict, changes: Mapping[str, Any], where: str) -> None:
  """Sets fields in place; a named choice of another name replaces the one that stood there."""
  for key, value in changes.items():
    old = config.get(key)
    if key not in config and "name" not in config:
      raise ConfigError(
        f"{where}.{key}: config has no field {key!r}.{suggest(key, config)} Fields there:"
        f" {listing(config)}."
      )
    is_group = isinstance(value, ConfigDict) and isinstance(old, ConfigDict)
    if is_group and value.get("name", old.get("name")) == old.get("name"):
      _change(old, value, f"{where}.{key}")
    else:
      if isinstance(old, ConfigDict | str) and type(old) is not type(value):
        del config[key]  # a choice may be a name, or a name with fields
      if isinstance(value, ConfigDict):  # of the phase's own: fields are set in it later
        value = value.copy_and_resolve_references().unlock()
      config[key] = value


def _share_teacher(
  task: ConfigDict, name: str, phases: Mapping[str, ConfigDict], workdir: str
) -> None:
  """Turns a teacher that is another phase into its workdir and its network."""
  if task.teacher.startswith(PREFIX) and task.get("teacher_model") is None:
    other = task.teacher.removeprefix(PREFIX)
    if other in phases:
      task.teacher_model = ConfigDict(phases[other].model)
  task.teacher = _locate(task.teacher, "task.teacher", name, phases, workdir)


def _locate(
  source: str, field: str, name: str, phases: Mapping[str, ConfigDict], workdir: str
) -> str:
  """Returns the workdir that "phase:NAME" stands for, and anything else as it is."""
  if not source.startswith(PREFIX):
    return source
  other = source.removeprefix(PREFIX)
  if other not in phases:
    raise ConfigError(
      f"phases.{name}.{field}={source!r} is no phase before {name!r}; those are: {listing(phases)}."
    )
  return wd.join(workdir, other)
