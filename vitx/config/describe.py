"""Describes every field of a config: its value, its type and its meaning.

A named choice is a field such as `model` or `optimizer`, whose value is a name with fields of its
own. A config need not contain the fields of a choice that have their defaults; `complete` adds
them. Types, defaults and meanings of most fields come from `vitx.config.fields`. Those of a named
choice come from the signature and docstring of the class or function to which the name refers.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from vitx.config import choices, registry
from vitx.config.choices import read_meanings, show_kind, to_plain
from vitx.config.fields import LORA, MISSING, LoraSettings, find, find_lora, named_choices, walk

# The model sets the arguments in SET_BY_MODEL from other fields; training passes those in HIDDEN to
# the functions of optax.
SET_BY_MODEL = ("seed",)
HIDDEN = ("decay_mask", "learning_rate", "mask")


@dataclasses.dataclass(frozen=True)
class Description:
  """The description of a field.

  Attributes:
    value: The value in the config, or the default if the config has none, as a JSON value.
    kind: The declared type in readable form, or the names of a named choice that ship with vitx; ""
      if there is neither.
    meaning: The meaning in a few words; "" if no docstring explains the field.
  """

  value: Any
  kind: str = ""
  meaning: str = ""


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the whole config as a JSON tree, with every field of named choices like `optimizer`."""
  tree: dict[str, Any] = {}
  for path, described in describe(config).items():
    *parents, last = path.split(".")
    functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = (
      described.value
    )
  # `describe` has no field for a phase that changes nothing.
  tree["phases"] = to_plain(config.get("phases", {}))
  return tree


def describe(config: Mapping[str, Any]) -> dict[str, Description]:
  """Returns the description of every field by its path, in the order of `vitx.config.fields`."""
  descriptions: dict[str, Description] = {}
  named = named_choices()
  for path, section, field in walk():
    value = find(config, path)
    if value is MISSING:
      continue
    if path == "model":
      descriptions |= _model(value)
    elif path in named:
      descriptions |= _choice(path, value, HIDDEN)
    else:
      described = Description(None, show_kind(field.type), read_meanings(section)[field.name])
      descriptions |= _leaves(path, value, described)
  for key in config:
    if key not in named:  # the leaves without a description are fields that the user has added
      for path, leaf in _leaves(key, config[key], Description(None)).items():
        descriptions.setdefault(path, leaf)
  return descriptions


def _leaves(path: str, value: Any, described: Description) -> dict[str, Description]:
  """Returns the description of a field, or those of all fields in a group, by path."""
  if not hasattr(value, "keys"):
    kind = described.kind or show_kind(type(value))
    return {path: dataclasses.replace(described, value=to_plain(value), kind=kind)}
  inner = (_leaves(f"{path}.{key}", value[key], Description(None)) for key in value)
  return {name: leaf for leaves in inner for name, leaf in leaves.items()}


def _model(model: Mapping[str, Any]) -> dict[str, Description]:
  """Describes the fields of a model and of its parts, such as `token_mixer`, by path."""
  parts = choices.find("model", model["name"])["parts"]
  apart = (*parts, "lora")
  descriptions = _choice("model", {key: x for key, x in model.items() if key not in apart}, ())
  for part, (default, hidden) in parts.items():
    if part == "token_mixer":
      posemb, _ = _name_and_fields(model.get("posemb", parts["posemb"][0]))
      set_by_positions = choices.find("model.posemb", posemb, model["name"])["mixer_fields"]
      hidden = (*hidden, *SET_BY_MODEL, *set_by_positions)
    spec = model.get(part, default)
    descriptions |= _choice(f"model.{part}", spec, hidden, model["name"])
  if (adapters := find_lora(model)) is not None:
    for path, section, field in walk(LoraSettings, f"{LORA}."):
      value, meaning = to_plain(adapters[field.name]), read_meanings(section)[field.name]
      descriptions[path] = Description(value, show_kind(field.type), meaning)
  return descriptions


def _choice(path: str, spec: Any, hidden: Sequence[str], model: str = "") -> dict[str, Description]:
  """Describes the name and the fields of a named choice, by path.

  Fields in `hidden` are left out, unless the config sets them.
  """
  name, values = _name_and_fields(spec)
  record = choices.find(path, name, model)
  descriptions = {f"{path}.name": Description(name, record["names"], record["doc"])}
  for key in dict.fromkeys([*record["fields"], *values]):
    field = record["fields"].get(key, {})
    if key not in values and (key in hidden or "default" not in field):
      continue
    value = to_plain(values[key]) if key in values else field["default"]
    meaning = record["meanings"].get(key, "")
    descriptions[f"{path}.{key}"] = Description(value, field.get("kind", ""), meaning)
  return descriptions


def _name_and_fields(spec: Any) -> tuple[str, dict[str, Any]]:
  fields = registry.fields_of(spec)
  return fields.pop("name"), fields
