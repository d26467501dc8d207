"""Whole networks, which `create_model` makes by name."""

from vitx.models.create import (
  DTYPES,
  MODELS,
  check_model,
  create_model,
  find_mixer,
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
  "find_mixer",
  "initialize",
  "list_models",
  "model_from_config",
  "resolve_model",
  "token_layout",
]
