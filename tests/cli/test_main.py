"""The front door: one table of commands, one line for an error, and what the old forms say."""

import os
import subprocess
import sys
import time

import pytest

import vitx
from tests import runs
from vitx.cli import main as front
from vitx.errors import ConfigError, MissingExtraError


def python(*arguments, cwd=runs.ROOT, **environment):
  environment = os.environ | {"PYTHONPATH": str(runs.ROOT), "JAX_PLATFORMS": "cpu"} | environment
  return subprocess.run(
    [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
  )


def test_help_names_every_command_and_is_quick():
  start = time.monotonic()
  result = python("-X", "importtime", "-m", "vitx", "--help")
  assert result.returncode == 0 and time.monotonic() - start < 10
  assert all(f"\n    {name}" in result.stdout for name in front.COMMANDS)
  assert " jax\n" not in result.stderr and " flax\n" not in result.stderr


@pytest.mark.parametrize("name", front.COMMANDS)
def test_every_command_has_help(name, capsys):
  with pytest.raises(SystemExit) as end:
    front.main([name, "--help"])
  assert end.value.code == 0 and f"usage: vitx {name}" in capsys.readouterr().out


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


@pytest.mark.parametrize("name", ["evaluate", "prepare", "summary", "benchmark"])
def test_an_old_form_names_the_new_one(name):
  result = python("-m", f"vitx.{name}", "--workdir", "x")
  assert result.returncode == 1 and result.stderr.endswith(f"vitx.{name} is now: vitx {name}\n")


@pytest.mark.slow
def test_an_old_import_fails_and_leaves_the_function():
  code = (
    "import vitx\n"
    "try:\n"
    "  import vitx.evaluate\n"
    "except ImportError as error:\n"
    "  assert 'is now: vitx evaluate' in str(error)\n"
    "else:\n"
    "  raise SystemExit('it was imported')\n"
    "from vitx import evaluate\n"
    "from vitx.cli.evaluate import evaluate as function\n"
    "assert evaluate is vitx.evaluate is function"
  )
  result = python("-c", code)
  assert result.returncode == 0, result.stderr


def test_every_public_name_is_there():
  assert all(getattr(vitx, name) is not None for name in vitx.__all__)
