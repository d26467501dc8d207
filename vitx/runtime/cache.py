"""A persistent cache of compiled programs, so that a resumed run does not compile again."""

import jax

from vitx.data.cache import cache_directory


def enable() -> None:
  """Makes JAX keep compiled programs in vitx's cache folder, `~/.cache/vitx/jax` by default.

  A cache folder that JAX has already, such as from the environment variable
  `JAX_COMPILATION_CACHE_DIR`, stays in use.
  """
  if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "jax"))
