"""The names of the figures of `vitx visualize FIGURE`, with a description of each.

A figure is the function `draw_NAME` in the file `NAME.py` of this folder, which is imported when
the figure is drawn. The function writes files into a folder and returns their paths. To add a
figure, write such a file and add a line to one of the tables below. The table decides which
arguments the function gets:

- `FIGURES`: a `Subject` (a network with its variables and some examples) and the folder.
- `SIDE_BY_SIDE`: several subjects and the folder.
- `RUN_FIGURES`: the curves of several runs, the name of the drawn quantity, the folder and the
  file's name.
- `RESULT_FIGURES`: a sweep's results, the memory of its methods, the name of the drawn quantity, a
  caption, the folder and the file's name.
- `PATTERN_FIGURES`: the names of patterns, a grid and the folder.
- `SPLIT_FIGURES`: a classifier's predictions on a split (`mistakes.PredictedSplit`) and the folder.

For notebooks, each file also has functions that return arrays, and functions `plot_...` that draw
such arrays and return matplotlib's figure.
"""

import importlib
from collections.abc import Callable
from pathlib import Path

FIGURES = {
  "attention_past": "a density model's attention to earlier tokens, and its share on near ones",
  "landmarks": "the landmarks of Nystromformer, and the approximation error by their number",
  "patterns": "the pattern of each layer as a matrix, and on the grid the keys of one query",
  "performer_error": "the error of Performer's random features by their number and layer",
  "posemb": "the cosine similarity between the position embeddings of all places",
  "projections": "W_Q W_K^T and W_V W_O by layer and head, and the share on their diagonals",
  "reconstructions": "images, their visible patches, and what a masked autoencoder makes of them",
  "receptive_field": "the tokens that a query reads through the last layers of a pattern",
  "sparsifiner": "Sparsifiner's masks, sparse and full attention for a few queries, and bases",
}
SIDE_BY_SIDE = {
  "attention": "attention over the image: all layers and heads, the last layer and rollout",
  "graph": "density, path length, clustering, spectral gap, ... of the layers' patterns",
  "shaped_scalars": "the learned α, β and γ of shaped attention by layer and head",
}
RUN_FIGURES = {
  "curves": "the loss and validation figure of runs by step, mean ± standard deviation",
}
PATTERN_FIGURES = {
  "gallery": "named patterns on a grid, and the receptive field of a query by layers",
}
RESULT_FIGURES = {
  "memory": "the test figure of a sweep's methods against the memory of a training step",
}
SPLIT_FIGURES = {
  "confusion": "a classifier's confusion matrix on a split",
  "mistakes": "most confident mistakes and least certain examples, with attention over them",
  "reliability": "accuracy by confidence: the reliability diagram on a split",
}
ALL_FIGURES = (
  FIGURES | SIDE_BY_SIDE | RUN_FIGURES | RESULT_FIGURES | PATTERN_FIGURES | SPLIT_FIGURES
)


def find_figure(name: str) -> Callable[..., list[Path]]:
  """Returns the function that draws a figure, given a name of `ALL_FIGURES`."""
  return getattr(importlib.import_module(f"{__name__}.{name}"), f"draw_{name}")
