"""Measures the error of approximations of softmax attention, on the queries and keys of a model.

The relative error of an approximation Â of an attention matrix A is |Â - A| / |A| (Frobenius norm).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis.figures import style
from vitx.analysis.figures.capture import MixerCapture, capture, softmax_map
from vitx.analysis.figures.subject import Subject
from vitx.config.errors import ConfigError

Errors = Mapping[str, np.ndarray]  # the errors (L, M, S) of each kind of approximation
# A function of q, k (B, N, H, D), a size and a random key that returns the attention matrix
# (B, H, N, N) for logits q·k / sqrt(D).
Approximate = Callable[[jax.Array, jax.Array, int, jax.Array], jax.Array]


def capture_layers(subject: Subject) -> list[MixerCapture]:
  """Runs a network on its examples and returns the layers that have queries and keys."""
  layers = [
    layer
    for layer in capture(subject.model, subject.variables(), subject.inputs(subject.examples))
    if layer.q is not None and layer.k is not None and layer.q.shape == layer.k.shape
  ]
  if not layers:
    raise ConfigError(f"{subject.label} has no queries and keys; use a mixer such as softmax.")
  return layers


def measure_errors(
  layers: Sequence[MixerCapture], approximate: Approximate, counts: Sequence[int], draws: int
) -> np.ndarray:
  """Measures how far an approximation is from the softmax attention of each layer.

  Args:
    layers: The queries and keys of L layers.
    approximate: The approximation.
    counts: The M sizes of the approximation: numbers of random features or of landmarks.
    draws: The number of random draws, S.

  Returns:
    The relative errors, means over examples and heads, (L, M, S).
  """
  errors = np.zeros((len(layers), len(counts), draws))

  def measure(q, k, exact, count, key):
    off = jnp.linalg.norm(approximate(q, k, count, key) - exact, axis=(-2, -1))
    return jnp.mean(off / jnp.linalg.norm(exact, axis=(-2, -1)))

  run = jax.jit(measure, static_argnums=3)
  for number, layer in enumerate(layers):
    # The approximations assume the scale 1 / sqrt(D); the remaining factor goes into the queries.
    q, k = jnp.asarray(layer.q), jnp.asarray(layer.k)
    q *= layer.scale * math.sqrt(q.shape[-1])
    exact = jnp.asarray(softmax_map(q, k, 1 / math.sqrt(q.shape[-1])))
    for place, count in enumerate(counts):
      for draw, key in enumerate(jax.random.split(jax.random.key(0), draws)):
        errors[number, place, draw] = run(q, k, exact, count, key)
  return errors


def list_errors(errors: Errors, counts: Sequence[int]) -> list[dict[str, Any]]:
  """Returns table rows with the mean and standard deviation of errors by kind, layer and size."""
  return [
    {"kind": kind, "layer": layer, "M": count, "error": float(values[layer, place].mean())}
    | {"deviation": float(values[layer, place].std(ddof=1)) if values.shape[-1] > 1 else 0.0}
    for kind, values in errors.items()
    for layer in range(len(values))
    for place, count in enumerate(counts)
  ]


def plot_errors(errors: Errors, counts: Sequence[int], name: str, caption: str) -> Any:
  """Returns a figure of errors over sizes: a panel for each kind, a line for each layer."""
  from matplotlib import colormaps

  width = style.PAGE if len(errors) > 1 else style.COLUMN
  canvas, panels = style.make_panels(1, len(errors), width, 2.1, caption)
  for axes, (kind, values) in zip(panels[0], errors.items(), strict=True):
    for layer, samples in enumerate(values):
      color = colormaps["viridis"](0.9 * layer / max(len(values) - 1, 1))
      mean, deviation = samples.mean(-1), samples.std(-1, ddof=1) if samples.shape[-1] > 1 else 0.0
      axes.plot(counts, mean, marker=".", ms=4, lw=1, color=color, label=f"layer {layer}")
      axes.fill_between(counts, mean - deviation, mean + deviation, color=color, alpha=0.15)
    axes.set(xscale="log")
    axes.set_ylim(bottom=0)
    axes.set_xticks(counts, [str(count) for count in counts], minor=False)
    axes.set_xticks([], minor=True)
    style.name_axes(axes, name, "relative error", kind if len(errors) > 1 else "")
  style.add_legend(canvas, panels[0, 0])
  return canvas
