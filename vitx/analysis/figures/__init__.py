"""The table of the figures of `vitx visualize FIGURE`.

A figure is a file of this folder, or of `papers` if one paper alone needs it. Its function
`draw(inputs, out)` writes files into the folder `out` and returns their paths. To add a figure,
write such a file and add a line to the table.

For notebooks, the files also have functions that return arrays, and functions `plot_...` that draw
such arrays and return matplotlib's figure.
"""

from vitx.config.registry import Table

# The descriptions of the figures, by the kind of their inputs and by name. The inputs are a
# `subject.Subject` ("model"), several of them ("models"), `curves.RunCurves` ("runs"),
# `papers.memory.SweepResults` ("results"), `gallery.NamedPatterns` ("patterns") or
# `mistakes.PredictedSplit` ("split").
TABLE = {
  "model": {
    "attention_past": "a density model's attention to earlier tokens, and its share on near ones",
    "landmarks": "the landmarks of Nystromformer, and the approximation error by their number",
    "patterns": "the pattern of each layer as a matrix, and on the grid the keys of one query",
    "performer_error": "the error of Performer's random features by their number and layer",
    "posemb": "the cosine similarity between the position embeddings of all places",
    "projections": "W_Q W_K^T and W_V W_O by layer and head, and the share on their diagonals",
    "reconstructions": "images, their visible patches, and what a masked autoencoder makes of them",
    "receptive_field": "the tokens that a query reads through the last layers of a pattern",
    "sparsifiner": "Sparsifiner's masks, sparse and full attention for a few queries, and bases",
  },
  "models": {
    "attention": "attention over the image: all layers and heads, the last layer and rollout",
    "graph": "density, path length, clustering, spectral gap, ... of the layers' patterns",
    "shaped_scalars": "the learned α, β and γ of shaped attention by layer and head",
  },
  "runs": {
    "alignment": "the error of each layer after `swap.align`, mean ± standard deviation",
    "curves": "the loss and validation figure of runs by step, mean ± standard deviation",
  },
  "results": {
    "memory": "the test figure of a sweep's methods against the memory of a training step"
  },
  "patterns": {"gallery": "named patterns on a grid, and the receptive field of a query by layers"},
  "split": {
    "confusion": "a classifier's confusion matrix on a split",
    "mistakes": "most confident mistakes and least certain examples, with attention over them",
    "reliability": "accuracy by confidence: the reliability diagram on a split",
  },
}
FIGURES = {name: (kind, text) for kind, texts in TABLE.items() for name, text in texts.items()}
PAPERS = (
  *("attention_past", "landmarks", "memory", "performer_error", "projections"),
  *("shaped_scalars", "sparsifiner"),
)
# The function `draw(inputs, out)` of each figure; it returns the paths of the files that it writes.
DRAW = Table(__name__, **{name: f"{'papers.' * (name in PAPERS)}{name}:draw" for name in FIGURES})
