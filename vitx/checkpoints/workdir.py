"""Names, reads, writes and checks the files of a workdir, the directory of one run.

A workdir has `config.json`, `environment.json`, `metrics.jsonl` and `checkpoints/`. It is
self-contained: evaluation needs no other file of the run, except the base of adapters, which
`init_from` names. It has no pickle and no Python code.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from vitx.checkpoints.directory import Directory
from vitx.checkpoints.outputs import check_folder
from vitx.config.choices import to_plain as to_plain
from vitx.config.errors import ConfigError
from vitx.files import reading, replace_text

ENVIRONMENT = "environment.json"  # the hardware, the versions and the data of a run
PHASES = "phases.json"  # in a workdir of several phases, a file with their names in order
REPOSITORY = "vitx.json"  # the config and the record of the data of a published model
# Fields of a config, and of its phases, that name files or data to read besides the config. In
# `WEIGHT_FIELDS`, a phase may name another phase.
WEIGHT_FIELDS = ("init_from", "task.teacher")
PATH_FIELDS = ("data.source", "data.data_dir", "data.exclude", *WEIGHT_FIELDS)
POINT = "point.json"  # the point of a sweep (one of its runs) that a workdir belongs to
FAILED = "failed.json"  # the reason why a point ended without a result
TRACKING = "tracking.json"  # a tracker's config, its id of the run, and the keys of its rows
# The files that show that a folder belongs to a run or has a published model, and all files and
# folders that must not be lost there.
SIGNS = (ENVIRONMENT, PHASES, POINT, REPOSITORY)
VITAL = (
  *(*SIGNS, FAILED, TRACKING, "config.json", "metrics.jsonl", "log.txt"),
  *("checkpoints", "model.safetensors"),
)


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
  with_some = [run for run in runs if list_steps(run)]
  return (with_some or runs or [str(workdir)])[-1 if with_some else 0]


def list_points(workdir: str | Path) -> dict[str, str]:
  """Returns the method of each run of a sweep, by the run's workdir; {} for other directories."""
  points = sorted(epath.Path(workdir).glob(f"*/{POINT}"))
  return {str(path.parent): read_json(path.parent, POINT).get("method", "") for path in points}


def read_phases(workdir: str | Path) -> tuple[str, ...]:
  """Reads the names of a run's phases, in order; () for a run without phases."""
  return tuple(read_json(workdir, PHASES).get("phases", ()))


def check_name(workdir: str | Path) -> None:
  """Checks that the name of a workdir is not empty.

  Raises:
    ConfigError: The name is empty; files would be written to the root of the file system.
  """
  if not str(workdir).strip():
    raise ConfigError(f"workdir={str(workdir)!r} is empty; name a directory, such as runs/digits.")


def locate_checkpoints(workdir: str | Path) -> str:
  """Returns the directory of a run's checkpoints."""
  return join(workdir, "checkpoints")


def list_steps(workdir: str | Path) -> list[int]:
  """Returns the steps of a run's complete checkpoints, ascending."""
  return Directory(locate_checkpoints(workdir)).steps()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Flattens a nested config to one dict by dotted names: `{"a": {"b": 1}}` to `{"a.b": 1}`."""
  flat: dict[str, Any] = {}
  for key, value in config.items():
    nested = isinstance(value, Mapping)
    flat |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
  return flat


def read_config(workdir: str | Path) -> dict[str, Any]:
  """Reads the resolved config of a run, as JSON values.

  Raises:
    ConfigError: The directory is no workdir, or `config.json` is damaged.
  """
  path = epath.Path(workdir) / "config.json"
  if not path.exists():
    raise ConfigError(f"{path} is missing. Give the directory that --workdir named in training.")
  return read_json(workdir, "config.json")


def read_json(workdir: str | Path, name: str) -> dict[str, Any]:
  """Reads a JSON file of the workdir; returns {} if it does not exist.

  Raises:
    ConfigError: The file does not contain a JSON object; the message names the file's path.
  """
  path = epath.Path(workdir) / name
  if not path.exists():
    return {}
  with reading(f"{path} is damaged"):
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
      raise TypeError("it holds no JSON object")
  return value


def find_places(data: Mapping[str, Any]) -> dict[str, str]:
  """Returns the absolute paths of a config's `data` that it names by relative ones, by field."""
  paths = {field: data.get(field) or "" for field in ("data_dir", "exclude")}
  paths["source"] = data["source"].partition(":")[2]
  relative = {x: Path(path) for x, path in paths.items() if path and not Path(path).is_absolute()}
  return {field: str(path.absolute()) for field, path in relative.items() if path.exists()}


