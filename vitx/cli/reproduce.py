"""Trains a config's rows and sets its source's figures beside ours: `vitx reproduce`."""

import re
from typing import Any

from vitx.cli.sweep import compare
from vitx.config.errors import ConfigError
from vitx.config.loader import join_text, load_config, split_text
from vitx.sweeps.points import ROW, expand, find_published, find_rows, make_points
from vitx.training.trial import complete_config, count_training_flops


def run(
  config: str,
  rows: str,
  seeds: int,
  duration: str | None,
  budget: float | None,
  workdir: str | None,
  **output: Any,
) -> int:
  """Trains, writes the results and returns the exit status."""
  path, _ = split_text(config)
  wanted = find_rows(path, [row.strip() for row in rows.split(",") if row.strip()])
  texts = expand(config, {ROW: wanted})
  if duration is not None:
    texts = {row: join_text(text, [f"duration={duration}"]) for row, text in texts.items()}
  if budget is not None:
    texts = {row: _spend(row, text, budget) for row, text in texts.items()}
  stem = re.sub(r"\.py$", "", path.rpartition("/")[2])
  points = make_points(texts, seeds)
  return compare(points, find_published(path), workdir or f"runs/reproduce_{stem}", **output)


def _spend(row: str, text: str, budget: float) -> str:
  """Returns a row's text with the duration that the budget allows."""
  config = load_config(text)
  if config.get("phases"):
    raise ConfigError(f"budget: {row} runs in phases; give a duration, or phases.NAME.duration")
  each = count_training_flops(complete_config(config))
  if budget < each:
    raise ConfigError(
      f"budget={budget:.3g} FLOP is less than the {each:.3g} of one step of {row}; raise it"
    )
  return join_text(text, [f"duration={int(budget // each)} steps"])
