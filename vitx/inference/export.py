"""Writes a trained model as a program of `jax.export`, which runs without vitx."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export as programs

from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_absent, check_file, write_file, write_json
from vitx.config.checks import PositiveInt, check_choice, check_value
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.inference.opening import open_model
from vitx.ops.implementation import choosing_by, lowering_for
from vitx.ops.rule import FAMILIES, Rule

PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}  # as jax calls them, as ops do
IMPLEMENTATIONS = ("masked", "kernelized")
# What "auto" becomes: no rule was measured for devices that are not known yet.
ALWAYS = {"masked": ((sys.maxsize, None),), "kernelized": ()}
# cuDNN's attention: jax promises to keep what other kernels' calls mean, and not yet of this one.
CUDNN = programs.DisabledSafetyCheck.custom_call("__cudnn$fmhaSoftmax")


def export(
  model: Loaded | str | Path,
  out: str | Path,
  *,
  checkpoint: str | int = "best",
  platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
  batch: int | None = None,
  implementation: str = "masked",
  trust_code: bool = False,
) -> dict[str, Any]:
  """Writes a program of `jax.export` with the weights inside, and beside it what it takes.

  Args:
    model: of `vitx.load`, or a workdir.
    out: the file; `{out}.json` describes it.
    checkpoint: of a workdir: "best", "latest" or a step.
    platforms: of cpu, cuda and tpu. Several of them have one program of what runs on all, one alone
      has its own kernels.
    batch: B; None for a program that takes any.
    implementation: what a mixer's "auto" becomes: "masked" or "kernelized".
    trust_code: import what the run's config names as `module:Name`.

  Returns:
    What `{out}.json` holds: inputs in their order, outputs by name, class names and how an example
    is prepared.

  Raises:
    ConfigError: no workdir, a path where no file can be written or where there is one, an unknown
      platform or implementation, or a network that must know its batch (names the fix).
    MissingExtraError: `flatbuffers` is not installed.
  """
  path, beside = Path(out), Path(f"{out}.json")
  for each in (path, beside):
    check_file(each, "out")
  check_absent((path, beside), "name another file", f"out={str(out)!r}: ")
  if importlib.util.find_spec("flatbuffers") is None:
    raise MissingExtraError(f"out={str(out)!r}", "export")
  check_target(platforms, implementation)
  check_value(batch, "batch", PositiveInt | None)
  with open_model(model, checkpoint, trust_code=trust_code) as loaded:
    program = make_program(loaded, platforms, batch, implementation)
    described = {
      "inputs": [{"name": name, **_shape(x)} for name, x in input_specs(loaded, batch).items()],
      "outputs": {
        name: _shape(x)
        for name, x in jax.tree.unflatten(program.out_tree, program.out_avals).items()
      },
      "prepared_by": str(loaded.task.transform(train=False)),
      "class_names": list(loaded.class_names),
      "platforms": list(program.platforms),
      "implementation": implementation,
      "step": loaded.step,
      "jax": jax.__version__,
    }
  write_file(path, program.serialize())
  write_json(beside, described)
  return described


def _shape(array: Any) -> dict[str, Any]:
  """Returns an array's shape and dtype; `b` is a size that the program takes as it comes."""
  sizes = [n if isinstance(n, int) else str(n) for n in array.shape]
  return {"shape": sizes, "dtype": str(array.dtype)}


def check_target(platforms: Sequence[str], implementation: str) -> None:
  """Raises ConfigError for platforms or an implementation that no program is made for."""
  if not platforms or len(set(platforms)) < len(platforms) or not set(platforms) <= set(PLATFORMS):
    raise ConfigError(
      f"platforms={','.join(platforms)!r} must name each once, of {', '.join(PLATFORMS)} (an NVIDIA"
      " GPU is cuda)"
    )
  check_choice(implementation, "implementation", IMPLEMENTATIONS)


def input_specs(loaded: Loaded, batch: int | None) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns what a program takes, in order: each array of an example but answers, with a batch.

  Args:
    loaded: the model.
    batch: B; None for any, which is a symbol `b` of the program's.
  """
  task = loaded.task
  size = programs.symbolic_shape("b")[0] if batch is None else batch
  return {
    name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype)
    for name, x in task.element_spec.items()
    if name not in task.answers
  }


def make_program(
  loaded: Loaded, platforms: Sequence[str], batch: int | None, implementation: str
) -> programs.Exported:
  """Returns a program with the model's weights inside, for one platform or several.

  It takes the arrays of `input_specs` and returns those of `Task.respond`. For one platform it has
  that platform's kernels and tiles, for several those that run on all.

  Args:
    loaded: the model.
    platforms: of `PLATFORMS`, see `check_target`.
    batch: B, or None for a program that takes any.
    implementation: what a mixer's "auto" becomes, of `IMPLEMENTATIONS`.

  Raises:
    ConfigError: the network is no program of any batch.
  """
  specs = input_specs(loaded, batch)
  rule = Rule("any", "vitx export", dict.fromkeys(FAMILIES, ALWAYS[implementation]))
  state = dict(loaded.variables)
  params = state.pop("params")

  def program(*arrays: jax.Array) -> dict[str, jax.Array]:
    return loaded.task.respond(params, state, dict(zip(specs, arrays, strict=True)))

  lower = programs.export(jax.jit(program), platforms=platforms, disabled_checks=[CUDNN])
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
