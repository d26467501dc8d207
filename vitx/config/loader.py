"""Loads a config from a config file with a row and overrides, or from the JSON of a run.

A row is a named variant of a file's config.

    configs/digits.py                         the file's default row
    configs/digits.py:performer,seed=3        a row and overrides
    runs/digits/config.json:duration=90       the JSON of a run or of `vitx config`

A Python file is code, and is executed. A `config.json` is data, which somebody else may have
written: the names of code in it (`module:Name`) are refused unless the user passes `--trust_code`.

Shipped files are found from any folder: `configs/digits.py`, `digits.py` or `digits`.
"""

import json
import os
import re
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vitx.config import registry
from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.fields import LORA, SEEDS, declarations, default_config
from vitx.config.fields import find as find_field
from vitx.config.overrides import make_tuples, set_field, split, with_overrides
from vitx.configs import __path__ as config_folders

FLAG = "--config."
SHIPPED = Path(config_folders[0])  # the folder of config files


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
  """Separates every `--config.field=value` from a command's other arguments.

  Returns:
    The other arguments, and the overrides `field=value` in order.
  """
  rest, overrides, remaining = [], [], iter(arguments)
  for argument in remaining:
    if not argument.startswith(FLAG):
      rest.append(argument)
      continue
    field, equals, value = argument.removeprefix(FLAG).partition("=")
    if not equals:
      value = next(remaining, "--")
    if not field or value.startswith("--"):
      raise ConfigError(f"{argument} needs a value; write {FLAG}{field or 'FIELD'}=VALUE.")
    try:
      is_whole = len(split(f"{value},")) < 2
    except ConfigError:
      is_whole = False
    # A value needs quotes if commas would split it, or if it would take in the values behind it.
    overrides.append(f"{field}={value if is_whole else repr(value)}")
  return rest, overrides


def split_text(text: str) -> tuple[str, str]:
  """Splits `FILE:ROW,field=value` into the file, which may be a URL, and the rest."""
  match = re.fullmatch(r"((?:\w+://)?[^:]*):?(.*)", text, re.DOTALL)
  assert match is not None
  return match[1], match[2]


def join_text(text: str, overrides: Iterable[str]) -> str:
  """Appends overrides to a string that names a config, `FILE:ROW,field=value`."""
  path, arg = split_text(text)
  return f"{path}:{','.join(filter(None, (arg, *overrides)))}"


def load_config(text: str | Path) -> ConfigDict:
  """Loads a config.

  Args:
    text: `FILE`, `FILE:ROW,field=value,...`, or the path of a `config.json`, which has no rows.

  Raises:
    ConfigError: The file, row or field does not exist (the message has the nearest name), a value
      is invalid, or a `config.json` names code and is not loaded within `registry.trusting(True)`.
  """
  path, arg = split_text(str(text))
  is_json = path.endswith(".json")
  get_config = _read_json(path) if is_json else open_config(path)["get_config"]
  try:
    return get_config(arg) if arg else get_config()
  except ValueError as error:
    raise ConfigError(" ".join(str(error).split())) from error


def load_base(source: str) -> ConfigDict:
  """Returns the config of the network whose weights `init_from=source` names.

  Args:
    source: A workdir, a repository that vitx wrote, or weights that `vitx convert --list` shows.

  Raises:
    ConfigError: The source does not describe its network, or cannot be read.
  """
  return registry.import_name("vitx.interop.published:find_config")(source)


def open_config(path: str) -> dict[str, Any]:
  """Executes a config file and returns its global names, `get_config` among them."""
  file = find(path)
  if SHIPPED not in file.parents:
    registry.reach_current_folder()  # the file may import modules from there
  return runpy.run_path(str(file))


def find_rows(path: str, rows: Sequence[str]) -> list[str]:
  """Returns the rows (named variants) of a config file that are asked for, or else all its rows."""
  known = () if path.endswith(".json") else tuple(open_config(path).get("ROWS", ()))
  if not known:
    raise ConfigError(f"config={path!r} has no ROWS; use vitx sweep, which trains one config.")
  for row in rows:
    if row not in known:
      raise ConfigError(
        f"rows={row!r} is no row of {path!r}.{nearest(row, known)} Its rows are {listing(known)}."
      )
  return list(rows or known)


