"""Writes a trained model as a program that runs without vitx: `vitx export`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from vitx.checkpoints.load import Loaded, load
from vitx.cli.tables import check_file, write_file, write_json
from vitx.config import registry
from vitx.config.checks import PositiveInt, check_value
from vitx.config.errors import ConfigError
from vitx.inference.program import check_extra, check_platforms, input_specs, make_program


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
    if os.path.lexists(each):
      raise ConfigError(f"out={str(out)!r}: {each} is there already; name another file")
  check_extra(f"out={str(out)!r}")
  check_platforms(platforms)
  check_value(batch, "batch", PositiveInt | None)
  loaded = model if isinstance(model, Loaded) else load(model, checkpoint, trust_code=trust_code)
  with registry.trusting(trust_code):
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


def run(workdir: str, out: str, **options: Any) -> None:
  """Writes the program and says what it takes and returns."""
  told = export(workdir, out, **options)
  size = Path(out).stat().st_size
  print(f"{out}: {size:,} bytes for {', '.join(told['platforms'])}; described in {out}.json")
  print(f"  takes    {', '.join(_line(x['name'], x) for x in told['inputs'])}")
  print(f"  returns  {', '.join(_line(name, x) for name, x in told['outputs'].items())}")


def _line(name: str, array: dict[str, Any]) -> str:
  return f"{name} {array['dtype']} ({', '.join(map(str, array['shape']))})"
