"""Writes a trained model as a program of JAX: a file that runs without vitx, weights inside.

    vitx export --workdir runs/digits --out digits.jaxprogram
    vitx export --workdir runs/long --out long.jaxprogram \\
      --platforms tpu --implementation kernelized --batch 8

Whoever has jax and flatbuffers runs it: jax.export.deserialize(file.read()).call(images).

It takes what `vitx predict` prepares on the host. Of a classifier of images: uint8 (B, S, S, C),
pixels 0 ... 255 of images of the size that the run keeps (data.decode_size); it resizes, crops and
normalizes as the evaluation does, and returns logits and probabilities, float32 (B, K). Of a
density model: tokens uint8 (B, N); it returns logits (B, N, V), those of place t from the tokens
before t, and log_probabilities (B, N) of the tokens in nats. FILE.json beside it says names, shapes
and dtypes, the classes, and how examples are prepared.

Mixers of implementation=auto become "masked", which holds the matrix of attention and takes any
batch, or by the flag "kernelized", which never does, and mostly has to know its batch. A program
for several platforms has only what runs on all; of "kernelized" one for tpu alone has its splash
kernel, and one for cuda alone, exported where cuDNN is installed, cuDNN's attention in half
precision.
"""

import argparse
from pathlib import Path
from typing import Any

from vitx.cli.flags import CHECKPOINT, RUN, TRUST_RUN, add_trust, names


def batch(text: str) -> int | None:
  """Returns a number of examples, or None for `symbolic`.

  Raises:
    argparse.ArgumentTypeError: the text is neither.
  """
  if text == "symbolic":
    return None
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text!r}: write symbolic, or a number of examples from 1")
  return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--workdir", required=True, help=RUN)
  add("--out", required=True, metavar="FILE", help="the program; it must not be there yet")
  add("--checkpoint", default="best", help=CHECKPOINT)
  add(
    "--platforms",
    type=names,
    default="cpu,cuda,tpu",
    metavar="NAMES",
    help="of cpu, cuda, tpu, separated by commas",
  )
  add(
    "--batch",
    type=batch,
    default="symbolic",
    metavar="N",
    help="B of the program; symbolic: it takes any",
  )
  add("--implementation", default="masked", help="masked or kernelized, for mixers of auto")
  add_trust(add, TRUST_RUN)


def run(workdir: str, out: str, **options: Any) -> None:
  """Writes the program and says what it takes and returns."""
  from vitx.inference.export import export

  told = export(workdir, out, **options)
  size = Path(out).stat().st_size
  print(f"{out}: {size:,} bytes for {', '.join(told['platforms'])}; described in {out}.json")
  print(f"  takes    {', '.join(_line(x['name'], x) for x in told['inputs'])}")
  print(f"  returns  {', '.join(_line(name, x) for name, x in told['outputs'].items())}")


def _line(name: str, array: dict[str, Any]) -> str:
  return f"{name} {array['dtype']} ({', '.join(map(str, array['shape']))})"
