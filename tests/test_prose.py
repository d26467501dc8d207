"""Docstrings, help texts and the names of tests are plain English that can be read alone."""

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.commands_page import BOOLEAN_HELP
from vitx.cli.main import COMMANDS, Parser, declare_arguments

ROOT = Path(__file__).resolve().parents[1]
FILES = [*sorted((ROOT / "vitx").rglob("*.py")), *sorted((ROOT / "configs").glob("*.py"))]
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PREPOSITION = re.compile(
  r"(about|after|among|as|at|before|behind|below|beside|between|beyond|by|during|for|from|in|inside"
  r"|into|of|off|on|onto|out|outside|over|per|since|through|to|under|until|up|upon|with|within"
  r"|without) ",
  re.IGNORECASE,
)
# How many entries may begin with a preposition, such as "at: In seconds".
MOST = 40
TURNS = (
  r"\bas there\b"
  r"|\bof those (that|which)\b"
  r"|\bthe same[.,;:)]|\bthe same (of|from|for|by|in|with)\b"
  r"|\b(is|are|was|were|be|been) told\b|\btold (of|by|apart)\b"
  r"|\bstands?\b(?! for\b)"
  r"|\blies?\b(?! (in|within|outside) [\[(])"
  r"|\b(Return|Yield)s? (what|that|how|where|which|whose|whom)\b"
)


@functools.cache
def read_docstrings() -> list[tuple[str, str]]:
  """Returns (place, text) of every docstring of the files."""
  return [
    (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text)
    for path in FILES
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, OWNERS) and (text := ast.get_docstring(node))
  ]


def read_entries(text: str) -> Iterator[str]:
  """Yields the first words of the entries under Args and Attributes."""
  for block in re.findall(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE):
    yield from re.findall(r"^  \**\w[\w, *]*: (.*)", block, re.MULTILINE)


def test_entries_are_noun_phrases():
  entries = [
    f"{place}: {entry}"
    for place, text in read_docstrings()
    for entry in read_entries(text)
    if PREPOSITION.match(entry)
  ]
  assert len(entries) < MOST, "\n".join(entries)


def read_helps(parser: argparse.ArgumentParser) -> Iterator[str]:
  """Yields the help text of every argument of a parser and of its subcommands."""
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      yield from (choice.help or "" for choice in action._choices_actions)
      for inner in action.choices.values():
        yield from read_helps(inner)
    elif not isinstance(action, argparse._HelpAction):
      yield (action.help or "").removesuffix(BOOLEAN_HELP)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_are_noun_phrases_and_sentences(name):
  parser = Parser(prog=name, add_help=False)
  declare_arguments(name, parser)
  helps = [COMMANDS[name], *read_helps(parser)]
  assert not [text for text in helps if PREPOSITION.match(text) or not text.endswith(".")]


def test_no_docstring_has_a_turn_that_needs_a_second_reading():
  turns = [
    f"{place}: {match[0]}"
    for place, text in read_docstrings()
    for match in re.finditer(TURNS, text)
  ]
  assert not turns, "\n".join(turns)


def test_the_name_of_a_test_is_a_sentence():
  """A name has three words at least, and begins with the thing that the test is about."""
  names = {
    node.name.removeprefix("test_").replace("_", " ")
    for path in (ROOT / "tests").rglob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
  }
  riddle = re.compile(rf"^(what|who|whose|which|how|whatever|whoever)\b|\btold\b|{TURNS}")
  assert not {name for name in names if len(name.split()) < 3 or riddle.search(name)}
