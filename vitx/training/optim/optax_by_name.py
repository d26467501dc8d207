"""Makes any gradient transformation of optax by name: `optimizer=optax:lion,optimizer.b1=0.95`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from vitx.config.checks import Finite, NonNegative, Rate, check_value
from vitx.config.errors import ConfigError, nearest
from vitx.config.registry import check_options, fields_of

PREFIX = "optax:"
MASKS = ("mask", "weight_decay_mask")  # optax's names for the mask of weight decay
OURS = ("learning_rate", *MASKS)  # arguments that the step and `weight_decay_mask` supply
DECAYS = ("weight_decay", "weight_decay_rate")  # the factors that a mask applies to
# Optimizers whose state depends on their own learning rate, not only in proportion to it: if their
# directions are multiplied by a rate afterwards, the state and the parameters drift apart.
BOUND_TO_RATE = (
  *("cocob", "dadapt_adamw", "fromage", "madgrad", "prodigy", "scale_by_madgrad"),
  *("schedule_free_adamw", "schedule_free_sgd"),
)
# Ranges that optax's own annotations do not give.
RANGES = {"b1": Rate, "b2": Rate, "eps": NonNegative, "momentum": Rate, "weight_decay": NonNegative}


def is_of_optax(spec: str | Mapping[str, Any]) -> bool:
  """Returns whether a config's optimizer names a transformation of optax."""
  return str(fields_of(spec).get("name")).startswith(PREFIX)


def make(
  function: Callable, fields: Mapping[str, Any], decay_mask: Any
) -> optax.GradientTransformation:
  """Returns a transformation that gives directions, not yet multiplied by a learning rate.

  A function with the argument `learning_rate` (`lion`, `contrib.muon`) is called with a rate of 1.
  The updates of such a function are made to be added to the parameters, but a direction is
  subtracted, so the sign is changed. The config's rate then multiplies the whole direction, even
  what optax adds after its own learning rate: adafactor's `weight_decay_rate`, and the momentum of
  lars, rmsprop and adafactor. A function without a learning rate, such as `scale_by_adam`, is used
  unchanged.

  Args:
    function: The function of optax, see `find`.
    fields: The function's arguments by name.
    decay_mask: The mask for the function's argument in `MASKS`, if the function decays weights.
  """
  declared = inspect.signature(function).parameters
  descends = "learning_rate" in declared
  extra = {"learning_rate": 1.0} if descends else {}
  mask = next((name for name in MASKS if name in declared), None)
  if mask and any(name in declared for name in DECAYS):
    extra[mask] = decay_mask
  for name, value in fields.items():
    is_unmasked = "weight_decay" in name and not (mask and name in DECAYS)
    if is_unmasked and value and not all(jax.tree.leaves(decay_mask)):
      raise ConfigError(
        f"optimizer.{name}={value!r} decays every parameter, but weight_decay_mask leaves some out;"
        " set weight_decay_mask=all, or leave the field out."
      )
  transformation = function(**fields, **extra)
  return optax.chain(transformation, optax.scale(-1.0)) if descends else transformation


def find(spec: str | Mapping[str, Any]) -> tuple[Callable, dict[str, Any]]:
  """Returns the function of optax that `config.optimizer` names, and its arguments by name."""
  fields = fields_of(spec)
  name = fields.pop("name")
  function = _find(name)
  if function.__name__ in BOUND_TO_RATE:
    raise ConfigError(
      f"optimizer.name={name!r} keeps a learning rate in its state, so no schedule can be applied."
    )
  check_options(function, fields, "optimizer", hidden=OURS)
  declared = inspect.signature(function).parameters
  for field, value in fields.items():
    default = declared[field].default
    if field in RANGES:
      check_value(value, f"optimizer.{field}", RANGES[field])
    elif isinstance(default, bool | int | float) and value is not None:
      check_value(value, f"optimizer.{field}", type(default))
    elif isinstance(value, float):
      check_value(value, f"optimizer.{field}", Finite)
  return function, fields


def _find(name: str) -> Callable:
  """Returns the function of optax with a name such as "optax:contrib.muon".

  A function of another library that optax imports is not returned: `os.popen` would run a command.
  """
  path = name.removeprefix(PREFIX)
  room: Any = optax
  *parents, last = path.split(".")
  for parent in parents:
    room = getattr(room, parent, None)
  function = getattr(room, last, None)
  origin = str(getattr(function, "__module__", ""))
  is_own = origin.split(".")[0] == optax.__name__ and not last.startswith("_")
  if not inspect.isfunction(function) or not is_own:
    known = [key for key, value in vars(optax).items() if inspect.isfunction(value)]
    raise ConfigError(
      f"optimizer.name={name!r}: optax has no transformation {path!r}.{nearest(path, known)}"
    )
  return function
