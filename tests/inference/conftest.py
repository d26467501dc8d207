"""The digits' statistics are read once, and the finished run is loaded once for each file."""

import pytest
from absl import logging

import vitx
from tests.cli.conftest import read_pixels_once

__all__ = ["read_pixels_once"]


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
