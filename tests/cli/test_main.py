"""The command `vitx`: its table of subcommands, and its errors, which are one line."""

import json
import os
import subprocess
import sys

import pytest

import vitx
from tests import runs
from vitx.analysis.figures import ALL_FIGURES, find_figure
from vitx.cli import main as front
from vitx.config.errors import ConfigError, MissingExtraError

HEAVY = (
  "jax",
  "flax",
  "tensorflow",
  "tensorflow_datasets",
  "optax",
  "orbax",
  "numpy",
  "matplotlib",
)
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


def test_help_is_there_for_every_command_and_imports_nothing_heavy():
  kinds = ("mixers", "choose", "data")
  named = [[name] for name in front.COMMANDS] + [["benchmark", kind] for kind in kinds]
  (status, front_page, loaded), *answers = ask(["--help"], *([*name, "--help"] for name in named))
  assert status == 0 and not loaded
  assert all(f"\n    {name}" in front_page for name in front.COMMANDS)
  for name, (status, text, loaded) in zip(named, answers, strict=True):
    assert status == 0 and text.startswith(f"usage: vitx {' '.join(name)}"), text
    assert not loaded, f"{name} imports {loaded}"


def test_a_mistake_in_the_arguments_imports_nothing_heavy():
  lines = [[name, "--no_such_flag"] for name in front.COMMANDS]
  lines += [["plan", "--config=x", "--memory=much"], ["benchmark", "mixers", "--tokens=a"]]
  lines += [["reproduce", "--config=x", "--budget=3"], ["train", "--config.seed"], ["trian"]]
  for line, (status, text, loaded) in zip(lines, ask(*lines), strict=True):
    assert status == 1 and not loaded, (line, loaded)
    assert "Traceback" not in text and "_numbers" not in text


def test_every_figure_of_the_table_is_drawn_by_a_function():
  assert all(find_figure(name).__doc__ for name in ALL_FIGURES)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "the following arguments are required: COMMAND"),
    (["trian"], "invalid choice: 'trian'"),
    (["train"], "required: --config, --workdir"),
    (["train", "--config=digits", "--work=x"], "required: --workdir"),
    (["evaluate", "--workdir=x", "--splits=y"], "unrecognized arguments: --splits=y"),
    (["prepare", "digits", "--config.seed=3"], "unrecognized arguments: --config.seed=3"),
  ],
)
def test_arguments_that_cannot_be_read_end_with_status_1(arguments, message, capsys):
  with pytest.raises(SystemExit) as end:
    front.main(arguments)
  assert end.value.code == 1 and message in capsys.readouterr().err


@pytest.mark.parametrize(
  "error",
  [ConfigError("seed=-1"), MissingExtraError("Plots", "plot"), FileNotFoundError(2, "no file")],
)
def test_an_error_that_says_all_is_one_line(error, capsys):
  def fail():
    raise error

  assert front.run(fail) == 1
  line = capsys.readouterr().err
  assert line == f"{type(error).__name__}: {error}\n"


def test_any_other_error_keeps_its_traceback():
  with pytest.raises(ZeroDivisionError):
    front.run(lambda: 1 // 0)


def test_every_public_name_is_there():
  assert all(getattr(vitx, name) is not None for name in vitx.__all__)


def test_dir_lists_the_public_names():
  assert {"create_model", "predict", "train"} < set(dir(vitx)) == set(vitx.__all__)
