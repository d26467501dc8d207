"""The build step that puts the top-level `configs/` into the wheel as `vitx.configs`.

A table of directories in pyproject.toml would do this too. But then an editable installation finds
the package by an import hook, which Python tries after the current folder; a clone there that is
called `vitx` would be imported in its place. If every package is in the directory of its name,
setuptools adds a path instead, which has precedence over such a clone.
"""

from setuptools.command.build_py import build_py


class BuildPy(build_py):
  """A `build_py` command that takes the modules of `vitx.configs` from `configs/`."""

  def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
    """Returns the (package, module, file) of each module in a package."""
    return super().find_package_modules(
      package, "configs" if package == "vitx.configs" else package_dir
    )