def follow_places(data: dict[str, Any], places: Mapping[str, str]) -> None:
  """Sets relative paths in `data` to the places that `find_places` recorded in training.

  A path that leads to its place from the current folder stays as it is, and so does a path whose
  place does not exist any more.
  """
  for field, place in places.items():
    kind, colon, path = data[field].partition(":") if field == "source" else ("", "", data[field])
    if Path(place).exists() and str(Path(path).absolute()) != place:
      data[field] = f"{kind}{colon}{place}"


def read_data(workdir: str | Path) -> dict[str, Any]:
  """Reads a run's record of its data: source, places, fingerprint, class_names, vocabulary."""
  data = read_json(workdir, ENVIRONMENT).get("data")
  if data is None:
    path = epath.Path(workdir) / ENVIRONMENT
    raise ConfigError(f"{path} is missing, or does not describe the run's data.")
  return data


def read_run(workdir: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads the config of a run, with relative paths as `follow_places` sets them, and its record."""
  config, data = read_config(workdir), read_data(workdir)
  follow_places(config["data"], data.get("places", {}))
  return config, data


def find_data(workdir: str | Path) -> dict[str, Any]:
  """Returns a run's record of its data if it has class names; {} otherwise.

  If `workdir` belongs to a phase that recorded none, another phase of the run provides the record.
  """
  whole, _, phase = str(workdir).rstrip("/").rpartition("/")
  phases = read_phases(whole) if whole else ()
  for run in [str(workdir), *(join(whole, name) for name in phases if phase in phases)]:
    data = read_json(run, ENVIRONMENT).get("data") or {}
    if data.get("class_names"):
      return data
  return {}


def write_json(workdir: str | Path, name: str, value: Any) -> None:
  """Writes a JSON file; a concurrent reader sees the old or the new content, never a part."""
  replace_text(join(workdir, name), json.dumps(value, indent=2) + "\n")


def check_file(path: str | Path | None, field: str) -> None:
  """Checks that an output may be written to a path, which is in an existing folder; None is valid.

  Raises:
    ConfigError: The file cannot be written, or a run would lose its own file.
  """
  if path is None:
    return
  whole = Path(path).resolve()
  if whole.is_dir() or not whole.parent.is_dir():
    raise ConfigError(f"{field}={str(path)!r} is a folder, or is in a folder that does not exist.")
  for folder in whole.parents:
    is_vital = whole.relative_to(folder).parts[0] in VITAL
    if is_vital and any((folder / name).is_file() for name in SIGNS):
      raise ConfigError(f"{field}={str(path)!r} belongs to the run in {folder}; name another file.")
  check_folder(whole.parent, field)


def check_writable(workdir: str | Path, *, in_phases: bool = False) -> None:
  """Creates a directory, and checks that it has no model of another kind.

  Beside a published model, or beside a run with phases, a run could not be loaded.

  Args:
    workdir: The directory of the run.
    in_phases: Whether the run has phases, and its files are in the phases' own directories.

  Raises:
    ConfigError: The directory has a model of another kind, or cannot be created or written.
  """
  path = epath.Path(workdir)
  for name in (REPOSITORY, "config.json" if in_phases else PHASES):
    if (path / name).is_file():
      raise ConfigError(
        f"workdir={str(workdir)!r} has {name} of a model of another kind. Name another directory."
      )
  check_folder(workdir, "workdir")
  path.mkdir(parents=True, exist_ok=True)


def check_place(workdir: str | Path, state_bytes: int, keep: int) -> None:
  """Creates the directory of a run, and checks that its disk can hold the checkpoints.

  The space of an object store is not checked.

  Args:
    workdir: The workdir of the run.
    state_bytes: The size of one checkpoint in bytes.
    keep: The number of newest checkpoints that the run keeps, besides the best.

  Raises:
    ConfigError: The directory cannot be created or written, or its disk cannot hold the
      checkpoints.
  """
  check_writable(workdir)
  if "://" in str(workdir):
    return
  # The disk must hold the newest checkpoints, the best and the one that is being written.
  count = max(keep + 2 - len(list_steps(workdir)), 1)
  needed, free = state_bytes * count, shutil.disk_usage(workdir).free
  if free < needed:
    raise ConfigError(
      f"workdir={str(workdir)!r} has {free / 2**20:,.0f} MiB free, but {count} more checkpoints of"
      f" {state_bytes / 2**20:,.1f} MiB need {needed / 2**20:,.0f} MiB. Free space, choose another"
      " directory or lower checkpoint.keep (at least 2)."
    )
