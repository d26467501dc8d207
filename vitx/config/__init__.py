"""Configs: their fields, overrides in one string, and the registry of named choices.

A named choice is a field such as `optimizer`, whose value is a name with fields of its own. A
config file begins with `default_config()`, sets some fields, and ends with `with_overrides`.
"""

from vitx.config.errors import ConfigError
from vitx.config.fields import default_config
from vitx.config.loader import load_base
from vitx.config.overrides import parse_arg, take_override, with_overrides, with_source_facts
from vitx.config.registry import Names

__all__ = [
  "ConfigError",
  "Names",
  "default_config",
  "load_base",
  "parse_arg",
  "take_override",
  "with_overrides",
  "with_source_facts",
]
