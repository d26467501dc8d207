"""Overrides of a config as one text, `ROW,field=value,...`, the argument of `get_config`.

An example is `--config configs/digits.py:performer,seed=3,optimizer.weight_decay=0.1`. A bare name
replaces the whole of a named choice (a dict with a `name`): `token_mixer=softmax` drops the fields
of the previous mixer. A string field takes the text as it is, such as `init_from=2024_11_25`; the
value of any other field is a Python literal.
"""

import ast
import copy
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ml_collections import ConfigDict

from vitx.config import choices, fields, registry
from vitx.config.checks import base_types, check_value
from vitx.config.errors import ConfigError, listing, nearest

# Short names for nested fields.
SHORT = {
  "dataset": "data.source",
  "token_mixer": "model.token_mixer",
  "posemb": "model.posemb",
  "pool": "model.pool",
  "stem": "model.stem",
  "dtype": "model.dtype",
}


def with_overrides(config: ConfigDict, overrides: str) -> ConfigDict:
  """Returns a copy of a config with `field=value,field=value` applied.

  Raises:
    ValueError: A field is unknown (the message has the nearest), a value has the wrong type, a
      field is set twice, or an item such as `token_mixer=softmax` would drop a field that an
      earlier item sets, such as `token_mixer.use_bias=False`.
  """
  config = copy.deepcopy(config)
  seen: dict[str, str] = {}
  for item in split(overrides):
    if "=" not in item:
      raise ValueError(
        f"config override {item!r} must have the form field=value; a value with commas needs"
        " quotes: field='a,b'."
      )
    field, text = item.split("=", 1)
    head, dot, rest = field.partition(".")
    field = SHORT.get(head, head) + dot + rest
    if field in seen:
      raise ValueError(f"config override {item!r}: {field}={seen[field]} is set already; drop one.")
    below = [other for other in seen if other.startswith(f"{field}.")]
    if below:
      raise ValueError(
        f"config override {item!r} drops {below[0]}={seen[below[0]]}; put {item!r} first."
      )
    seen[field] = text
    set_field(config, field, _read(config, field, text))
  return config


def parse_arg(arg: str | None, rows: Iterable[str], default: str) -> tuple[str, str]:
  """Splits `ROW,field=value,...` into the row's name and the overrides; the row may be left out.

  An unknown row raises ValueError, which lists the rows and the nearest.
  """
  items = split(arg or "")
  row = items.pop(0) if items and "=" not in items[0] else default
  if row not in rows:
    raise ValueError(f"unknown row {row!r}.{nearest(row, rows)} Rows: {', '.join(rows)}.")
  return row, ",".join(items)


def take_override(overrides: str, key: str, choices: Iterable[str] = ()) -> tuple[str, str]:
  """Separates `key=value` from the overrides, for a config file that gives `key` its own meaning.

  Args:
    overrides: The overrides, `field=value,...`.
    key: The key to separate.
    choices: The valid values; empty if every value is valid.

  Returns:
    The value and the other overrides. If `key` is not among them, the value is the first of
    `choices`, or "" if there are none.
  """
  items = split(overrides)
  settings = [item for item in items if item.split("=", 1)[0] == key]
  if len(settings) > 1:
    raise ValueError(f"config override {settings[1]!r}: {settings[0]} is set already; drop one.")
  text = settings[0].partition("=")[2] if settings else next(iter(choices), "")
  value = _parse(text)
  value = value if isinstance(value, str) else text
  if choices and value not in choices:
    raise ValueError(f"{key}={value!r} is unknown.{nearest(value, choices)} Valid: {choices}.")
  return value, ",".join(item for item in items if item not in settings)


def with_source_facts(
  config: ConfigDict, source: str, *, num_classes: int, **data: Any
) -> ConfigDict:
  """Fills the unset fields of a config with known facts about a data set, if the config uses it.

  For another data set the classes, image size and statistics are found when it is opened. Call this
  function after the overrides.

  Args:
    config: The config, overrides included.
    source: The data set that the facts are about.
    num_classes: The number of classes.
    **data: Values for fields of `config.data`, such as `image_size`, `mean`, `std`.
  """
  if config.data.source != source:
    return config
  with config.unlocked():
    config.model.num_classes = config.model.get("num_classes", num_classes)
    for field, value in data.items():
      if config.data[field] is None:
        config.data[field] = value
  return config


def set_field(config: ConfigDict, path: str, value: Any) -> None:
  """Sets a field at a dotted path.

  A string for a named choice, such as "softmax" for `model.token_mixer`, is its new name, and drops
  the fields of the old one. A part of the model that the config does not name, such as `model.norm`
  in `model.norm.epsilon`, gets its default name.

  Raises:
    ValueError: The field does not exist (the message suggests one), or its value is wrong.
  """
  *parents, last = path.split(".")
  if parents[:1] == ["phases"]:
    _set_in_phase(config, path, value)
    return
  node = config
  for depth, key in enumerate(parents):
    if isinstance(node.get(key), str) and "name" in node and key != "name":
      _replace(node, key, ConfigDict({"name": node[key]}))  # a bare name becomes a dict
    if parents[:depth] == ["model"] and node.get(key) is None and (part := _find_part(config, key)):
      _replace(node, key, ConfigDict(registry.fields_of(make_tuples(part[0]))))
    if not isinstance(node.get(key), ConfigDict):
      raise ValueError(_unknown(".".join(parents[: depth + 1]), node))
    node = node[key]
  # A named choice accepts any field here; `registry.build` checks its fields later.
  if last not in node and "name" not in node and path not in fields.ABSENT:
    raise ValueError(_unknown(path, node))
  old = node.get(last)
  if isinstance(old, ConfigDict) and "name" not in old:
    if not isinstance(value, dict):
      raise ValueError(f"{path}={value!r} must be a group with the fields {listing(old)}")
    for key, entry in value.items():  # the other fields of the group keep their values
      set_field(config, f"{path}.{key}", entry)
    return
  if parents == ["model"] and old is None and isinstance(value, str):
    value = {"name": value} if _find_part(config, last) else value
  value = _fit(old, value)
  declared = fields.declarations().get(path)
  if declared is not None and path not in fields.named_choices():
    check_value(value, path, declared.type)
  _replace(node, last, value)