def find_published(path: str) -> Mapping[str, Mapping[str, Any]]:
  """Returns the results that a config file quotes from a publication, by row of the file."""
  return {} if path.endswith(".json") else open_config(path).get("PUBLISHED", {})


def find(path: str) -> Path:
  """Finds a config file by its path, or a shipped one by its name."""
  is_file = os.path.isfile(path)  # `Path.is_file` raises an error for names of over 255 bytes
  if is_file and path.endswith((".py", ".json")):
    return Path(path)
  folder = Path(path).parent
  names = sorted(p.stem for p in SHIPPED.glob("*.py") if p.stem[0] != "_")
  if str(folder) in (".", "configs") and Path(path).name.removesuffix(".py") in names:
    return SHIPPED / f"{Path(path).name.removesuffix('.py')}.py"
  near = nearest(Path(path).name.removesuffix(".py"), names)
  what = "is neither a .py nor a .json file" if is_file else "does not exist"
  raise ConfigError(f"config={path!r} {what}.{near} Shipped files: {listing(names)}.")


def _read_json(path: str) -> Callable[..., ConfigDict]:
  """Returns a function `get_config` for a config that is stored as JSON, which has no rows.

  Other seeds that equal the field `seed` become None, so that an override of `seed` changes them
  too.
  """
  from vitx.files import reading

  with reading(f"config={path!r} cannot be read as JSON"):
    tree = json.loads(Path(path).read_bytes())
  if not isinstance(tree, dict):
    raise ConfigError(f"config={path!r} must hold a JSON object, the fields of a config.")
  if not registry.is_trusted():
    registry.refuse_names_of_code(tree, "", is_text)
  seed = tree.get("seed", 0)
  graph_seed = seed if tree.get("graph_seed") is None else tree["graph_seed"]
  for name in SEEDS:
    if tree.get(name) == seed:
      tree[name] = None
  mixer = tree.get("model", {}).get("token_mixer")
  if isinstance(mixer, dict) and "seed" in mixer and mixer["seed"] == graph_seed:
    del mixer["seed"]

  def get_config(overrides: str = "") -> ConfigDict:
    config = default_config()
    for field, value in tree.items():
      set_field(config, field, make_tuples(value))
    names = ("data.source", *_FOLLOWING, *sum(_FOLLOWING.values(), ()))
    before = {name: find_field(config, name) for name in names}
    config = with_overrides(config, overrides)
    changed = {name for name, value in before.items() if find_field(config, name) != value}
    if "data.source" in changed:
      raise ConfigError(
        f"data.source={config.data.source!r}: {path} has the classes, sizes and statistics of"
        f" {before['data.source']!r}. To train on another source, name a config file (.py)."
      )
    for field, causes in _FOLLOWING.items():
      if field not in changed and not changed.isdisjoint(causes):
        set_field(config, field, None)
    return config

  return get_config


# Fields that a run has computed, and those from which they follow if these are changed.
_FOLLOWING = {
  "data.decode_size": ("data.image_size", "data.resize_mode", "evaluation.crop_ratio"),
  "data.mean": ("data.value_range", "data.channels"),
  "data.std": ("data.value_range", "data.channels"),
}
# The fields of these types contain paths, regular expressions or expressions of splits, not code.
_TEXTS = (str, str | None, tuple[str, ...])


def is_text(field: str, value: str) -> bool:
  """Returns whether a field's value is plain text, in which a colon does not mean code."""
  field = re.sub(r"^phases\.[^.]*\.", "", field)
  if field in ("optimizer", "optimizer.name"):
    return value.startswith("optax:")  # can only name functions of optax
  if field == "data.source":
    kind, _, rest = value.partition(":")
    return kind in registry.table_of("data.source") or not rest.isidentifier()
  is_named = field in ("task.teacher", f"{LORA}.names")
  return is_named or getattr(declarations().get(field), "type", None) in _TEXTS
