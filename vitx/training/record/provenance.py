"""Records what a run depends on, and checks that a run continues with its old config and data."""

import dataclasses
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from vitx.checkpoints import workdir as wd
from vitx.config.errors import ConfigError
from vitx.config.fields import default_of
from vitx.data.dataset import ROLES, Source
from vitx.data.sources import SOURCES
from vitx.ops.implementation import current_rule
from vitx.ops.rule import Rule
from vitx.ops.sparse.triton_attention import find_capability

PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "tensorflow-datasets",
  "grain",
  "clu",
  "jax-triton",
  "triton",
  "ml_collections",
  "numpy",
  "pillow",
)
# Fields that may differ when a run continues, since they do not change its results.
FREE = (
  "stop_after",
  "log_every",
  "steps_per_dispatch",
  "tracking",
  "tensorboard",  # in workdirs from before `tracking`
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
# The reason why the cadence of evaluations may not differ under schedule=plateau.
HEARS = (
  " (schedule=plateau counts evaluations before it lowers the learning rate, so another cadence"
  " would change the run)"
)


def check_same_run(workdir: str | Path, config: ConfigDict, fingerprint: str) -> None:
  """Checks that a config agrees with the config with which the run in a workdir began.

  These fields may differ: those in `FREE`, among them the step at which the run stops; the period
  of evaluations, unless the plateau schedule depends on it; the duration, if the schedule does not
  depend on it; and the name of the data source, if its content is unchanged. A workdir without a
  run passes.

  Args:
    workdir: The workdir of the run.
    config: The config that the user asks for, resolved by `experiment.resolve`.
    fingerprint: The fingerprint of the data that the user asks for; "" if the data have none.

  Raises:
    ConfigError: Fields differ (the message has a line for each), or the workdir has lost a file.
  """
  wd.check_whole(workdir)
  stored = wd.read_json(workdir, "config.json")
  if not stored:
    return
  free, schedule = set(FREE), config.schedule.name
  if schedule != "plateau":
    free.add("evaluation.every")
  if schedule in ("constant", "step", "plateau"):
    free.add("duration")
  data = wd.read_json(workdir, wd.ENVIRONMENT).get("data")
  if fingerprint and isinstance(data, dict) and data.get("fingerprint") == fingerprint:
    free.add("data.source")
  check_same_fields(workdir, stored, wd.to_plain(config), free)


def _default(field: str) -> Any:
  """Returns the default of a field as a JSON value.

  Returns None for a field of an object that the config chooses by name, such as an optimizer.
  """
  default = default_of(field)
  return list(default) if isinstance(default, tuple) else default


def check_same_fields(
  workdir: str | Path,
  stored: Mapping[str, Any],
  wanted: Mapping[str, Any],
  free: Collection[str],
) -> None:
  """Checks that two configs agree in all fields except those in `free`.

  A field that a config of an earlier version lacks counts as having its default.

  Args:
    workdir: The workdir, for the error message.
    stored: The config in the workdir, as a tree of plain values.
    wanted: The config that the user asks for, as a tree of plain values.
    free: The fields, or whole sections, that may differ.

  Raises:
    ConfigError: Fields differ; the message has a line for each.
  """
  old, new, missing, free = wd.flatten(stored), wd.flatten(wanted), "(absent)", set(free)
  is_plateau = "plateau" in (new.get("schedule"), new.get("schedule.name"))
  lines = [
    f"  {field}: {old.get(field, missing)!r} in the workdir, {new.get(field, missing)!r} now"
    f"{HEARS if is_plateau and field == 'evaluation.every' else ''}"
    for field in sorted(old.keys() | new.keys())
    if free.isdisjoint((field, field.split(".")[0]))
    and old.get(field, _default(field)) != new.get(field, _default(field))
    and not (field in wd.WEIGHT_FIELDS and _is_same_phase(workdir, old.get(field), new.get(field)))
    and not (field == "data.source" and _is_same_place(old.get(field), new.get(field)))
  ]
  if lines:
    raise ConfigError(
      f"workdir={str(workdir)!r} belongs to a run with another config:\n"
      + "\n".join(lines)
      + "\nContinue with the old config, or choose another --workdir (init_from=WORKDIR starts a"
      " new run from this run's weights)."
    )


def _is_same_phase(workdir: str | Path, old: Any, new: Any) -> bool:
  """Returns whether two paths name one phase of this run.

  The recorded path may be an old one, since a workdir may have been moved or renamed.

  Args:
    workdir: The workdir of the phase that continues.
    old: The path that the run recorded for another phase.
    new: The path that the config of today gives.
  """
  run, _, own = str(workdir).rstrip("/").rpartition("/")
  place, _, name = str(new).rpartition("/")
  phases = wd.read_phases(run) if run else ()
  return {own, name} <= set(phases) and place == run and str(old).rpartition("/")[2] == name


def _is_same_place(old: Any, new: Any) -> bool:
  """Returns whether two sources are one file or folder, even if written as different paths."""
  kinds, paths = zip(*(str(each).partition(":")[::2] for each in (old, new)), strict=True)
  real = {os.path.realpath(os.path.expanduser(path)) for path in paths}
  return kinds[0] == kinds[1] and kinds[0] in SOURCES and len(real) == 1


def describe_data(source: Source) -> dict[str, Any]:
  """Returns a description of a run's data as JSON.

  The fingerprint, the numbers of examples and the unreadable files identify the data. The names of
  classes and the vocabulary are all that a prediction needs to know of the data.
  """
  info = source.info
  return {
    "source": info.name,
    "fingerprint": info.fingerprint,
    "examples": {role: len(source.role(role)) for role in ROLES},
    "class_names": None if info.class_names is None else list(info.class_names),
    "vocabulary": info.vocabulary,
    "unreadable": list(source.unreadable),
  }


def check_same_data(workdir: str | Path, data: Mapping[str, Any]) -> None:
  """Checks that the data are those with which the run in a workdir began.

  Args:
    workdir: The workdir of the run.
    data: The result of `describe_data` for the data that the user asks for.

  Raises:
    ConfigError: The data differ; the message names both fingerprints, or the numbers of examples.
  """
  before = wd.read_data(workdir)
  if before["fingerprint"] != data["fingerprint"]:
    raise ConfigError(
      f"data.source={data['source']!r} has changed since this run began: fingerprint"
      f" {before['fingerprint']} then, {data['fingerprint']} now. Restore the data or choose"
      " another --workdir."
    )
  for key in ("examples", "unreadable"):
    if before.get(key, data.get(key)) != data.get(key):
      raise ConfigError(
        f"data.source={data['source']!r}: this run began with {key} {before[key]} and would"
        f" continue with {data.get(key)}, because other splits or other readable files are used"
        " now. Restore them or choose another --workdir."
      )


def choose_rule(workdir: str | Path) -> Rule:
  """Returns the rule by which "auto" picks the implementations of token mixers in a run.

  A continued run keeps the rule with which it began, if the kind of device is unchanged; a new run
  takes the current rule. So a new version of vitx, or a rule that the user measures, does not
  change the results of a run in progress. If the current rule differs, a line is printed.

  Raises:
    ConfigError: The file of the current rule or the run's `environment.json` is damaged, or the
      workdir cannot be reached.
  """
  wd.check_name(workdir)
  today = current_rule()
  stored = wd.read_json(workdir, wd.ENVIRONMENT).get("rule")
  if stored is None:
    return today
  began = Rule.from_json(
    stored, f"{workdir}/environment.json", "restore it, or choose another --workdir"
  )
  if began.device_kind != today.device_kind:
    return today
  # A family of mixers that was added since the run began gets the bounds of the current rule.
  began = dataclasses.replace(began, masked={**today.masked, **began.masked})
  if (began.masked, began.tiles) != (today.masked, today.tiles):
    print(
      f"implementation='auto' keeps the rule with which this run began ({began.source});"
      f" the rule of {today.source} differs",
      flush=True,
    )
  return began


def environment(data: Mapping[str, Any], implementations: Mapping[str, str]) -> dict[str, Any]:
  """Returns a record, as JSON, of all that a run depends on besides its config.

  The record holds data, commit, command, versions, devices and processor, the implementation that
  "auto" picked for each token mixer and the rule by which it picks, and the backend of sparse
  attention kernels ("triton" or "xla").

  Args:
    data: The result of `describe_data`.
    implementations: The implementation of each token mixer, by the mixer's path in the network.
  """
  return {
    "data": dict(data),
    "commit": _commit(),
    "command": sys.argv,
    "python": platform.python_version(),
    "versions": {name: _version(name) for name in PACKAGES},
    "devices": [device.device_kind for device in jax.devices()],
    "processor": _processor(),
    "cores": os.cpu_count(),
    "processes": jax.process_count(),
    "implementations": dict(implementations),
    "sparse_kernel": "triton" if find_capability() else "xla",
    "rule": current_rule().to_json(),
  }


def _processor() -> str:
  """Returns the name of the CPU, as the operating system reports it."""
  try:
    text = Path("/proc/cpuinfo").read_text()
  except OSError:
    return platform.processor()
  found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
  return found[1].strip() if found else platform.processor()


def _version(package: str) -> str | None:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return None


def _commit() -> str | None:
  """Returns the commit of the source tree, with "+" if files have changed; None outside git."""
  root = Path(__file__).resolve().parents[2]
  command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
  try:
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
  except (OSError, subprocess.SubprocessError):
    return None
  return result.stdout.strip()
