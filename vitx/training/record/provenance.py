"""Checks that a run continues with its old config and data, and by its old rule."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vitx.checkpoints import workdir as wd
from vitx.config.errors import ConfigError
from vitx.config.fields import LORA, RunSettings, default_of
from vitx.data.sources import SOURCES
from vitx.ops.implementation import current_rule
from vitx.ops.rule import Rule

# Fields that may differ when a run continues, since they do not change its results.
FREE = (
  "stop_after",
  "log_every",
  "steps_per_dispatch",
  "tracking",
  "checkpoint.every",
  "checkpoint.keep",
  "evaluation.batch_size",
  "evaluation.on_test",
  "evaluation.stop_early",
  "evaluation.attention_entropy",
  "data.data_dir",
  "data.memory",
  "data.device",
  "data.threads",
)


def check_same_run(
  workdir: str | Path, settings: RunSettings, fingerprint: str, fixed: Collection[str] = ()
) -> None:
  """Checks that settings agree with the config with which the run in a workdir began.

  These fields may differ: those in `FREE`, among them the step at which the run stops; the period
  of evaluations, unless the plateau schedule depends on it; the duration, if the schedule does not
  depend on it; and the name of the data source, if its content is unchanged. A workdir without a
  run passes.

  Args:
    workdir: The workdir of the run.
    settings: The resolved settings of the config that the user asks for.
    fingerprint: The fingerprint of the data that the user asks for; "" if the data have none.
    fixed: Fields that may not differ in any case.
  """
  # Without these files nothing tells whether a run would go on with another config or other data.
  if wd.list_steps(workdir):
    wd.read_config(workdir)
    wd.read_data(workdir)
  stored = wd.read_json(workdir, "config.json")
  if not stored:
    return
  free, schedule = set(FREE), settings.schedule.name
  if schedule != "plateau":
    free.add("evaluation.every")
  if schedule in ("constant", "step", "plateau"):
    free.add("duration")
  data = wd.read_json(workdir, wd.ENVIRONMENT).get("data") or {}
  if fingerprint and data.get("fingerprint") == fingerprint:
    free.add("data.source")
  check_same_fields(workdir, stored, wd.to_plain(settings), free - {*fixed})


def check_same_fields(
  workdir: str | Path,
  stored: Mapping[str, Any],
  requested: Mapping[str, Any],
  free: Collection[str],
) -> None:
  """Checks that two configs agree in all fields except those in `free`.

  Args:
    workdir: The workdir, for the error message.
    stored: The config in the workdir, as a tree of plain values.
    requested: The config that the user asks for, as a tree of plain values.
    free: The fields, or whole sections, that may differ.
  """
  new = wd.flatten(requested)
  # A field that was declared after the run began counts as having its default.
  old = {field: wd.to_plain(default_of(field)) for field in new} | wd.flatten(stored)
  lines = [
    f"  {field}: {old.get(field)!r} in the workdir, {new.get(field)!r} now"
    for field in sorted(old.keys() | new.keys())
    if old.get(field) != new.get(field)
    and field not in free
    and field.split(".")[0] not in free
    and not (field in wd.WEIGHT_FIELDS and _is_same_phase(workdir, old.get(field), new.get(field)))
    and not (field == "data.source" and _is_same_place(old.get(field), new.get(field)))
    and not (f"{LORA}.base" in old and _is_same_base(field, old.get(field), new.get(field)))
  ]
  if lines:
    raise ConfigError(
      f"workdir={str(workdir)!r} belongs to a run with another config:\n"
      + "\n".join(lines)
      + "\nContinue with the old config, or choose another --workdir (init_from=WORKDIR starts a"
      " new run from this run's weights)."
    )


def _is_same_phase(workdir: str | Path, old: Any, new: Any) -> bool:
  """Returns whether two paths name one phase of this run, whose workdir may have been moved."""
  run, _, phase = str(workdir).rstrip("/").rpartition("/")
  place, _, name = str(new).rpartition("/")
  phases = wd.read_phases(run) if run else ()
  return {phase, name} <= set(phases) and place == run and str(old).rpartition("/")[2] == name


def _is_same_place(old: Any, new: Any) -> bool:
  """Returns whether two sources are one file or folder, even if written as different paths."""
  kinds, paths = zip(*(str(source).partition(":")[::2] for source in (old, new)), strict=True)
  real = {os.path.realpath(os.path.expanduser(path)) for path in paths}
  return kinds[0] == kinds[1] and kinds[0] in SOURCES and len(real) == 1


def _is_same_base(field: str, old: Any, new: Any) -> bool:
  """Returns whether a field names the base of adapters less precisely than training recorded it."""
  is_place = field == "init_from" and os.path.abspath(str(new)) == old
  return is_place or (field == f"{LORA}.base" and new is None)


def check_same_data(workdir: str | Path, data: Mapping[str, Any]) -> None:
  """Checks that `data`, described by `describe_data`, are those with which a run began."""
  before = wd.read_data(workdir)
  for key in ("fingerprint", "examples", "unreadable"):
    if before[key] != data[key]:
      raise ConfigError(
        f"data.source={data['source']!r} has changed since this run began: {key} {before[key]}"
        f" then, {data[key]} now. Restore the data or choose another --workdir."
      )


def choose_rule(workdir: str | Path) -> Rule:
  """Returns the rule by which "auto" picks the implementations of token mixers in a run.

  A continued run keeps the rule with which it began, if the kind of device is unchanged; a new run
  takes the current rule. So a new version of vitx, or a rule that the user measures, does not
  change the results of a run in progress. If the current rule differs, a line is printed.
  """
  today = current_rule()
  stored = wd.read_json(workdir, wd.ENVIRONMENT).get("rule")
  if stored is None:
    return today
  began = Rule.from_json(stored)
  if began.device_kind != today.device_kind:
    return today
  if (began.masked, began.tiles) != (today.masked, today.tiles):
    print(
      f"implementation='auto' goes on with the choices of {began.source}, with which this run"
      f" began; {today.source} would make others now",
      flush=True,
    )
  return began
