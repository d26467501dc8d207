"""A persistent cache of compiled programs, so that a resumed run does not compile again."""

import jax

from vitx.data.cache import cache_directory


def enable() -> None:
  """Sets JAX's cache to `~/.cache/vitx/jax` unless the caller or the environment sets one.

  The environment's variable is `JAX_COMPILATION_CACHE_DIR`.
  """
  if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "jax"))
