"""Two virtual devices for every test, and `--all` for the slow ones."""

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)


def pytest_addoption(parser):
  parser.addoption("--all", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config, items):
  if config.getoption("--all"):
    return
  skip = pytest.mark.skip(reason="slow: runs with --all")
  for item in items:
    if "slow" in item.keywords:
      item.add_marker(skip)
