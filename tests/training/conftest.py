"""Runs that share their programs."""

import pytest

from tests import programs


@pytest.fixture(scope="module", autouse=True)
def one_experiment_of_a_config():
  with programs.shared():
    yield
