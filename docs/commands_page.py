"""Prints the page that lists every command's arguments, docs/commands.md.

Write the page with `python -m docs.commands_page > docs/commands.md`.
"""

import argparse
from collections.abc import Iterator

from vitx.cli.main import COMMANDS, Parser, declare_arguments

INTRODUCTION = """# Every command and its arguments

`vitx COMMAND --help` says more about a command, and `python -m vitx COMMAND` runs it too. If a
command takes a config, `--config.field=value` sets one of its fields, see [training](training.md).
`python train.py` takes the arguments of `vitx train`. A config file such as `configs/digits.py` has
a table of rows, and `configs/digits.py:bigbird,seed=3` is the row `bigbird` with another seed. The
implementation `auto` is the choice that vitx makes between `masked` and `kernelized`.

`python -m docs.commands_page` writes this page from the declarations of the arguments.
"""
HEAD = ("argument", "default", "meaning")
BOOLEAN_HELP = " (default: %(default)s)"  # The ending that argparse adds before Python 3.13.


def render() -> str:
  """Returns the page as Markdown."""
  parts = [INTRODUCTION]
  for name, summary in COMMANDS.items():
    parser = Parser(prog=f"vitx {name}", add_help=False)
    declare_arguments(name, parser)
    parts.append(f"## vitx {name}\n\n{summary}\n")
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for commands in inner:
      for choice in commands._choices_actions:
        parts.append(f"### vitx {name} {choice.dest}\n\n{choice.help}\n")
        parts.append(_table(commands.choices[choice.dest]))
    if not inner:
      parts.append(_table(parser))
  return "\n".join(parts)


def _table(parser: argparse.ArgumentParser) -> str:
  rows = [HEAD, ("---",) * len(HEAD), *_rows(parser)]
  lines = (" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows)
  return "".join(f"| {line} |\n" for line in lines)


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
  for action in parser._actions:
    if not isinstance(action, argparse._HelpAction):
      words = (action.help or "").removesuffix(BOOLEAN_HELP)
      yield f"`{_name(action)}`", _default(action), words


def _name(action: argparse.Action) -> str:
  value = action.metavar or action.dest.upper()
  many = " ..." if action.nargs == "+" else ""
  if not action.option_strings:
    return f"{value}{many}"
  names = ", ".join(action.option_strings)
  return names if action.nargs == 0 else f"{names} {value}{many}"


def _default(action: argparse.Action) -> str:
  if action.required:
    return "required"
  if action.default is False or action.default in (None, "", ()):  # 0 is a default
    return ""
  if action.nargs == 0:
    return f"`{action.option_strings[0]}`"
  value = ",".join(map(str, action.default)) if isinstance(action.default, list) else action.default
  return f"`{value}`"


if __name__ == "__main__":
  print(render(), end="")
