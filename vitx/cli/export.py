"""Writes a trained model as a JAX program: a file with the weights inside that runs without vitx.

    vitx export --workdir runs/digits --out digits.jaxprogram
    vitx export --workdir runs/long --out long.jaxprogram \\
      --platforms tpu --implementation kernelized --batch 8

Any machine with jax and flatbuffers can run it: jax.export.deserialize(file.read()).call(images).

The program takes examples as `vitx predict` prepares them on the host. FILE.json beside the program
lists names, shapes and dtypes, the classes, and the steps that prepare an example.

A classifier takes images uint8 (B, S, S, C), whose pixels are 0 ... 255 and whose side S is the
config's data.decode_size. The program resizes, crops and normalizes them as evaluation does, and
returns logits and probabilities, float32 (B, K), of the K classes. A density model takes tokens,
uint8 (B, N), of a vocabulary of V. It returns logits (B, N, V), which at position t depend on the
tokens before t, and log_probabilities (B, N), those of the given tokens in nats.

Token mixers with implementation=auto become "masked", which stores the attention matrix and takes
any batch size. With `--implementation kernelized` they never store the matrix, and mostly need a
fixed batch size. A program for several platforms uses only what runs on all of them. A "kernelized"
program for tpu alone has the TPU's splash kernel. A program for cuda alone, exported where cuDNN is
installed, has cuDNN's attention in half precision.
"""

import argparse
from pathlib import Path
from typing import Any

from vitx.cli.flags import CHECKPOINT, RUN, add_trust, names, positive


def batch(text: str) -> int | None:
  """Parses a batch size; returns None for `symbolic`, with which a program takes any batch size."""
  return None if text == "symbolic" else positive(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--workdir", required=True, help=RUN)
  add("--out", required=True, metavar="FILE", help="The file of the program.")
  add("--checkpoint", default="best", help=CHECKPOINT)
  words = "The platforms: cpu, cuda, tpu or several of them, separated by commas."
  add("--platforms", type=names, default="cpu,cuda,tpu", metavar="NAMES", help=words)
  words = "The batch size, B, or symbolic for a program that takes any."
  add("--batch", type=batch, default="symbolic", metavar="N", help=words)
  words = "The implementation of token mixers whose config says auto: masked or kernelized."
  add("--implementation", default="masked", help=words)
  add_trust(add)


def run(workdir: str, out: str, **options: Any) -> None:
  """Writes the program and prints its inputs and outputs."""
  from vitx.inference.export import export

  described = export(workdir, out, **options)
  size = Path(out).stat().st_size
  print(f"{out}: {size:,} bytes for {', '.join(described['platforms'])}; described in {out}.json")
  print(f"  takes    {', '.join(_line(x['name'], x) for x in described['inputs'])}")
  print(f"  returns  {', '.join(_line(name, x) for name, x in described['outputs'].items())}")


def _line(name: str, array: dict[str, Any]) -> str:
  return f"{name} {array['dtype']} ({', '.join(map(str, array['shape']))})"
