"""The directory for files that vitx can create again."""

import os
from pathlib import Path


def cache_directory() -> Path:
  """Returns `$XDG_CACHE_HOME/vitx`, else `~/.cache/vitx`; the directory need not exist."""
  return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitx"
