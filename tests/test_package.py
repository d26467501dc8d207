"""An installation has the package with its configs, and no other package `configs`."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests import runs

setuptools = pytest.importorskip("setuptools", minversion="77")


@pytest.mark.slow  # builds a wheel
def test_the_wheel_has_the_configs_inside_the_package(tmp_path):
  build = f"import setuptools.build_meta as b; b.build_wheel({str(tmp_path)!r})"
  source = tmp_path / "source"
  clone = ["git", "clone", "-q", "--depth=1", f"file://{runs.ROOT}", str(source)]
  subprocess.run(clone, check=True)
  subprocess.run([sys.executable, "-c", build], check=True, cwd=source, capture_output=True)
  (wheel,) = tmp_path.glob("*.whl")
  with zipfile.ZipFile(wheel) as file:
    names = file.namelist()
    file.extractall(tmp_path / "site")
  assert {name.split("/")[0].split("-")[0] for name in names} == {"vitx"}
  shipped = {path.name for path in (runs.ROOT / "configs").glob("*.py")}
  assert {f"vitx/configs/{name}" for name in shipped} <= set(names)
  kinds = (".json", ".csv", ".css")
  data = [path for path in (runs.ROOT / "vitx").rglob("*") if path.suffix in kinds]
  assert len(data) >= 3 and {str(path.relative_to(runs.ROOT)) for path in data} <= set(names)
  assert "vitx/py.typed" in names  # so that type checkers read vitx's annotations
  code = "import vitx.configs.digits as d; print(d.get_config('performer,seed=3').seed, d.__file__)"
  environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
  command = [sys.executable, "-P", "-c", code]
  done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
  assert done.stdout.split() == ["3", str(tmp_path / "site" / "vitx" / "configs" / "digits.py")]


def test_the_extra_all_has_every_extra_for_users():
  project = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]
  (everything,) = project["optional-dependencies"].pop("all")
  others = {"cuda", "tpu", "triton", "colab", "peers", "test", "docs"}
  names = set(project["optional-dependencies"]) - others
  assert everything == f"vitx[{','.join(sorted(names))}]"


@pytest.fixture(scope="module")
def above(tmp_path_factory):
  """The folder above a clone called vitx, and an editable installation of this clone."""
  above = tmp_path_factory.mktemp("above")
  clone, site = above / "vitx", above / "site"
  for part in ("vitx", "configs"):
    shutil.copytree(runs.ROOT / part, clone / part, ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "train.py"):
    shutil.copy(runs.ROOT / name, clone)
  for folder in (site, above / "other"):
    folder.mkdir()
  build = f"import setuptools.build_meta as b; b.build_editable({str(site)!r})"
  subprocess.run([sys.executable, "-c", build], check=True, cwd=clone, capture_output=True)
  with zipfile.ZipFile(*site.glob("*.whl")) as file:
    file.extractall(site)
  return above


@pytest.mark.parametrize("folder", [".", "vitx", "vitx/vitx", "other"])
def test_an_editable_installation_is_found_from_everywhere(above, folder):
  """The folders include the one above a clone called vitx, in which a notebook may run."""
  code = "import site, sys; site.addsitedir(sys.argv[1]); import vitx; print(vitx.__file__)"
  code += "; from vitx.configs import __path__; print(*__path__)"
  done = subprocess.run(
    [sys.executable, "-S", "-c", code, str(above / "site")],  # without this environment's packages
    cwd=above / folder,
    env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    capture_output=True,
    text=True,
  )
  clone = above / "vitx"
  assert done.stdout.split() == [str(clone / "vitx" / "__init__.py"), str(clone / "configs")]


def test_a_checkout_on_the_path_finds_its_configs(tmp_path):
  code = "import vitx.configs.digits as d; print(d.__file__)"
  environment = os.environ | {"PYTHONPATH": str(runs.ROOT)}
  command = [sys.executable, "-P", "-c", code]
  done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
  assert done.stdout.strip() == str(runs.ROOT / "configs" / "digits.py"), done.stderr
