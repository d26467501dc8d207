"""Trains a model: `python train.py --config configs/digits.py --workdir runs/digits`.

The same command goes on where a run stopped, and is also called `vitx train`. Exit status: 0
finished, 75 stopped by a signal with everything saved (the same command goes on), 1 anything else.
"""

import sys

from vitx.cli.main import start

if __name__ == "__main__":
  sys.exit(start("train"))
