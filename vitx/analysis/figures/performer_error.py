"""How far Performer's features are from softmax attention, for `vitx visualize performer_error`."""

from pathlib import Path

from vitx.analysis.figures import approximation, style
from vitx.analysis.figures.subject import Subject


def draw_performer_error(subject: Subject, out: Path) -> list[Path]:
  """Error of Performer's features against their number M, by layer, orthogonal and independent.

  On queries and keys of any model that has them: its softmax attention is what is approximated.

  Raises:
    ConfigError: a model without queries and keys.
  """
  counts, draws = approximation.COUNTS, approximation.DRAWS
  layers = approximation.look(subject)
  errors = approximation.measure_errors(layers, approximation.PERFORMER, counts, draws)
  name = f"performer_error_{subject.label}"
  caption = f"{subject.note}. Relative error of the attention matrix by M positive random features"
  caption += f" (FAVOR+), {subject.examples} validation examples, mean ± standard deviation of"
  caption += f" {draws} draws."
  picture = style.keep(approximation.plot_errors(errors, "features M", caption), out, name)
  return [picture, style.write_rows(out / f"{name}.csv", approximation.list_errors(errors))]
