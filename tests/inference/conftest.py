"""Fixtures that load the finished run once for each file, and that collect warnings."""

import pytest
from absl import logging

import vitx


@pytest.fixture(scope="module")
def run(finished_run):
  return finished_run[0]


@pytest.fixture(scope="module")
def loaded(run):
  return vitx.load(run)


@pytest.fixture
def warnings(monkeypatch):
  """The messages of the warnings that a test logs."""
  messages: list[str] = []
  monkeypatch.setattr(logging, "warning", lambda text, *values: messages.append(text % values))
  return messages
