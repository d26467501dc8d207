"""Names, reads, writes and checks the files of a workdir, the directory of one run.

A workdir has `config.json`, `environment.json`, `metrics.jsonl` and `checkpoints/`. It is
self-contained: evaluation needs no other file of the run. It has no pickle and no Python code.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath
from ml_collections import ConfigDict

from vitx.checkpoints import own_files
from vitx.checkpoints.directory import Directory
from vitx.config import registry
from vitx.config.checks import check_text
from vitx.config.errors import ConfigError, MissingExtraError

_RESTORE = "Restore it from a copy, or choose another --workdir."
ENVIRONMENT, PHASES, REPOSITORY = own_files.ENVIRONMENT, own_files.PHASES, own_files.REPOSITORY
# Fields of a config, and of its phases, that name files or data to read besides the config. In
# `WEIGHT_FIELDS`, a phase may name another phase.
DATA_PATH_FIELDS = ("data.source", "data.data_dir")
WEIGHT_FIELDS = ("init_from", "task.teacher")
PATH_FIELDS = (*DATA_PATH_FIELDS, *WEIGHT_FIELDS)
PHASE_NAME = r"\w[\w.-]*"
# Files and folders that a run appends to; through a link the content would go elsewhere.
GROWING = ("checkpoints", "log.txt", "metrics.jsonl", "wandb")
UNEVALUATED = "unevaluated"  # the folder of a state without its evaluation, beside the checkpoints
POINT = "point.json"  # the point of a sweep (one of its runs) that a workdir belongs to
FAILED = "failed.json"  # the reason why a point ended without a result
TRACKING = "tracking.json"  # the tracker of a run, and the rows that the tracker has
_CONFIG: dict[str, Any] = {
  "batch_size?": int,
  "data_seed?": int,
  "evaluation?": {"batch_size?": int, "weights?": [str]},
}
_DATA: dict[str, Any] = {
  "source?": str,
  "fingerprint": str,
  "examples?": {"train?": int, "validation?": int, "test?": int},
  "class_names?": [str],
  "vocabulary?": int,
}
# The fields that vitx reads from each JSON file. A field with "?" may be missing or null.
RECORDS: dict[str, dict[str, Any]] = {
  "config.json": _CONFIG,
  REPOSITORY: {"config": _CONFIG, "data": _DATA, "step": int, "names": str},
  PHASES: {"phases": [str]},
  POINT: {"method?": str, "seed?": int, "config": dict},
  FAILED: {"error": str},
  TRACKING: {"tracking?": dict, "id?": str, "known?": [list]},
  ENVIRONMENT: {
    "data?": _DATA,
    "commit?": str,
    "command?": [str],
    "python?": str,
    "versions?": dict,
    "devices?": [str],
    "processor?": str,
    "cores?": int,
  },
}


def join(workdir: str | Path, name: str) -> str:
  """Returns the path of a file or folder in a workdir, which may be a URL."""
  return f"{str(workdir).rstrip('/')}/{name}"


def find_run(workdir: str | Path) -> str:
  """Returns the workdir from which to load a run: `workdir`, or that of one of the run's phases.

  If the run has phases, the last phase with checkpoints is chosen, or the first phase if none has
  checkpoints.
  """
  check_name(workdir)
  runs = [join(workdir, name) for name in read_phases(workdir)]
  with_some = [run for run in runs if _has_state(run)]
  return (with_some or runs or [str(workdir)])[-1 if with_some else 0]


def _has_state(run: str) -> bool:
  """Returns whether a run has saved a state; its directory of checkpoints exists before."""
  place = locate_checkpoints(run)
  return any(Directory(each).steps() for each in (place, join(place, UNEVALUATED)))


def read_phases(workdir: str | Path) -> tuple[str, ...]:
  """Reads the names of a run's phases, in order; () for a run without phases.

  Raises:
    ConfigError: `phases.json` is damaged, or a name would lead out of the workdir.
  """
  names = read_json(workdir, PHASES).get("phases", ())
  if not all(re.fullmatch(PHASE_NAME, name) for name in names):
    path = epath.Path(workdir) / PHASES
    raise ConfigError(f"{path} is damaged ({names!r} are no names of phases). {_RESTORE}")
  return tuple(names)


def check_name(workdir: str | Path) -> None:
  """Checks that a path or URL can name a workdir; the workdir need not exist.

  Raises:
    ConfigError: The name is neither a string nor a path, is empty, has a NUL character, or is a URL
      that no installed package can read.
    MissingExtraError: The name is `gs://...`, and the package that reads it is missing.
  """
  if not isinstance(workdir, str | os.PathLike):
    raise ConfigError(f"workdir={workdir!r:.60} must be the path of a directory, such as 'runs/x'.")
  check_text(str(workdir), "workdir")
  if not str(workdir).strip():
    raise ConfigError(f"workdir={str(workdir)!r} is empty; name a directory, such as runs/digits.")
  if "://" not in str(workdir):
    return
  try:
    epath.Path(workdir).exists()
  except (ImportError, KeyError) as error:  # no package, or no such scheme
    if str(workdir).startswith("gs://"):
      raise MissingExtraError(f"workdir={str(workdir)!r}", "gcs") from error
    why = "there is no such file system" if isinstance(error, KeyError) else error
    raise ConfigError(
      f"workdir={str(workdir)!r} cannot be reached ({why}). Name a local directory or gs://..."
    ) from error


def locate_checkpoints(workdir: str | Path) -> str:
  """Returns the directory of a run's checkpoints."""
  return join(workdir, "checkpoints")


