"""Samples from a trained density model: `vitx sample --workdir runs/digits --count 64`.

Images become a PNG grid, text goes to the terminal and to a file, sound becomes WAV files.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--workdir", required=True, help="of a density model's run")
  add("--count", type=int, default=16, help="samples, or originals to complete")
  add("--prompt", metavar="FILE|TEXT", help="what every sample begins with")
  add("--complete", type=float, metavar="FRACTION", help="complete test examples, so much is given")
  add("--temperature", type=float, default=1.0, help="below 1 the probable becomes more so")
  add("--top_k", type=int, help="draw from the k most probable tokens")
  add("--top_p", type=float, help="draw from the most probable tokens of this probability together")
  add("--seed", type=int, default=0, help="of the draws")
  add("--out", metavar="DIR", help="where files are written; WORKDIR/samples by default")
  add("--checkpoint", default="best", help="best, latest or a step")
  add("--data_dir", help="where TFDS sets lie, if not where the run found them")
  add("--trust_code", action="store_true", help="let the run's config name Python of its own")
