"""Makes any gradient transformation of optax by name: `optimizer=optax:lion,optimizer.b1=0.95`."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vitx.config.checks import NonNegative, Rate, check_value
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
  name = fields_of(spec).get("name")
  return isinstance(name, str) and name.startswith(PREFIX)


def build(
  spec: str | Mapping[str, Any], decay_mask: Any, params: Any
) -> optax.GradientTransformation:
  """Returns a transformation that gives directions, not yet multiplied by a learning rate.

  A function with the argument `learning_rate` (`lion`, `contrib.muon`) is called with a rate of 1.
  The updates of such a function are made to be added to the parameters, but a direction is
  subtracted, so the sign is changed. The config's rate then multiplies the whole direction, even
  what optax adds after its own learning rate: adafactor's `weight_decay_rate`, and the momentum of
  lars, rmsprop and adafactor. A function without a learning rate, such as `scale_by_adam`, is used
  unchanged.

  Args:
    spec: The text `optax:NAME`, or a mapping with this text as `name` and the function's arguments.
    decay_mask: The mask for the function's argument in `MASKS`, if the function decays weights.
    params: The parameters, or their shapes; the transformation is traced with them.

  Raises:
    ConfigError: The name is unknown (the error names the nearest), a field is unknown, optax
      refuses the values of the fields, or weight decay cannot follow the mask.
  """
  name = fields_of(spec)["name"]
  function, fields = find(spec)
  declared = inspect.signature(function).parameters
  descends = "learning_rate" in declared
  extra = {"learning_rate": 1.0} if descends else {}
  mask = next((each for each in MASKS if each in declared), None)
  if mask and any(each in declared for each in DECAYS):
    extra[mask] = decay_mask
  _check_decays(name, fields, DECAYS if mask else (), decay_mask)
  try:
    transformation = function(**fields, **extra)
    _trace(transformation, params)
  except Exception as error:
    said = (str(error).splitlines() or [""])[0]
    raise ConfigError(
      f"optimizer={dict(name=name, **fields)!r} cannot train this model: {type(error).__name__}:"
      f" {said.rstrip('.')}. Correct its fields, or choose another optimizer."
    ) from error
  return optax.chain(transformation, optax.scale(-1.0)) if descends else transformation


def find(spec: str | Mapping[str, Any]) -> tuple[Callable, dict[str, Any]]:
  """Looks up the function of optax that `config.optimizer` names, and checks the given fields.

  Returns:
    The function, and its arguments by name.

  Raises:
    ConfigError: A name or field is unknown, a value is out of range, or the learning rate of the
      config cannot be applied to the function's directions.
  """
  fields = fields_of(spec)
  name = fields.pop("name")
  function = _find(name)
  if function.__name__ in BOUND_TO_RATE:
    raise ConfigError(
      f"optimizer.name={name!r} keeps a learning rate in its own state, so the config's"
      " learning_rate and schedule cannot be applied to it; choose another, such as optax:adamw."
    )
  check_options(function, fields, "optimizer", hidden=OURS)
  declared = inspect.signature(function).parameters
  for field, value in fields.items():
    _check(value, f"optimizer.{field}", field, declared[field].default)
  return function, fields


def _find(name: str) -> Callable:
  """Returns the function of optax with a name such as "optax:contrib.muon".

  Names of code in a stranger's config are refused, but those of optax are allowed. So a function of
  another library, which optax imports, is not returned: `os.popen` would run a command.
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
    known = [each for each, value in vars(optax).items() if inspect.isfunction(value)]
    raise ConfigError(
      f"optimizer.name={name!r}: optax has no transformation {path!r}.{nearest(path, known)}"
    )
  return function


def _check_decays(
  name: str, fields: Mapping[str, Any], masked: tuple[str, ...], decay_mask: Any
) -> None:
  """Checks that no field decays parameters which `weight_decay_mask` leaves out.

  Args:
    name: The text `optax:NAME`.
    fields: The function's arguments by name.
    masked: The fields of weight decay to which the function applies a mask.
    decay_mask: The mask.

  Raises:
    ConfigError: A function that takes no mask for its weight decay would decay all parameters.
  """
  unmasked = [each for each in fields if "weight_decay" in each and each not in masked]
  decaying = next((each for each in unmasked if fields[each]), None)
  if decaying and not all(jax.tree.leaves(decay_mask)):
    raise ConfigError(
      f"optimizer.{decaying}={fields[decaying]!r} of {name} decays every parameter, but"
      " weight_decay_mask leaves some out; set weight_decay_mask=all, or leave"
      f" optimizer.{decaying} out."
    )


def _check(value: Any, path: str, field: str, default: Any) -> None:
  """Checks a value against the range of its field, or against the type of the field's default."""
  if field in RANGES:
    check_value(value, path, RANGES[field])
  elif isinstance(default, bool | int | float) and value is not None:
    check_value(value, path, type(default))
  elif isinstance(value, float) and not math.isfinite(value):
    raise ConfigError(f"{path}={value!r} must be a finite number.")


def _trace(transformation: optax.GradientTransformation, params: Any) -> None:
  """Traces one update without computing it, to find wrong types before training.

  An optimizer that needs more than gradients and parameters, such as the loss, also fails here.
  """
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), params)
  state = jax.eval_shape(transformation.init, shapes)
  jax.eval_shape(transformation.update, shapes, state, shapes)
