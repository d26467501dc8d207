"""Optimizers: clipping, descent direction, weight decay, layer-wise rates, frozen parameters.

`make_optimizer` gives directions u that are not yet multiplied by the learning rate; the step does
`new = params - learning_rate * u`. adam and sgd couple weight decay as PyTorch does: the decay is
added to the gradient and passes through the moments. adamw, lion and muon decouple it: u contains
weight_decay * params. The step gives gradients and parameters in float32.
"""

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from vitx.config.checks import NonNegative, Positive, Range, Rate
from vitx.config.errors import ConfigError, listing
from vitx.config.registry import build, fields_of
from vitx.models import names
from vitx.tasks.distillation_terms import BASIS
from vitx.training.optim import optax_by_name
from vitx.training.optim.muon import muon
from vitx.training.parameters import map_named, parameter_names

# A tree of booleans in the structure of the parameters, True where weight decay applies.
Mask = Any


def adam(
  decay_mask: Mask,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.999,
  eps: Positive = 1e-8,
  weight_decay: NonNegative = 0.0,
) -> optax.GradientTransformation:
  """Makes Adam (Kingma and Ba, 2015) with coupled weight decay: `torch.optim.Adam`.

  Args:
    decay_mask: A tree of booleans, True for the parameters to which `weight_decay` applies.
    b1: The decay of the mean of the gradient.
    b2: The decay of the mean of the squared gradient.
    eps: The small number that keeps the denominator from zero.
    weight_decay: The factor with which the parameters are added to the gradient.
  """
  decay = optax.add_decayed_weights(weight_decay, decay_mask)
  return optax.chain(decay, optax.scale_by_adam(b1, b2, eps))


def adamw(
  decay_mask: Mask,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.999,
  eps: Positive = 1e-8,
  weight_decay: NonNegative = 0.01,
) -> optax.GradientTransformation:
  """Makes Adam with decoupled weight decay (Loshchilov and Hutter, 2019): `torch.optim.AdamW`.

  Args:
    decay_mask: A tree of booleans, True for the parameters to which `weight_decay` applies.
    b1: The decay of the mean of the gradient.
    b2: The decay of the mean of the squared gradient.
    eps: The small number that keeps the denominator from zero.
    weight_decay: The factor with which the parameters are added to the direction.
  """
  decay = optax.add_decayed_weights(weight_decay, decay_mask)
  return optax.chain(optax.scale_by_adam(b1, b2, eps), decay)


def sgd(
  decay_mask: Mask, *, momentum: Rate = 0.9, nesterov: bool = False, weight_decay: NonNegative = 0.0
) -> optax.GradientTransformation:
  """Makes gradient descent with momentum m <- momentum * m + g: `torch.optim.SGD`.

  Args:
    decay_mask: A tree of booleans, True for the parameters to which `weight_decay` applies.
    momentum: The factor on the sum m of the earlier gradients; 0 keeps no sum.
    nesterov: Whether the direction is g + momentum * m instead of m; without momentum both are g.
    weight_decay: The factor with which the parameters are added to the gradient.
  """
  decay = optax.add_decayed_weights(weight_decay, decay_mask)
  return optax.chain(decay, optax.trace(momentum, nesterov)) if momentum else decay


def lion(
  decay_mask: Mask, *, b1: Rate = 0.9, b2: Rate = 0.99, weight_decay: NonNegative = 0.0
) -> optax.GradientTransformation:
  """Makes Lion (Chen et al., 2023), with decoupled weight decay.

  The direction is the sign of b1 * momentum + (1 - b1) * gradient.

  Args:
    decay_mask: A tree of booleans, True for the parameters to which `weight_decay` applies.
    b1: The weight of the momentum in the sum with the gradient.
    b2: The decay of the momentum.
    weight_decay: The factor with which the parameters are added to the direction.
  """
  decay = optax.add_decayed_weights(weight_decay, decay_mask)
  return optax.chain(optax.scale_by_lion(b1, b2), decay)


