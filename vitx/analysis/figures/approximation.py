"""Measures the error of approximations of softmax attention, on the queries and keys of a model."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx import ops
from vitx.analysis.figures import style
from vitx.analysis.figures.capture import MixerCapture, capture, softmax_map
from vitx.analysis.figures.subject import Subject
from vitx.config.errors import ConfigError
from vitx.ops.kernels import features

COUNTS = (8, 16, 32, 64, 128, 256, 512)
DRAWS = 8
Approximate = Callable[[jax.Array, jax.Array, int, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Errors:
  """Relative errors |Â - A| / |A| (Frobenius norm) of approximations Â of attention matrices A.

  Attributes:
    counts: The sizes of the approximation: numbers of random features or of landmarks.
    values: The errors by kind of approximation, (L, len(counts), S) for L layers and S random
      draws. Each error is the mean over examples and heads.
  """

  counts: tuple[int, ...]
  values: dict[str, np.ndarray]


def capture_layers(subject: Subject) -> list[MixerCapture]:
  """Runs a network on its examples and returns the layers that have queries and keys.

  Raises:
    ConfigError: No layer has queries and keys.
  """
  layers = capture(subject.model, subject.variables(), subject.inputs(subject.examples))
  found = [
    layer
    for layer in layers
    if layer.q is not None and layer.k is not None and layer.q.shape == layer.k.shape
  ]
  if not found:
    raise ConfigError(
      f"{subject.label} has no queries and keys, so it has no softmax attention to approximate; use"
      " a model with softmax, performer, nystromformer or a pattern as token mixer."
    )
  return found


def _approximate(
  draw: Callable[..., jax.Array], q: jax.Array, k: jax.Array, count: int, key: jax.Array
) -> jax.Array:
  """Returns FAVOR+'s approximation of the attention matrix, (B, H, N, N).

  Args:
    draw: A function (key, count, D) that samples the random projections of the features.
    q, k: The queries and keys, (B, N, H, D).
    count: The number of random features.
    key: The random key.
  """
  projection = draw(key, count, q.shape[-1])
  phi_q = features.softmax_query_features(q, projection)
  phi_k = features.softmax_key_features(k, projection)
  return jnp.asarray(ops.linear_attention(phi_q, phi_k, k, implementation="masked")[1])


def landmarks(q: jax.Array, k: jax.Array, count: int, key: jax.Array) -> jax.Array:
  """Returns Nyströmformer's approximation (B, H, N, N) of the attention matrix; `key` is unused."""
  return jnp.asarray(ops.nystrom_attention(q, k, k, count, implementation="masked")[1])


PERFORMER: dict[str, Approximate] = {
  "orthogonal": partial(_approximate, features.orthogonal_gaussian),
  "independent": partial(_approximate, lambda key, *shape: jax.random.normal(key, shape)),
}


def measure_errors(
  layers: Sequence[MixerCapture],
  kinds: dict[str, Approximate],
  counts: Sequence[int],
  draws: int,
) -> Errors:
  """Measures how far approximations are from the softmax attention of each layer.

  Args:
    layers: The queries and keys of the layers.
    kinds: The approximations by name. Each is a function of q, k (B, N, H, D), a size and a random
      key that returns the attention matrix (B, H, N, N) for logits q·k / sqrt(D).
    counts: The sizes of the approximation: numbers of random features or of landmarks.
    draws: The number of random draws, S.
  """
  keys = jax.random.split(jax.random.key(0), draws)
  values = {kind: np.zeros((len(layers), len(counts), draws)) for kind in kinds}
  for number, layer in enumerate(layers):
    # The approximations assume the scale 1 / sqrt(D); the remaining factor goes into the queries.
    q, k = jnp.asarray(layer.q), jnp.asarray(layer.k)
    q *= layer.scale * math.sqrt(q.shape[-1])
    exact = jnp.asarray(softmax_map(q, k, 1 / math.sqrt(q.shape[-1])))
    for kind, approximate in kinds.items():
      for place, count in enumerate(counts):
        values[kind][number, place] = _errors(q, k, exact, keys, approximate, count)
  return Errors(tuple(counts), values)


def _errors(q, k, exact, keys, approximate: Approximate, count: int) -> np.ndarray:
  @jax.jit
  def one(q, k, exact, key):
    off = jnp.linalg.norm(approximate(q, k, count, key) - exact, axis=(-2, -1))
    return jnp.mean(off / jnp.linalg.norm(exact, axis=(-2, -1)))

  return np.array([one(q, k, exact, key) for key in keys])


def list_errors(errors: Errors) -> list[dict[str, Any]]:
  """Returns table rows with the mean and standard deviation of errors by kind, layer and size."""
  return [
    {"kind": kind, "layer": layer, "M": count, "error": float(values[layer, place].mean())}
    | {"deviation": float(values[layer, place].std(ddof=1)) if values.shape[-1] > 1 else 0.0}
    for kind, values in errors.values.items()
    for layer in range(len(values))
    for place, count in enumerate(errors.counts)
  ]


def plot_errors(errors: Errors, name: str, caption: str) -> Any:
  """Returns a figure with a panel for each kind of approximation.

  A panel shows the error over the size of the approximation, with a line for each layer.

  Args:
    errors: The errors.
    name: The label of the horizontal axis.
    caption: The text below the panels.
  """
  from matplotlib import colormaps

  kinds = errors.values
  width = style.PAGE if len(kinds) > 1 else style.COLUMN
  canvas, panels = style.make_panels(1, len(kinds), width, 2.1, caption)
  for axes, (kind, values) in zip(panels[0], kinds.items(), strict=True):
    for layer, each in enumerate(values):
      color = colormaps["viridis"](0.9 * layer / max(len(values) - 1, 1))
      mean, deviation = each.mean(-1), each.std(-1, ddof=1) if each.shape[-1] > 1 else 0.0
      axes.plot(errors.counts, mean, marker=".", ms=4, lw=1, color=color, label=f"layer {layer}")
      axes.fill_between(errors.counts, mean - deviation, mean + deviation, color=color, alpha=0.15)
    axes.set(xscale="log")
    axes.set_ylim(bottom=0)
    axes.set_xticks(errors.counts, [str(count) for count in errors.counts], minor=False)
    axes.set_xticks([], minor=True)
    style.name_axes(axes, name, "relative error", kind if len(kinds) > 1 else "")
  style.add_legend(canvas, panels[0, 0])
  return canvas
