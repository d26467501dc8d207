"""Exports a trained model as a program of `jax.export`, which runs without vitx."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export as programs

from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_absent, write_json
from vitx.checkpoints.workdir import check_file
from vitx.config.checks import PositiveInt, check_choice, check_value
from vitx.config.errors import MissingExtraError
from vitx.inference.opening import open_model
from vitx.ops.implementation import choosing_by, lowering_for
from vitx.ops.rule import FAMILIES, Rule

PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}  # jax.export's names, and the ops' names.
# The rules that choose for "auto". They replace rules measured on this device, since the target
# devices are not known.
ALWAYS = {"masked": ((sys.maxsize, None),), "kernelized": ()}
# JAX does not guarantee that later versions know these calls: cuDNN's and Triton's attention.
CALLS = ("__cudnn$fmhaSoftmax", "triton_kernel_call_ffi")
UNCHECKED = [programs.DisabledSafetyCheck.custom_call(name) for name in CALLS]


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
  """Writes a program of `jax.export` with the weights inside, and a description beside it.

  Args:
    model: A model that `vitx.load` returned, or the workdir or the repository of one.
    out: The path of the program; `{out}.json` describes it.
    checkpoint: The checkpoint of a workdir: "best", "latest" or a step.
    platforms: The target platforms, any of cpu, cuda and tpu. A program for one platform has that
      platform's kernels; a program for several uses only what runs on all of them.
    batch: The batch size B, or `None` for a program that takes any.
    implementation: The implementation that replaces a mixer's "auto": "masked" or "kernelized".
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Returns:
    The content of `{out}.json`: the inputs in order, the outputs by name, the class names and the
    preparation of an example.

  Raises:
    ConfigError: The workdir does not exist, the file exists or cannot be written, or the platform
      or implementation is unknown.
    MissingExtraError: `flatbuffers` is not installed.
  """
  path, beside = Path(out), Path(f"{out}.json")
  check_file(path, "out")
  check_absent((path, beside), "name another, or remove it", f"out={str(out)!r}: ")
  if importlib.util.find_spec("flatbuffers") is None:
    raise MissingExtraError(f"out={str(out)!r}", "export")
  for platform in platforms:
    check_choice(platform, "platforms", tuple(PLATFORMS))
  check_choice(implementation, "implementation", tuple(ALWAYS))
  check_value(batch, "batch", PositiveInt | None)
  with open_model(model, checkpoint, trust_code=trust_code) as loaded:
    program = make_program(loaded, platforms, batch, implementation)
    outputs = jax.tree.unflatten(program.out_tree, program.out_avals)
    described = {
      "inputs": [{"name": name, **_shape(x)} for name, x in input_specs(loaded, batch).items()],
      "outputs": {name: _shape(x) for name, x in outputs.items()},
      "prepared_by": str(loaded.task.transform(train=False)),
      "class_names": list(loaded.class_names),
      "platforms": list(program.platforms),
      "implementation": implementation,
      "step": loaded.step,
      "jax": jax.__version__,
    }
  path.write_bytes(program.serialize())
  write_json(beside, described)
  return described


def _shape(array: Any) -> dict[str, Any]:
  """Describes an array's shape and dtype as JSON; `b` stands for a batch size of any value."""
  sizes = [n if isinstance(n, int) else str(n) for n in array.shape]
  return {"shape": sizes, "dtype": str(array.dtype)}


def input_specs(loaded: Loaded, batch: int | None) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shape and dtype of each input of an exported program, in their order.

  The inputs are the arrays of a batch except the targets, such as labels.

  Args:
    loaded: The model.
    batch: The batch size B, or `None` for the program's symbol `b`, which is any size.
  """
  task = loaded.task
  size = programs.symbolic_shape("b")[0] if batch is None else batch
  return {
    name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype)
    for name, x in task.element_spec.items()
    if name not in task.targets
  }


def make_program(
  loaded: Loaded, platforms: Sequence[str], batch: int | None, implementation: str
) -> programs.Exported:
  """Compiles a model with its weights to a program for one platform or several.

  The inputs are those of `input_specs`, the outputs those of `Task.respond`. A program for one
  platform uses its special kernels; a program for several uses only what runs on all of them.

  Args:
    loaded: The model.
    platforms: Names of `PLATFORMS`.
    batch: The batch size B, or `None` for a program that takes any.
    implementation: The implementation that replaces a mixer's "auto", one of `ALWAYS`.
  """
  specs = input_specs(loaded, batch)
  rule = Rule("any", "vitx export", dict.fromkeys(FAMILIES, ALWAYS[implementation]))
  state = dict(loaded.variables)
  params = state.pop("params")

  def program(*arrays: jax.Array) -> dict[str, jax.Array]:
    return loaded.task.respond(params, state, dict(zip(specs, arrays, strict=True)))

  lower = programs.export(jax.jit(program), platforms=platforms, disabled_checks=UNCHECKED)
  kind = PLATFORMS[platforms[0]] if len(platforms) == 1 else "any"
  with lowering_for(kind), choosing_by(rule):
    return lower(*specs.values())