def schedule_free(
  decay_mask: Mask,
  *,
  b1: Annotated[float, Range("(0, 1)")] = 0.9,
  b2: Rate = 0.999,
  eps: Positive = 1e-8,
  weight_decay: NonNegative = 0.01,
) -> optax.GradientTransformation:
  """Makes the directions of schedule-free AdamW (Defazio et al. 2024), for a constant schedule.

  They are those of AdamW without momentum. The training step replaces the momentum and a decreasing
  schedule by an average of the parameters, with which the network is evaluated.

  Args:
    decay_mask: A tree of booleans, True for the parameters to which `weight_decay` applies.
    b1: The share of the average in the parameters at which gradients are taken.
    b2: The decay of the mean of the squared gradient.
    eps: The small number that keeps the denominator from zero.
    weight_decay: The factor with which the parameters are added to the direction.
  """
  decay = optax.add_decayed_weights(weight_decay, decay_mask)
  rms = optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True)
  return optax.chain(rms, decay)


def matrices(params: Any) -> Mask:
  """Selects for weight decay the parameters called "kernel" that have two or more axes.

  These are the weights of projections and convolutions. Biases (also those of shape (H, D)),
  scales, embeddings, position tables and class tokens have other names.
  """
  return map_named(lambda name, leaf: _last(name) == names.KERNEL and leaf.ndim >= 2, params)


def tensors(params: Any) -> Mask:
  """Selects for weight decay all parameters that have two or more axes, except biases.

  These are weights, embeddings and position tables, as in the released code of Child et al. (2019),
  whose biases have one axis.
  """
  return map_named(lambda name, leaf: _last(name) != names.BIAS and leaf.ndim >= 2, params)


def rank(params: Any) -> Mask:
  """Selects for weight decay what `tensors` selects, except position tables and class tokens.

  `tensors` selects all parameters that have two or more axes, except biases.

  timm's optimizers decay these parameters of DeiT (Touvron et al. 2021, released code): all except
  `pos_embed`, `cls_token` and parameters that have one axis in PyTorch. The distillation token is
  decayed too.
  """

  def decays(name: str, is_tensor: bool) -> bool:
    is_token = _last(name) == names.CLASS_TOKEN
    return is_tensor and not is_token and not names.is_position_table(name)

  return map_named(decays, tensors(params))


def rank_but_bases(params: Any) -> Mask:
  """Selects for weight decay what `rank` selects, except Sparsifiner's bases over the tokens.

  `rank` leaves out biases, position tables, class tokens and parameters of one axis. An L1 term in
  the loss keeps the bases small instead, as in the released code (Wei et al. 2023).
  """
  return map_named(lambda name, decays: decays and _last(name) != BASIS, rank(params))


def all_parameters(params: Any) -> Mask:
  """Selects every parameter for weight decay."""
  return jax.tree.map(lambda _: True, params)


def _last(name: str) -> str:
  return name.rpartition("/")[2]


OPTIMIZERS = {
  **{"adam": adam, "adamw": adamw, "sgd": sgd, "lion": lion, "muon": muon},
  "schedule_free": schedule_free,
}
# Optimizers whose direction for each number in the parameters depends only on this number's past
# (and, by clipping, on a norm), so that it does not matter how arrays group the numbers.
ELEMENTWISE = frozenset({"adam", "adamw", "sgd", "lion", "schedule_free"})
DECAY_MASKS: dict[str, Callable[[Any], Mask]] = {
  "matrices": matrices,
  "rank": rank,
  "rank_but_bases": rank_but_bases,
  "tensors": tensors,
  "all": all_parameters,
}


def make_optimizer(
  config: Mapping[str, Any], params: Any, depth: int | None = None
) -> optax.GradientTransformation:
  """Makes the optimizer of a config; the caller multiplies its updates by the learning rate.

  The gradient of the trainable parameters is first clipped to a global norm of `grad_clip_norm`.
  Then the optimizer turns it into a direction, which includes weight decay. Last, `layer_decay`
  scales the whole direction of each layer, and `rates` that of the parameters that it names, as
  other learning rates would. A frozen parameter gets an update of exactly zero, has no moments and
  does not count in the norm.

  Args:
    config: A config with `optimizer`, `weight_decay_mask`, `grad_clip_norm`, `layer_decay`,
      `rates` and `freeze`. The optimizer is one of `OPTIMIZERS`, any transformation of optax
      (`optax:NAME`), or a function `(decay_mask, **fields)` of your own (`module:function`) that
      returns a transformation.
    params: The parameters, or their shapes.
    depth: The number of the network's blocks for `layer_decay`; None counts those of `params`.
  """
  decay_mask = DECAY_MASKS[config["weight_decay_mask"]](params)
  optimizer = find_optimizer(config["optimizer"])(decay_mask)
  if config["grad_clip_norm"] is not None:
    optimizer = optax.chain(optax.clip_by_global_norm(config["grad_clip_norm"]), optimizer)
  frozen = find_frozen(config, params)
  if frozen:
    groups = map_named(lambda name, _: "frozen" if name in frozen else "trained", params)
    optimizer = optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, groups)
  if config["layer_decay"] != 1:
    optimizer = optax.chain(optimizer, _scale(layer_scales(params, config["layer_decay"], depth)))
  if config["rates"]:
    optimizer = optax.chain(optimizer, _scale(find_rates(config, params)))
  return optimizer


