"""Runs the command `vitx` for `python -m vitx`."""

import os
import sys

# Python searches the current folder first for packages, but its files may be a stranger's. vitx
# searches it last, and only for code that the user has named.
_CLONE = os.path.dirname(os.path.dirname(__file__))
if sys.path[:1] == [os.getcwd()] and not os.path.samefile(_CLONE, sys.path[0]):
  del sys.path[0]

from vitx.cli.main import start  # noqa: E402 (`sys.path` comes first)

sys.exit(start())
