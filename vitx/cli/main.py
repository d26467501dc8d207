"""The command `vitx`: the table of commands, and the code that prints an error as one line.

Each command is a file of this folder. The file's docstring is the description of the command,
`add_arguments(parser)` declares the arguments, and `run(**options)` executes the command. Slow
imports are inside `run`, so help and error messages do not wait for JAX.
"""

import argparse
import atexit
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vitx.cli import console
from vitx.config import registry
from vitx.config.errors import UserError
from vitx.config.loader import join_text, split_flags

COMMANDS = {
  "train": "Train a model, or resume a stopped run.",
  "evaluate": "Evaluate a trained model on every example of a split.",
  "predict": "Predict the classes of images, also of whole folders.",
  "audit": "Find duplicates, suspect labels and unusual images in a data set.",
  "probe": "Classify frozen features by simple methods, in seconds and without training.",
  "export": "Write a trained model as a program that runs without vitx.",
  "sample": "Draw images, text or sound from a density model.",
  "compress": "Compress a file with the probabilities of a density model.",
  "decompress": "Restore a file that vitx compress wrote.",
  "plan": "Show the size, cost and largest batch of a config's rows.",
  "config": "Print a whole config as JSON, or explain its fields.",
  "prepare": "Download or convert a data set.",
  "convert": "Convert published weights into a workdir, or a workdir for timm and the Hub.",
  "benchmark": "Measure mixers and data on this machine, and set what auto picks.",
  "visualize": "Draw a figure of a trained model or of a config.",
  "sweep": "Train a config over values of its fields and seeds, and compare.",
  "reproduce": "Train a config's rows and show the published figures beside ours.",
}
INTERRUPTED = 130  # The shell's exit status for SIGINT.
GONE = 141  # The shell's exit status for SIGPIPE.


class Parser(argparse.ArgumentParser):
  """A parser that refuses abbreviations and exits with status 1 for bad arguments, as absl does."""

  def __init__(self, **settings: Any):
    super().__init__(
      **settings, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )

  def error(self, message: str) -> Any:
    self.print_usage(sys.stderr)
    self.exit(1, f"{self.prog}: {message}\n")


def start(*before: str) -> int:
  """Runs the command made of `before` and this process's arguments; returns the exit status."""
  atexit.register(_keep_status)
  status = main([*before, *sys.argv[1:]])
  signals: Any = sys.modules.get("vitx.runtime.signals")
  return signals.leave(status) if signals else status


def _keep_status() -> None:
  """Ignores the signals that Python handles, which would end the closing interpreter."""
  for number in signal.valid_signals():
    if callable(signal.getsignal(number)):
      signal.signal(number, signal.SIG_IGN)


def main(arguments: Sequence[str]) -> int:
  """Runs `vitx COMMAND ...` and returns the exit status."""
  return run(lambda: _dispatch(list(arguments)))


def run(command: Callable[[], int | None]) -> int:
  """Runs a command and returns its exit status.

  An expected error is printed as one line on stderr, without a traceback, and the status is 1.
  """
  try:
    with console.guard():
      return _run(command)
  except console.ConsoleGone:
    return GONE


def _run(command: Callable[[], int | None]) -> int:
  try:
    return command() or 0
  except Exception as error:
    if not isinstance(error, UserError | OSError):
      _end_among_others(error)
      raise
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    _end_among_others(None)
    return 1
  except KeyboardInterrupt:  # Training handles the signal itself: it saves and returns 75.
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def _dispatch(arguments: list[str]) -> int | None:
  parser = Parser(prog="vitx", description="Vision transformers whose attention is efficient.")
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
  for name, summary in COMMANDS.items():
    command = commands.add_parser(name, help=summary, description=summary)
    if arguments[:1] == [name]:
      declare_arguments(name, command)
  rest, overrides = split_flags(arguments)
  options = parser.parse_args(rest)
  name = options.__dict__.pop("command")
  if overrides:
    if getattr(options, "config", None) is None:
      parser.error(f"unrecognized arguments: --config.{overrides[0]}; give --config FILE")
    options.config = join_text(options.config, overrides)
  with registry.trusting(options.__dict__.pop("trust_code", False) or None):
    return importlib.import_module(f"vitx.cli.{name}").run(**vars(options))


def declare_arguments(name: str, parser: argparse.ArgumentParser) -> None:
  """Adds the description and the arguments of a command to a parser."""
  module = importlib.import_module(f"vitx.cli.{name}")
  parser.description = module.__doc__
  module.add_arguments(parser)


def _end_among_others(error: Exception | None) -> None:
  """Ends this process at once if the run has several processes, for which an exit would wait."""
  distributed: Any = sys.modules.get("vitx.training.distributed")
  if distributed is not None and distributed.is_joined():
    distributed.end(error)
