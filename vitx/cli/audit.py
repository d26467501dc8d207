"""Looks for errors in the images of a config, before hours of training go into them.

    vitx audit --config configs/photos.py:from_scratch,dataset=folder:photos --out audit

It finds duplicates, also resized, re-encoded and mirrored ones; labels that are probably wrong;
blank, tiny and unusual images; and bursts of photos. DIR/index.html shows them. The files
duplicates.csv, suspects.csv and unusual.csv in DIR list their names. Delete the lines of images
that are to stay, and train without the others: data.exclude=DIR/duplicates.csv.
"""

import argparse
from typing import Any

from vitx.analysis.tables import lay_out
from vitx.cli.flags import CONFIG, add_trust, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--config", required=True, help=CONFIG)
  add("--out", default="audit", metavar="DIR", help="The folder of the page and the files.")
  words = "The directory of a finished sweep over data.fold, whose runs predict the labels."
  add("--predictions", default="", metavar="DIR", help=words)
  words = "The number of suspect labels to list; by default, all that confident learning finds."
  add("--suspects", type=positive, metavar="COUNT", help=words)
  add_trust(add)


def run(out: str, **options: Any) -> None:
  """Prints the numbers of findings, and writes the page and the files."""
  from vitx.inference.audit import Audit

  audit = Audit(**options)
  audit.write(out)
  print(lay_out(audit.summarize(), right=(1, 2, 3, 4)))
  print(f"{audit.judge}\n{out}/index.html")
