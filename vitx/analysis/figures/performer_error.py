"""Draws the error of Performer's random features: `vitx visualize performer_error`."""

from pathlib import Path

from vitx.analysis.figures import approximation, style
from vitx.analysis.figures.subject import Subject


def draw_performer_error(subject: Subject, out: Path) -> list[Path]:
  """Draws the error of Performer's random features against their number, for each layer.

  The features approximate the softmax attention of the model's queries and keys, even if the model
  was trained with another mixer. One panel has orthogonal random features, another independent
  ones.

  Raises:
    ConfigError: The model has no queries and keys.
  """
  counts, draws = approximation.COUNTS, approximation.DRAWS
  layers = approximation.capture_layers(subject)
  errors = approximation.measure_errors(layers, approximation.PERFORMER, counts, draws)
  caption = f"{subject.note}. Relative error of the attention matrix by M positive random features"
  caption += f" (FAVOR+), {subject.examples} examples, mean ± standard deviation of"
  caption += f" {draws} draws."
  canvas = approximation.plot_errors(errors, "features M", caption)
  rows = approximation.list_errors(errors)
  return style.save_both(canvas, out, f"performer_error_{subject.label}", rows)
