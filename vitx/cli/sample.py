"""Samples from a trained density model: `vitx sample --workdir runs/digits_density --count 64`.

Images are written as a grid in a PNG file, sounds as WAV files. Text is printed and written to a
file.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from vitx.checkpoints.outputs import check_folder
from vitx.cli.flags import CHECKPOINT, DATA_DIR, DENSITY_RUN, add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--workdir", required=True, help=DENSITY_RUN)
  words = "The number of samples, or of test examples that --complete continues."
  add("--count", type=int, default=16, help=words)
  add("--prompt", metavar="FILE|TEXT", help="The beginning of every sample.")
  words = "Keeps this share, in 0..1, of each test example, and draws the rest."
  add("--complete", type=float, metavar="SHARE", help=words)
  add("--temperature", type=float, default=1.0, help="The divisor of the logits.")
  add("--top_k", type=int, help="The number of most probable tokens to draw from.")
  add("--top_p", type=float, help="The total probability of the tokens to draw from.")
  add("--seed", type=int, default=0, help="The seed of the draws.")
  add("--out", metavar="DIR", help="The folder; the default is WORKDIR/samples.")
  add("--checkpoint", default="best", help=CHECKPOINT)
  add("--data_dir", help=DATA_DIR)
  add_trust(add)


def run(workdir: str, out: str | None, **options: Any) -> None:
  """Draws samples, shows them and writes them."""
  from vitx.inference.sample import sample
  from vitx.inference.sample_files import title_texts, write_samples

  folder = Path(out) if out is not None else Path(workdir) / "samples"
  check_folder(folder, "out")
  samples = sample(workdir, **options)
  written = write_samples(samples, folder)
  if samples.kind == "text":  # The terminal's encoding may lack some characters.
    encoding = sys.stdout.encoding or "utf-8"
    print(title_texts(samples).encode(encoding, errors="replace").decode(encoding))
  print(written)
