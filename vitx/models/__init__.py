"""Whole networks by name."""

import importlib
from typing import Any

from vitx.models.create import (
  DTYPES,
  MODELS,
  check_model,
  create_model,
  initialize,
  list_models,
  model_from_config,
  resolve_model,
)
from vitx.models.tracing import token_layout

__all__ = [
  "DTYPES",
  "MODELS",
  "check_model",
  "create_model",
  "initialize",
  "list_models",
  "model_from_config",
  "resolve_model",
  "token_layout",
]


def __getattr__(name: str) -> Any:
  # The import waits for the first use: `vitx.analysis` itself imports this package.
  if name == "count":
    return importlib.import_module("vitx.analysis.counting").count
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
