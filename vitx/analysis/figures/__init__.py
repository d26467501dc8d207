"""Figures of models by name: what `vitx visualize FIGURE` draws.

A figure is a function of a `Subject` and a folder; it writes its files there and returns their
paths. One of several runs is a function of their curves, the figure's name, a folder and the file's
name; one of patterns, without a model, is a function of their names, a grid and a folder. A new one
is a file and a line here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from vitx.analysis.figures.attention_past import draw_attention_past
from vitx.analysis.figures.curves import Curve, draw_curves
from vitx.analysis.figures.gallery import draw_gallery
from vitx.analysis.figures.patterns import draw_patterns
from vitx.analysis.figures.sparsifiner import draw_sparsifiner
from vitx.analysis.figures.subject import Subject

FIGURES: dict[str, Callable[[Subject, Path], list[Path]]] = {
  "attention_past": draw_attention_past,
  "patterns": draw_patterns,
  "sparsifiner": draw_sparsifiner,
}
RUN_FIGURES: dict[str, Callable[[Sequence[Curve], str, Path, str], list[Path]]] = {
  "curves": draw_curves,
}
PATTERN_FIGURES: dict[str, Callable[[Sequence[str], Sequence[int], Path], list[Path]]] = {
  "gallery": draw_gallery,
}