def locate_config(place: str | Path) -> str:
  """Returns the path of the config of a workdir, or of a repository that `vitx convert` wrote."""
  in_repository = str(place).startswith("hf:") or os.path.isfile(join(place, REPOSITORY))
  return join(place, REPOSITORY if in_repository else "config.json")


def to_plain(value: Any) -> Any:
  """Converts a config to JSON values: dicts, lists, numbers, strings."""
  if isinstance(value, ConfigDict | Mapping):
    return {key: to_plain(item) for key, item in value.items()}
  if isinstance(value, tuple | list):
    return [to_plain(item) for item in value]
  return value


def from_plain(value: Any) -> Any:
  """Converts the JSON values of `to_plain` back: dicts become a ConfigDict, lists become tuples."""
  if isinstance(value, dict):
    return ConfigDict({key: from_plain(item) for key, item in value.items()})
  if isinstance(value, list):
    return tuple(from_plain(item) for item in value)
  return value


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Flattens a nested config to one dict by dotted names: `{"a": {"b": 1}}` to `{"a.b": 1}`."""
  flat: dict[str, Any] = {}
  for key, value in config.items():
    nested = isinstance(value, Mapping)
    flat |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
  return flat


def read_config(workdir: str | Path) -> ConfigDict:
  """Reads the resolved config of a run.

  Raises:
    ConfigError: The directory is no workdir, or `config.json` is damaged.
  """
  path = epath.Path(workdir) / "config.json"
  if not path.exists():
    raise ConfigError(
      f"workdir={str(workdir)!r} has no config.json: it is no workdir of vitx. Give the directory"
      " that --workdir named in training."
    )
  return restore_config(read_json(workdir, "config.json"), path)


def restore_config(plain: Mapping[str, Any], path: str | Path) -> ConfigDict:
  """Converts a config's JSON object to a ConfigDict.

  Args:
    plain: The JSON object.
    path: The path of the object's file, for the error.

  Raises:
    ConfigError: A key cannot be the name of a field, or the object is nested too deeply.
  """
  try:
    return from_plain(plain)
  except (AttributeError, KeyError, ValueError, RecursionError) as error:
    raise ConfigError(f"{path} is damaged ({error}). {_RESTORE}") from error


def log_paths(config: Mapping[str, Any], path: str, fields: Iterable[str] = PATH_FIELDS) -> None:
  """Warns in the log which files, folders and data sources are read because a config names them.

  Somebody else may have written the config. Names of TFDS data sets, which are in the user's own
  directory, are not logged. With `--trust_code` nothing is logged.

  Args:
    config: The config, or its fields by name.
    path: The path of the config's file.
    fields: The names of the fields to look at.
  """
  if registry.is_trusted():
    return
  named = {
    field: value
    for field, value in flatten(to_plain(config)).items()
    if value and field.endswith(tuple(fields)) and (":" in value or not field.endswith(".source"))
  }
  if named:
    each = ", ".join(f"{field}={value!r}{_say_where(value)}" for field, value in named.items())
    _tell_once(f"{path!r} names files or data to read: {each}")


@functools.lru_cache(maxsize=1024)
def _tell_once(text: str) -> None:
  """Logs a warning, but only the first time; a sweep would repeat it for each of its runs."""
  logging.warning("%s", text)


def _say_where(value: str) -> str:
  """Returns a note with the absolute path of a value that is a relative path; otherwise ""."""
  place = value.partition(":")[2] or value
  on_hub = value.startswith(("hf:", "timm:"))
  if on_hub or "://" in value or os.path.isabs(os.path.expanduser(place)):
    return ""
  return f" (here {os.path.abspath(place)!r})"


def read_json(workdir: str | Path, name: str) -> dict[str, Any]:
  """Reads a JSON file of the workdir; returns {} if it does not exist.

  Raises:
    ConfigError: The file does not contain a JSON object, or a field does not have the type that
      `RECORDS` gives for it; the message names the file's path.
  """
  path = epath.Path(workdir) / name
  if not path.exists():
    return {}
  try:
    value = json.loads(own_files.read(workdir, name))
  except (ValueError, RecursionError) as error:  # ValueError: of JSON or UTF-8
    raise ConfigError(f"{path} is damaged ({error}). {_RESTORE}") from error
  if not isinstance(value, dict):
    raise ConfigError(f"{path} is damaged (it holds no JSON object). {_RESTORE}")
  if problem := find_problem(value, RECORDS.get(name, {})):
    raise ConfigError(f"{path} is damaged ({problem}). {_RESTORE}")
  return value


def find_problem(value: Any, wanted: Any, where: str = "") -> str:
  """Compares a JSON value with the form that it should have.

  Args:
    value: The JSON value.
    wanted: The form. It is a type such as `int`; `[form]` for a list whose entries all have this
      form; or, for an object, a dict that gives the form of each field by the field's name. The
      name has the suffix "?" if the field may be missing.
    where: The name of the value, for the message.

  Returns:
    A description of the first difference; "" if there is none.
  """
  if isinstance(wanted, list):
    if not isinstance(value, list):
      return f"{where} is no list"
    found = (find_problem(each, wanted[0], f"an entry of {where}") for each in value)
    return next(filter(None, found), "")
  if not isinstance(wanted, dict):
    kinds = (int, float) if wanted is float else wanted
    fits = isinstance(value, kinds) and (wanted is bool or not isinstance(value, bool))
    return "" if fits else f"{where} is no {_WORDS[wanted]}"
  if not isinstance(value, dict):
    return f"{where} is no object"
  for name, kind in wanted.items():
    own = name.rstrip("?")
    if value.get(own) is None:
      if own == name:
        return f"it lacks {f'{where}.{own}' if where else own}"
    elif problem := find_problem(value[own], kind, f"{where}.{own}" if where else own):
      return problem
  return ""


_WORDS = {str: "text", int: "integer", float: "number", list: "list", dict: "object"}


def read_data(workdir: str | Path) -> dict[str, Any]:
  """Reads a run's record of its data, with the keys source, fingerprint, class_names, vocabulary.

  Raises:
    ConfigError: `environment.json` is missing or damaged; the message names its path.
  """
  data = read_json(workdir, ENVIRONMENT).get("data")
  if not isinstance(data, dict) or "fingerprint" not in data:
    path = epath.Path(workdir) / ENVIRONMENT
    raise ConfigError(f"{path} is missing, or does not describe the run's data. {_RESTORE}")
  return data


def find_class_names(workdir: str | Path) -> tuple[str, ...] | None:
  """Returns the class names, in order, that a run recorded; None if there are none.

  If `workdir` belongs to a phase that recorded none, another phase of the run provides the names.

  Raises:
    ConfigError: A file is damaged.
  """
  check_name(workdir)
  whole, _, own = str(workdir).rstrip("/").rpartition("/")
  phases = read_json(whole, PHASES).get("phases", ()) if whole else ()
  for run in [str(workdir), *(join(whole, name) for name in phases if own in phases)]:
    data = read_json(run, ENVIRONMENT).get("data")
    names = data.get("class_names") if isinstance(data, dict) else None
    if names:
      return tuple(names)
  return None


def check_whole(workdir: str | Path) -> None:
  """Checks that a run with checkpoints still has its config and the record of its data.

  Without these files the run cannot continue. A workdir without checkpoints is valid.

  Raises:
    ConfigError: `config.json` or `environment.json` is missing or damaged.
  """
  check_name(workdir)
  if not Directory(locate_checkpoints(workdir)).steps():
    return
  if not read_json(workdir, "config.json"):
    path = epath.Path(workdir) / "config.json"
    raise ConfigError(f"{path} is missing or empty, though the run has checkpoints. {_RESTORE}")
  read_data(workdir)


def write_json(workdir: str | Path, name: str, value: Any) -> None:
  """Writes a JSON file; a concurrent reader sees the old or the new content, never a part."""
  own_files.replace(workdir, name, json.dumps(value, indent=2) + "\n")


def check_writable(workdir: str | Path, *, in_phases: bool = False) -> None:
  """Creates a directory and checks that a run's files can be written there.

  Args:
    workdir: The directory of the run.
    in_phases: Whether the run has phases, and its files are in the phases' own directories.

  Raises:
    ConfigError: The directory cannot be created or written, or has a link in place of a file or
      folder to which runs append. It is also raised if the directory has a repository, or has a run
      with phases and is to have one without, or the reverse, because only one could be loaded.
  """
  path = epath.Path(workdir)
  other = (PHASES, "a run of several phases")
  if in_phases:
    other = ("config.json", "a run without phases")
  for name, what in ((REPOSITORY, "a published model"), other):
    if (path / name).is_file():
      raise ConfigError(
        f"workdir={str(workdir)!r} has {what} ({name}), and no run of another kind is written"
        " beside it. Name another directory."
      )
  for name in GROWING:
    own_files.check_no_link(join(workdir, name))
  try:
    path.mkdir(parents=True, exist_ok=True)
    if "://" not in str(workdir):
      with tempfile.NamedTemporaryFile(dir=path):
        pass
  except OSError as error:
    raise ConfigError(
      f"workdir={str(workdir)!r} cannot be written: {error}. Name a directory that you may write."
    ) from error


def check_place(workdir: str | Path, state_bytes: int, keep: int) -> None:
  """Creates the directory of a run, and checks that its disk can hold the checkpoints.

  If the disk is too full, the directories that were created are removed again. The space of an
  object store is not checked.

  Args:
    workdir: The workdir of the run.
    state_bytes: The size of one checkpoint in bytes.
    keep: The number of newest checkpoints that the run keeps, besides the best.

  Raises:
    ConfigError: The directory cannot be created or written, or its disk cannot hold the
      checkpoints.
  """
  if "://" in str(workdir):
    return check_writable(workdir)
  place = Path(workdir).absolute()
  new = [path for path in (place, *place.parents) if not path.exists()]
  check_writable(workdir)
  # The disk must hold the newest checkpoints, the best and the one that is being written.
  needed, free = state_bytes * (keep + 2), shutil.disk_usage(workdir).free
  if free < needed:
    with contextlib.suppress(OSError):  # another run may have begun there meanwhile
      for path in new:
        path.rmdir()
    raise ConfigError(
      f"workdir={str(workdir)!r} has {free / 2**20:,.0f} MiB free, but {keep + 2} checkpoints of"
      f" {state_bytes / 2**20:,.1f} MiB need {needed / 2**20:,.0f} MiB. Free space, choose another"
      " directory or lower checkpoint.keep (at least 2)."
    )
