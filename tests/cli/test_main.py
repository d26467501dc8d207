"""The command `vitx`: its table of subcommands, and its errors, which are one line."""

import json
import os
import subprocess
import sys

import pytest

import vitx
from tests import runs
from vitx.cli import main as front
from vitx.config.errors import ConfigError, MissingExtraError

HEAVY = ["jax", "flax", "tensorflow", "tensorflow_datasets", "optax", "orbax", "numpy"]
# A program that prints the exit status and the imports of each line of arguments.
ASK = f"""
import contextlib, io, json, sys
from vitx.cli.main import main
for line in sys.stdin:
  out = io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
    try:
      status = main(json.loads(line))
    except SystemExit as end:
      status = end.code
  print(json.dumps([status, out.getvalue(), [name for name in {HEAVY} if name in sys.modules]]))
"""


def ask(*lines):
  """Runs `vitx` with each list of arguments in one new process, and returns the results."""
  text = "\n".join(json.dumps(line) for line in lines)
  environment = os.environ | {"PYTHONPATH": str(runs.ROOT)}
  command = [sys.executable, "-c", ASK]
  done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_command_has_help_without_heavy_imports():
  kinds = ("mixers", "choose", "data")
  named = [[name] for name in front.COMMANDS] + [["benchmark", kind] for kind in kinds]
  (status, front_page, loaded), *answers = ask(["--help"], *([*name, "--help"] for name in named))
  assert status == 0 and not loaded
  assert all(f"\n    {name}" in front_page for name in front.COMMANDS)
  for name, (status, text, loaded) in zip(named, answers, strict=True):
    assert status == 0 and text.startswith(f"usage: vitx {' '.join(name)}"), text
    assert not loaded, f"{name} imports {loaded}"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "the following arguments are required: COMMAND"),
    (["train", "--config=digits", "--work=x"], "required: --workdir"),
    (["prepare", "digits", "--config.seed=3"], "unrecognized arguments: --config.seed=3"),
  ],
)
def test_wrong_arguments_end_with_status_1(arguments, message, capsys):
  with pytest.raises(SystemExit) as end:
    front.main(arguments)
  assert end.value.code == 1 and message in capsys.readouterr().err


@pytest.mark.parametrize(
  "error",
  [ConfigError("seed=-1"), MissingExtraError("Plots", "plot"), FileNotFoundError(2, "no file")],
)
def test_an_error_of_the_user_is_one_line(error, capsys):
  def fail():
    raise error

  assert front.run(fail) == 1
  line = capsys.readouterr().err
  assert line == f"{type(error).__name__}: {error}\n"


def test_another_error_keeps_its_traceback():
  with pytest.raises(ZeroDivisionError):
    front.run(lambda: 1 // 0)


def test_the_public_names_are_importable():
  assert all(getattr(vitx, name) is not None for name in vitx.__all__)
  assert {"create_model", "predict", "train"} < set(dir(vitx)) == set(vitx.__all__)
