"""The build step that puts the top-level folder `configs/` into the wheel as `vitx.configs`.

An entry for `vitx.configs` in the table `package-dir` of pyproject.toml could do this too, but not
safely. With such an entry, an editable installation finds vitx by an import hook, which Python
tries only after the current folder: a clone there that is called `vitx` would be imported instead.
Without the entry, setuptools adds a path, which has precedence over such a clone.
"""

from setuptools.command.build_py import build_py


class BuildPy(build_py):
  """A setuptools command `build_py` that takes the modules of `vitx.configs` from `configs/`."""

  def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
    """Returns the (package, module, file) of each module in a package."""
    return super().find_package_modules(
      package, "configs" if package == "vitx.configs" else package_dir
    )
