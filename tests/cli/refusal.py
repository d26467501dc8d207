"""Checks that bad input is refused in one message; nothing is compiled, written or lost."""

import os
import re
from pathlib import Path

import jax
import pytest

from tests import runs
from vitx.cli.main import main

PROGRAMS = ("init", "_fun")  # of a state and of pmapped functions; others do not count
SAID = re.compile(
  r"(\w+Error|CorruptCheckpoint|ShapeMismatch|vitx[ \w]*): "
)  # the beginnings of messages
_COMPILED: list[str] = []


def _note(event: str, _: float, **about: str) -> None:
  name = about.get("fun_name", "")
  if "backend_compile" in event and any(program in name for program in PROGRAMS):
    _COMPILED.append(name)


jax.monitoring.register_event_duration_secs_listener(_note)


def refuse(capsys, directory: Path, arguments: list[str], *parts: str) -> str:
  """Runs a command that must refuse its arguments, and returns its message.

  Args:
    capsys: The fixture of pytest.
    directory: A directory in which nothing may change.
    arguments: The arguments of `vitx`.
    *parts: Texts that the message, the last line on the standard error, must contain.
  """
  before = runs.snapshot(directory)
  _COMPILED.clear()
  capsys.readouterr()
  try:
    status = main(arguments)
  except SystemExit as end:  # raised by the parser
    status = end.code
  error = capsys.readouterr().err
  message = error.splitlines()[-1] if error.startswith("usage:") else error
  assert status == 1, f"was accepted: {error}"
  assert error.endswith("\n") and "Traceback" not in error
  messages = [line for line in error.splitlines() if SAID.match(line)]
  assert len(messages) == 1, f"not one message: {error}"
  assert all(part in message for part in parts), f"{message}\n lacks one of {parts}"
  assert not _COMPILED, f"{_COMPILED} were compiled first"
  assert runs.snapshot(directory) == before, "something was written or lost"
  return message


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """The working directory, which is empty, so that any file that is written shows."""
  monkeypatch.chdir(tmp_path)
  assert os.listdir() == []
  return tmp_path
