"""What batch fits: compiles and times a training step at two batch sizes, without data.

    vitx plan --config configs/cifar10.py:vit
    vitx plan --config configs/vix_cifar10.py:vit --memory 2GB
    vitx plan --config runs/digits/config.json --no-time

Memory and seconds of a step grow linearly with its examples: two sizes tell both lines, and so the
largest batch that fits. Where the config's own batch does not, the step is compiled, not run, with
gradient accumulation, recomputation and bfloat16, and what each of them needs is printed. All of
it is one device's: its share of the batch, compiled for the backend at hand. A CPU's cores are
devices that share its memory.
"""

import argparse
import re

from vitx.cli.flags import add_trust

UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


def parse_memory(text: str) -> float:
  """Returns the bytes of a text such as "16GB" or "1.5 GiB".

  Raises:
    argparse.ArgumentTypeError: not such a text.
  """
  found = re.fullmatch(r"([0-9.]+) ?(MB|GB|MiB|GiB)", text)
  if not found or not re.fullmatch(r"\d+(\.\d+)?", found[1]) or not float(found[1]):
    raise argparse.ArgumentTypeError(f"{text!r}: write a number and MB, GB, MiB or GiB, as 16GB")
  return float(found[1]) * UNITS[found[2]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--config", required=True, help="FILE, FILE:ROW,field=value or the config.json of a run")
  add(
    "--memory",
    type=parse_memory,
    help="of a device or of a CPU, as 16GB; else nine tenths of what is free",
  )
  add_trust(add)
  add("--time", action=argparse.BooleanOptionalAction, default=True, help="run the steps too")
