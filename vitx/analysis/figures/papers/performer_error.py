"""Draws the error of Performer's random features: `vitx visualize performer_error`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from vitx import ops
from vitx.analysis.figures import style
from vitx.analysis.figures.papers import approximation
from vitx.analysis.figures.subject import Subject
from vitx.ops.kernels import features

COUNTS = (8, 16, 32, 64, 128, 256, 512)
DRAWS = 8


def _approximate(
  draw: Callable[..., jax.Array], q: jax.Array, k: jax.Array, count: int, key: jax.Array
) -> jax.Array:
  """Returns FAVOR+'s attention matrix; `draw(key, count, D)` samples the random projections."""
  projection = draw(key, count, q.shape[-1])
  phi_q = features.softmax_query_features(q, projection)
  phi_k = features.softmax_key_features(k, projection)
  return jnp.asarray(ops.linear_attention(phi_q, phi_k, k, implementation="masked")[1])


KINDS = {
  "orthogonal": partial(_approximate, features.orthogonal_gaussian),
  "independent": partial(_approximate, lambda key, *shape: jax.random.normal(key, shape)),
}


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws the error of Performer's random features against their number, for each layer.

  The features approximate the softmax attention of the model's queries and keys, even if the model
  was trained with another mixer. One panel has orthogonal random features, another independent
  ones.
  """
  layers = approximation.capture_layers(subject)
  errors = {
    kind: approximation.measure_errors(layers, approximate, COUNTS, DRAWS)
    for kind, approximate in KINDS.items()
  }
  caption = f"{subject.note}. Relative error of the attention matrix by M positive random features"
  caption += f" (FAVOR+), {subject.examples} examples, mean ± standard deviation of"
  caption += f" {DRAWS} draws."
  canvas = approximation.plot_errors(errors, COUNTS, "features M", caption)
  rows = approximation.list_errors(errors, COUNTS)
  return style.save_both(canvas, out, f"performer_error_{subject.label}", rows)