def find_optimizer(spec: str | Mapping[str, Any]) -> Callable[[Mask], optax.GradientTransformation]:
  """Returns the function of a decay mask that `config.optimizer` names, with its fields bound."""
  if optax_by_name.is_of_optax(spec):
    return functools.partial(optax_by_name.make, *optax_by_name.find(spec))
  return build(OPTIMIZERS, spec, "optimizer", hidden=("decay_mask",))


def find_interpolation(config: Mapping[str, Any]) -> float:
  """Returns the `b1` of the optimizer schedule_free; 0 for any other optimizer."""
  fields = fields_of(config["optimizer"])
  if fields.pop("name") != "schedule_free":
    return 0.0
  if config["ema_decay"]:
    raise ConfigError("optimizer=schedule_free has an average of its own; remove ema_decay.")
  return fields.get("b1", 0.9)


def is_elementwise(config: Mapping[str, Any]) -> bool:
  """Returns whether an optimizer gives equal updates to stacked and to separate parameters.

  This is so if the optimizer treats each number by itself, and if no parameter is frozen and no
  parameter has a learning rate different from that of another. Adapters are never stacked.
  """
  name = fields_of(config["optimizer"])["name"]
  is_uniform = not config["freeze"] and not config["rates"] and config["layer_decay"] == 1
  return name in ELEMENTWISE and is_uniform and "lora" not in config["model"]


def layer_scales(params: Any, layer_decay: float, depth: int | None = None) -> Any:
  """Returns a tree with the factor of layer-wise decay on each parameter's learning rate.

  The factor of layer l (see `vitx.models.names.layer_of`) in a model with L blocks is
  layer_decay ** (L + 1 - l), as in BEiT (Bao et al., 2022) and MAE (He et al., 2022). The number L
  is `depth`, or that of the blocks in `params`.
  """
  depth = names.count_blocks(parameter_names(params)) if depth is None else depth
  if depth == 0:
    raise ConfigError(
      f"layer_decay={layer_decay} needs blocks named block_0, block_1, ..., which this model lacks."
    )
  return map_named(lambda path, _: layer_decay ** (depth + 1 - names.layer_of(path, depth)), params)


def find_rates(config: Mapping[str, Any], params: Any) -> Any:
  """Returns a tree with the factor of `config.rates` on each parameter's learning rate."""
  factors = dict.fromkeys(parameter_names(params), 1.0)
  for pattern, factor in config["rates"]:
    for name in _match("rates", pattern, list(factors)):
      factors[name] *= factor
  return map_named(lambda name, _: factors[name], params)


def find_frozen(config: Mapping[str, Any], params: Any) -> frozenset[str]:
  """Returns the names of the parameters that match a pattern in `config.freeze`."""
  paths = parameter_names(params)
  frozen: set[str] = set()
  for pattern in config["freeze"]:
    frozen.update(_match("freeze", pattern, paths))
  if len(frozen) == len(paths):
    raise ConfigError(f"freeze={config['freeze']!r} freezes every parameter.")
  return frozenset(frozen)


def _match(field: str, pattern: str, paths: list[str]) -> list[str]:
  """Returns the names of parameters that a pattern of a config's field matches, at least one."""
  matched = [name for name in paths if re.fullmatch(pattern, name)]
  if not matched:
    near = difflib.get_close_matches(pattern, paths, cutoff=0.0)
    raise ConfigError(
      f"{field}={pattern!r} matches no whole name of a parameter. The nearest are {listing(near)}."
    )
  return matched


def _scale(factors: Any) -> optax.GradientTransformation:
  """Returns a transformation that multiplies the updates by a tree of factors."""
  return optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, factors))
