"""A trained model as a program of `jax.export`, which runs without vitx."""

import importlib.util
import sys
from collections.abc import Sequence

import jax
from jax import export

from vitx.checkpoints.load import Loaded
from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.ops.implementation import choosing_by, lowering_for
from vitx.ops.rule import FAMILIES, Rule

PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}  # as jax calls them, as ops do
IMPLEMENTATIONS = ("masked", "kernelized")
# What "auto" becomes: no rule was measured for devices that are not known yet.
ALWAYS = {"masked": ((sys.maxsize, None),), "kernelized": ()}
# cuDNN's attention: jax promises to keep what other kernels' calls mean, and not yet of this one.
CUDNN = export.DisabledSafetyCheck.custom_call("__cudnn$fmhaSoftmax")


def check_extra(feature: str) -> None:
  """Raises MissingExtraError, which begins with `feature`, if programs cannot be written here."""
  if importlib.util.find_spec("flatbuffers") is None:
    raise MissingExtraError(feature, "export")


def check_platforms(platforms: Sequence[str]) -> None:
  """Raises ConfigError for a platform that is unknown or named twice, or for none."""
  if not platforms or len(set(platforms)) < len(platforms) or not set(platforms) <= set(PLATFORMS):
    raise ConfigError(
      f"platforms={','.join(platforms)!r} must name each once, of {', '.join(PLATFORMS)} (an NVIDIA"
      " GPU is cuda)"
    )


def input_specs(loaded: Loaded, batch: int | None) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns what a program takes, in order: each array of an example but answers, with a batch.

  Args:
    loaded: the model.
    batch: B; None for any, which is a symbol `b` of the program's.
  """
  task = loaded.task
  size = export.symbolic_shape("b")[0] if batch is None else batch
  return {
    name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype)
    for name, x in task.element_spec.items()
    if name not in task.answers
  }


def make_program(
  loaded: Loaded, platforms: Sequence[str], batch: int | None, implementation: str
) -> export.Exported:
  """Returns a program with the model's weights inside, for one platform or several.

  It takes the arrays of `input_specs` and returns those of `Task.respond`. For one platform it has
  that platform's kernels and tiles, for several those that run on all.

  Args:
    loaded: the model.
    platforms: of `PLATFORMS`.
    batch: B, or None for a program that takes any.
    implementation: what a mixer's "auto" becomes, of `IMPLEMENTATIONS`.

  Raises:
    ConfigError: an unknown platform or implementation, or a network that is no program of any
      batch.
  """
  check_platforms(platforms)
  check_choice(implementation, "implementation", IMPLEMENTATIONS)
  specs = input_specs(loaded, batch)
  rule = Rule("any", "vitx export", dict.fromkeys(FAMILIES, ALWAYS[implementation]))
  state = dict(loaded.variables)
  params = state.pop("params")

  def program(*arrays: jax.Array) -> dict[str, jax.Array]:
    return loaded.task.respond(params, state, dict(zip(specs, arrays, strict=True)))

  lower = export.export(jax.jit(program), platforms=platforms, disabled_checks=[CUDNN])
  try:
    with lowering_for(PLATFORMS[platforms[0]] if len(platforms) == 1 else "any"), choosing_by(rule):
      return lower(*specs.values())
  except Exception as error:
    if batch is not None:
      raise
    # Wherever a network wants a number of its batch, another error is raised.
    raise ConfigError(
      f"batch='symbolic': with implementation={implementation!r} this network is no program of any"
      f" batch ({type(error).__name__}: {_first_line(error)}); say how large it is by --batch N"
      f"{', or take --implementation masked' if implementation != 'masked' else ''}"
    ) from error


def _first_line(error: Exception) -> str:
  return (str(error).splitlines() or [""])[0]
