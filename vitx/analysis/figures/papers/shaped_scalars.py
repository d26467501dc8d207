"""Draws the learned scalars α, β and γ of shaped attention by layer (Diaz 2023).

The attention matrix is α I + β A - γ C. A is softmax attention, and C attends all tokens equally.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from vitx.analysis.figures import style
from vitx.analysis.figures.subject import Subject
from vitx.config.errors import ConfigError
from vitx.models.sown import collect

LETTERS = {"alpha": "α", "beta": "β", "gamma": "γ"}
Scalars = dict[str, np.ndarray]


def draw(subjects: Sequence[Subject], out: Path) -> list[Path]:
  """Draws learned α, β and γ of shaped attention by layer: a line for each head, with a table."""
  by_model = {subject.label: compute_scalars(subject) for subject in subjects}
  name = "_".join(["shaped_scalars", *by_model])
  rows = [
    {"model": label, "scalar": scalar, "layer": layer, "head": head, "value": float(value)}
    for label, scalars in by_model.items()
    for scalar, values in scalars.items()
    for (layer, head), value in np.ndenumerate(values)
  ]
  note = "; ".join(f"{subject.label}: {subject.note}" for subject in subjects)
  return style.save_both(plot_scalars(by_model, note), out, name, rows)


def compute_scalars(subject: Subject) -> Scalars:
  """Returns the learned scalars of shaped attention: "alpha", "beta" and, if present, "gamma".

  Layers without these scalars are ignored.

  Returns:
    The scalars by name, (L, H) each, or (L, 1) if heads share them.
  """
  params = flatten_dict(dict(subject.variables()["params"]), sep="/")
  leaves = {path: (x,) for path, x in params.items()}
  scalars = {letter: collect(leaves, letter) for letter in LETTERS}
  if not any(scalars.values()):
    raise ConfigError(f"shaped_scalars: {subject.label} has no α, β or γ; use token_mixer=shaped.")
  return {letter: np.stack(list(map(np.asarray, x.values()))) for letter, x in scalars.items() if x}


def plot_scalars(by_model: Mapping[str, Scalars], note: str) -> Any:
  """Returns a figure with a panel for each model: values over layers, a color for each scalar."""
  caption = f"{note}. Learned scalars of α I + β A - γ C; a line for each head where heads differ."
  width = min(style.PAGE, max(style.COLUMN, 2.2 * len(by_model)))
  canvas, panels = style.make_panels(1, len(by_model), width, 1.9, caption)
  for axes, (label, scalars) in zip(panels[0], by_model.items(), strict=True):
    for number, letter in enumerate(LETTERS):
      for head, line in enumerate(scalars.get(letter, np.zeros((0, 0))).T):
        name = LETTERS[letter] if head == 0 else None
        axes.plot(line, marker=".", ms=4, lw=1, color=f"C{number}", alpha=0.8, label=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    style.name_axes(axes, "layer", "value", label if len(by_model) > 1 else "")
  most = max(panels[0], key=lambda axes: len(axes.get_legend_handles_labels()[0]))
  style.add_legend(canvas, most)
  return canvas
