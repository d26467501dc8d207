"""A persistent cache of compiled programs, so that a resumed run does not compile again."""

import jax

from vitx.data.cache import cache_directory


def enable() -> None:
  """Points JAX at `~/.cache/vitx/jax`, unless $JAX_COMPILATION_CACHE_DIR or the caller chose."""
  if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "jax"))
