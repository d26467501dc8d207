"""Figures of models by name: what `vitx visualize FIGURE` draws.

A figure is a function of a `Subject` and a folder; it writes its files there and returns their
paths. A new one is a file and a line here.
"""

from collections.abc import Callable
from pathlib import Path

from vitx.analysis.figures.attention_past import draw_attention_past
from vitx.analysis.figures.patterns import draw_patterns
from vitx.analysis.figures.sparsifiner import draw_sparsifiner
from vitx.analysis.figures.subject import Subject

FIGURES: dict[str, Callable[[Subject, Path], list[Path]]] = {
  "attention_past": draw_attention_past,
  "patterns": draw_patterns,
  "sparsifiner": draw_sparsifiner,
}
