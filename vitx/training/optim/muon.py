"""Muon: makes the momentum of every hidden matrix orthogonal, and uses Adam for the rest."""

import math
from typing import Any

import optax

from vitx.config.checks import NonNegative, Positive, PositiveInt, Rate
from vitx.models import names
from vitx.training.parameters import map_named


def muon(
  decay_mask: Any,
  *,
  beta: Rate = 0.95,
  ns_steps: PositiveInt = 5,
  b1: Rate = 0.9,
  b2: Rate = 0.98,
  eps: Positive = 1e-8,
  weight_decay: NonNegative = 0.01,
) -> optax.GradientTransformation:
  """Makes Muon (Jordan et al., 2024) with decoupled decay; its directions are as large as Adam's.

  Each kernel outside of stem and head, however many axes it has, is treated as a matrix from inputs
  to outputs, and has Nesterov momentum. Stem, head, embeddings, position tables, scales and biases
  take Adam's steps, as Muon's authors advise; `optax:contrib.muon` applies Muon to all parameters
  of two axes. The directions have a root mean square of 0.2 (Liu et al., 2025), so the learning
  rates of AdamW suit Muon too.

  Args:
    decay_mask: A tree of booleans, True for the parameters to which `weight_decay` applies.
    beta: The decay of the momentum.
    ns_steps: The number of Newton-Schulz iterations in each step.
    b1: The decay of the mean of the gradient in Adam.
    b2: The decay of the mean of the squared gradient in Adam.
    eps: The small number that keeps the denominators of Muon and Adam from zero.
    weight_decay: The factor with which the parameters are added to the direction.
  """
  matrices = optax.chain(
    optax.contrib.scale_by_muon(
      ns_steps=ns_steps,
      beta=beta,
      eps=eps,
      weight_dimension_numbers=lambda params: map_named(_find_axes, params),
    ),
    optax.stateless(lambda updates, _: map_named(_scale, updates)),
  )
  # `optax.contrib.muon` would make Adam's momentum Nesterov's too: both follow one argument.
  directions = optax.partition(
    {"muon": matrices, "adam": optax.chain(optax.scale_by_adam(b1, b2, eps))},
    lambda params: map_named(lambda *x: "muon" if _find_axes(*x) else "adam", params),
  )
  return optax.chain(directions, optax.add_decayed_weights(weight_decay, decay_mask))


def _find_axes(name: str, parameter: Any) -> optax.contrib.MuonDimensionNumbers | None:
  """Returns a parameter's input and output axes if Muon trains it; None if Adam does."""
  *modules, last = name.split("/")
  ndim = parameter.ndim
  if last != names.KERNEL or ndim < 2 or names.STEM in modules[:1] or names.is_head(name):
    return None
  inputs = names.input_axes(modules[-1] if modules else "", ndim)
  outputs = tuple(axis for axis in range(ndim) if axis not in inputs)
  return optax.contrib.MuonDimensionNumbers(inputs, outputs)


def _scale(name: str, update: Any) -> Any:
  """Returns a matrix with singular values of 1, scaled to a root mean square of 0.2."""
  fans = [math.prod(update.shape[i] for i in axes) for axes in _find_axes(name, update) or ()]
  return 0.2 * math.sqrt(max(fans)) * update
