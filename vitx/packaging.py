"""How setuptools builds a wheel: the top-level `configs/` go into the package, as `vitx.configs`.

A table of directories in pyproject.toml would say it too, but then an editable installation finds
the package by a hook that comes after the current folder, in which a clone called `vitx` is taken
for the package. A path, which setuptools writes where packages lie as they are called, comes first.
"""

from setuptools.command.build_py import build_py


class BuildPy(build_py):
  """Takes the modules of `vitx.configs` from `configs/`."""

  def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
    """Returns (package, module, file) of each module of a package."""
    return super().find_package_modules(
      package, "configs" if package == "vitx.configs" else package_dir
    )
