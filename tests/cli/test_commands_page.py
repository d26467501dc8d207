"""docs/commands.md is generated from the parsers, and has every argument of every command."""

import re

import pytest

from docs import commands_page
from tests import documents
from vitx.cli.main import COMMANDS, Parser, declare_arguments

PAGE = "docs/commands.md"


def test_the_page_agrees_with_the_parsers():
  assert documents.read(PAGE) == commands_page.render(), (
    f"write it anew: python -m docs.commands_page > {PAGE}"
  )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_flag(name):
  parser = Parser(prog=name)
  declare_arguments(name, parser)
  (section,) = re.findall(rf"^## vitx {name}$(.*?)(?=^## |\Z)", documents.read(PAGE), re.S | re.M)
  named = " ".join(re.findall(r"^\| `([^`]*)`", section, re.M))
  assert set(re.findall(r"--\w+", named)) >= set(re.findall(r"--\w+", parser.format_usage()))
  assert all(line.count(" | ") == 2 for line in section.splitlines() if line.startswith("|"))
