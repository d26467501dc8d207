"""Fixtures that load the finished run once for each file."""

import pytest

import vitx


@pytest.fixture(scope="module")
def run(finished_run):
  return finished_run[0]


@pytest.fixture(scope="module")
def loaded(run):
  return vitx.load(run)
