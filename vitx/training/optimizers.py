"""Optimizers: clipping, descent direction, weight decay, layer-wise rates, frozen parameters.

`make_optimizer` gives directions u that are not yet multiplied by the learning rate; the step does
`new = params - learning_rate * u`. adam and sgd couple weight decay as PyTorch does: it is added to
the gradient and passes through the moments. adamw and lion decouple it: u contains
weight_decay * params. All arithmetic and all moments are float32, whatever the gradient is.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vitx.checks import check_number
from vitx.errors import ConfigError
from vitx.registry import build, lookup
from vitx.training.parameters import nearest_names, parameter_names, with_leaves

# A tree of booleans like the parameters: which of them weight decay touches.
Mask = Any


def adam(
  decay_mask: Mask,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
) -> optax.GradientTransformation:
  """Adam (Kingma and Ba, 2015) with coupled weight decay: `torch.optim.Adam`."""
  return optax.chain(_decay(weight_decay, decay_mask), _adam_direction(b1, b2, eps))


def adamw(
  decay_mask: Mask,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.01,
) -> optax.GradientTransformation:
  """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): `torch.optim.AdamW`."""
  return optax.chain(_adam_direction(b1, b2, eps), _decay(weight_decay, decay_mask))


def sgd(
  decay_mask: Mask, *, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
) -> optax.GradientTransformation:
  """Gradient descent with momentum m <- momentum * m + g: `torch.optim.SGD`."""
  check_number(momentum, "optimizer.momentum", "[0, 1)")
  if not isinstance(nesterov, bool):
    raise ConfigError(f"optimizer.nesterov={nesterov!r} must be True or False")
  decay = _decay(weight_decay, decay_mask)
  if momentum == 0 and nesterov:
    raise ConfigError("optimizer.nesterov=True needs an optimizer.momentum above 0")
  return optax.chain(decay, optax.trace(momentum, nesterov)) if momentum else decay


def lion(
  decay_mask: Mask, *, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0
) -> optax.GradientTransformation:
  """Lion (Chen et al., 2023): the sign of an interpolated momentum, with decoupled weight decay."""
  check_number(b1, "optimizer.b1", "[0, 1)")
  check_number(b2, "optimizer.b2", "[0, 1)")
  return optax.chain(optax.scale_by_lion(b1, b2), _decay(weight_decay, decay_mask))


def matrices(params: Any) -> Mask:
  """Parameters called "kernel" that have two or more axes.

  Those are the weights of projections and convolutions. Biases (also those of shape (H, D)),
  scales, embeddings, position tables and class tokens have other names.
  """
  kernel = (name.split("/")[-1] == "kernel" for name in parameter_names(params))
  leaves = jax.tree.leaves(params)
  return with_leaves(params, [k and leaf.ndim >= 2 for k, leaf in zip(kernel, leaves, strict=True)])


def all_parameters(params: Any) -> Mask:
  """Every parameter."""
  return jax.tree.map(lambda _: True, params)


OPTIMIZERS = {"adam": adam, "adamw": adamw, "sgd": sgd, "lion": lion}
DECAY_MASKS: dict[str, Callable[[Any], Mask]] = {"matrices": matrices, "all": all_parameters}


def make_optimizer(config: Mapping[str, Any], params: Any) -> optax.GradientTransformation:
  """Returns the optimizer of a config; its updates are directions before the learning rate.

  In order: the gradient of the trainable parameters is clipped to a global norm of `clip_norm`, the
  optimizer gives a direction with weight decay, `layer_decay` scales it (and so the decay, as a
  learning rate would). Frozen parameters get exactly zero, count in no norm and have no moments.

  Args:
    config: has `optimizer`, `decay`, `clip_norm`, `layer_decay` and `freeze`. An optimizer of the
      user's own is a function `(decay_mask, **fields)` that returns a gradient transformation.
    params: the parameters, or their shapes.

  Raises:
    ConfigError: unknown name or field, a number out of range, a pattern of `freeze` that matches
      nothing, or nothing left to train.
  """
  decay_mask = lookup(DECAY_MASKS, config["decay"], "decay")(params)
  optimizer = build(OPTIMIZERS, config["optimizer"], "optimizer", hidden=("decay_mask",))(
    decay_mask
  )
  if config["clip_norm"] is not None:
    check_number(config["clip_norm"], "clip_norm", "(0, inf)")
    optimizer = optax.chain(optax.clip_by_global_norm(config["clip_norm"]), optimizer)
  frozen = _frozen(config["freeze"], params)
  if any(jax.tree.leaves(frozen)):
    labels = jax.tree.map(lambda is_frozen: "frozen" if is_frozen else "trained", frozen)
    optimizer = optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
  if check_number(config["layer_decay"], "layer_decay", "(0, 1]") != 1:
    scales = layer_scales(params, config["layer_decay"])
    scale = optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, scales))
    optimizer = optax.chain(optimizer, scale)
  return _in_float32(optimizer)


def layer_scales(params: Any, layer_decay: float) -> Any:
  """Returns what the rate of each parameter is multiplied by, a tree of floats like `params`.

  By the first component of their names: the stem, positions and class token are layer 0, the L
  blocks are 1 to L, what follows (norm, head) is L + 1. Layer l has layer_decay ** (L + 1 - l), as
  in BEiT (Bao et al., 2022) and MAE (He et al., 2022).

  Raises:
    ConfigError: the parameters have no `block_0`, ... at the top.
  """
  parts = [name.split("/")[0] for name in parameter_names(params)]
  layer_of = dict.fromkeys(("stem", "posemb", "cls"), 0)
  for part in parts:
    if match := re.fullmatch(r"block_(\d+)", part):
      layer_of[part] = int(match[1]) + 1
  blocks = max(layer_of.values())
  if blocks == 0:
    raise ConfigError(
      f"layer_decay={layer_decay} needs one sequence of blocks named block_0, block_1, ..., which"
      f" this model has not (it has {', '.join(dict.fromkeys(parts))}); set it to 1"
    )
  layers = [layer_of.get(part, blocks + 1) for part in parts]
  return with_leaves(params, [layer_decay ** (blocks + 1 - layer) for layer in layers])


def _frozen(patterns: Iterable[str], params: Any) -> Any:
  """Returns which parameters have a name that one of the patterns matches, a tree of booleans."""
  if isinstance(patterns, str):
    raise ConfigError(f"freeze={patterns!r} must be a tuple of patterns, such as ({patterns!r},)")
  names = parameter_names(params)
  frozen: set[str] = set()
  for pattern in patterns:
    try:
      matched = [name for name in names if re.fullmatch(pattern, name)]
    except re.error as error:
      raise ConfigError(f"freeze: {pattern!r} is no regular expression: {error}") from error
    if not matched:
      raise ConfigError(
        f"freeze: {pattern!r} matches the whole name of no parameter."
        f" The nearest names: {', '.join(nearest_names(pattern, names))}."
      )
    frozen.update(matched)
  if len(frozen) == len(names):
    raise ConfigError(
      f"freeze={tuple(patterns)!r} freezes every parameter; nothing is left to train"
    )
  return with_leaves(params, [name in frozen for name in names])


def _adam_direction(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  check_number(b1, "optimizer.b1", "[0, 1)")
  check_number(b2, "optimizer.b2", "[0, 1)")
  check_number(eps, "optimizer.eps", "(0, inf)")
  return optax.scale_by_adam(b1, b2, eps)


def _decay(weight_decay: float, mask: Mask) -> optax.GradientTransformation:
  check_number(weight_decay, "optimizer.weight_decay", "[0, inf)")
  return optax.add_decayed_weights(weight_decay, mask)


def _in_float32(inner: optax.GradientTransformation) -> optax.GradientTransformation:
  """Shows gradients and parameters to `inner` as float32, so that its state and updates are."""

  def cast(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)

  def init(params: Any) -> Any:
    return inner.init(cast(params))

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    return inner.update(cast(updates), state, cast(params))

  return optax.GradientTransformation(init, update)
