"""Figures of models by name: what `vitx visualize FIGURE` draws.

A figure is a function of a `Subject` and a folder; it writes its files there and returns their
paths. One that sets several models side by side is a function of their subjects; one of several
runs is a function of their curves, the figure's name, a folder and the file's name; one of the
results of a sweep is a function of those, of the memory of its methods and of the same; one of
patterns, without a model, is a function of their names, a grid and a folder. A new one is a file
and a line here. For notebooks each file also has functions that return arrays and one that returns
matplotlib's figure of them (`plot_...`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from vitx.analysis.figures.approximation import draw_performer_error
from vitx.analysis.figures.attention import draw_attention
from vitx.analysis.figures.attention_past import draw_attention_past
from vitx.analysis.figures.curves import draw_curves
from vitx.analysis.figures.gallery import draw_gallery
from vitx.analysis.figures.graph import draw_graph
from vitx.analysis.figures.landmarks import draw_landmarks
from vitx.analysis.figures.memory import draw_memory
from vitx.analysis.figures.patterns import draw_patterns
from vitx.analysis.figures.posemb import draw_posemb
from vitx.analysis.figures.projections import draw_projections
from vitx.analysis.figures.receptive_field import draw_receptive_field
from vitx.analysis.figures.shaped_scalars import draw_shaped_scalars
from vitx.analysis.figures.sparsifiner import draw_sparsifiner
from vitx.analysis.figures.subject import Subject

FIGURES: dict[str, Callable[[Subject, Path], list[Path]]] = {
  "attention_past": draw_attention_past,
  "landmarks": draw_landmarks,
  "patterns": draw_patterns,
  "performer_error": draw_performer_error,
  "posemb": draw_posemb,
  "projections": draw_projections,
  "receptive_field": draw_receptive_field,
  "sparsifiner": draw_sparsifiner,
}
SIDE_BY_SIDE: dict[str, Callable[[Sequence[Subject], Path], list[Path]]] = {
  "attention": draw_attention,
  "graph": draw_graph,
  "shaped_scalars": draw_shaped_scalars,
}
RUN_FIGURES: dict[str, Callable[..., list[Path]]] = {
  "curves": draw_curves,
}
PATTERN_FIGURES: dict[str, Callable[[Sequence[str], Sequence[int], Path], list[Path]]] = {
  "gallery": draw_gallery,
}
RESULT_FIGURES: dict[str, Callable[..., list[Path]]] = {
  "memory": draw_memory,
}
