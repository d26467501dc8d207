"""A persistent cache of compiled programs, so that a resumed run does not compile again."""

import os
from pathlib import Path

import jax


def enable() -> None:
  """Points JAX at `~/.cache/vitx/jax`, unless $JAX_COMPILATION_CACHE_DIR or the caller chose."""
  if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(base / "vitx" / "jax"))