def make_tuples(value: Any) -> Any:
  """Returns a JSON value with tuples instead of lists, as a config needs it."""
  if isinstance(value, dict):
    return {key: make_tuples(entry) for key, entry in value.items()}
  return tuple(map(make_tuples, value)) if isinstance(value, list) else value


def _set_in_phase(config: ConfigDict, path: str, value: Any) -> None:
  """Sets a field of `phases.NAME`, the changes that a phase makes to the config.

  The field is checked later, when the config is split into one config for each phase.
  """
  *parents, last = path.split(".")[1:]  # the phase's name, then the path of a field
  if not parents and not isinstance(value, dict):
    raise ValueError(f"{path}={value!r} must be a group; set its fields, such as {path}.seed=1.")
  like = fields.find(config, path.split(".", 2)[2]) if parents else None
  node = config.phases
  for key in parents:
    _replace(node, key, node.get(key) or ConfigDict())
    node = node[key]
  _replace(node, last, _fit(node.get(last, like) if parents else None, value))


def _replace(node: ConfigDict, key: str, value: Any) -> None:
  """Sets an entry of a ConfigDict; a named choice and its fields may change their types."""
  old = node.get(key)
  with node.unlocked():
    if isinstance(old, float) and type(value) is int:
      value = float(value)
    if old is not None and ("name" in node or isinstance(value, ConfigDict)):
      del node[key]
    node[key] = value


def _fit(old: Any, value: Any) -> Any:
  """Converts a value to the type that the field's old value has."""
  if isinstance(old, ConfigDict) and "name" in old and not isinstance(value, dict):
    value = {"name": value}
  if isinstance(value, dict):
    return ConfigDict(value)
  if isinstance(old, str) and not isinstance(value, str | None):
    return str(value)  # a duration in steps may be written as a number
  if isinstance(old, tuple) and not isinstance(value, tuple | None):
    return tuple(value) if isinstance(value, list) else (value,)
  return value


def _read(config: ConfigDict, path: str, text: str) -> Any:
  """Parses the text of a value; a string field keeps the text without enclosing quotes.

  A field of several texts also takes names without quotes: `sex` or `(sex,age)`.
  """
  value = _parse(text)
  declared = fields.declarations().get(re.sub(r"^phases\.[^.]*\.", "", path))
  if isinstance(value, str) and declared and declared.type == tuple[str, ...] | None:
    names = value[1:-1] if value[:1] + value[-1:] in ("()", "[]") else value
    return tuple(name.strip() for name in names.split(",") if name.strip())
  if value is None or isinstance(value, str | dict):
    return value
  kinds = _list_types(config, path)
  return text if "str" in kinds and type(value).__name__ not in kinds else value


def _parse(text: str) -> Any:
  """Returns the value of a Python literal, or the text itself if it is none."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def _list_types(config: ConfigDict, path: str) -> Collection[str]:
  """Returns the names of a field's declared types, or of the type of an undeclared value."""
  if path.startswith("phases."):
    path = path.split(".", 2)[-1]
  known = fields.declarations()
  if path in known:
    return {kind.__name__ for kind in base_types(known[path].type)}
  head, _, name = path.partition(".")
  old = fields.find(config, path)
  if "." not in name and (old is fields.MISSING or isinstance(old, str | None)):
    field = (_find_choice(config, head) or {"fields": {}})["fields"].get(name)
    if field:
      return field["types"]
  return {type(old).__name__}


def _find_choice(config: ConfigDict, head: str) -> choices.ChoiceRecord | None:
  """Returns the record of a choice, such as "optimizer"; None for the user's own code.

  The user's code is not run while a config is read.
  """
  is_choice = head in fields.named_choices()
  name = registry.fields_of(config[head]).get("name") if is_choice else None
  return choices.find(head, name) if isinstance(name, str) and ":" not in name else None


def _find_part(config: ConfigDict, field: str) -> Sequence | None:
  """Returns the default and the hidden fields of a part of the model, such as "norm"."""
  return (_find_choice(config, "model") or {"parts": {}})["parts"].get(field)


def split(text: str) -> list[str]:
  """Splits at commas outside brackets and quotes; `data.source='folder:/a,b'` stays whole."""
  items, depth, start = [], 0, 0
  quote, before = "", ","
  for i, character in enumerate(text):
    if quote:
      quote = "" if character == quote else quote
    elif character in "'\"" and before in "=,:([{":  # elsewhere it is an apostrophe
      quote = character
    else:
      depth += (character in "([{") - (character in ")]}")
      if character == "," and depth == 0:
        items.append(text[start:i].strip())
        start = i + 1
    before = before if character.isspace() else character
  if (quote or depth) and "," in text[start:]:
    raise ConfigError(
      f"{text[start:].strip()!r} has a bracket or quote without a partner; give the value in"
      " quotes, such as init_from='a(b'."
    )
  return [item for item in [*items, text[start:].strip()] if item]


def _unknown(field: str, node: ConfigDict) -> str:
  return (
    f"config has no field {field!r}.{fields.suggest(field, node)} Fields there: {listing(node)}."
  )
