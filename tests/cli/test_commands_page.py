"""docs/commands.md is generated from the parsers, and has every argument of every command."""

import re

import pytest

from tests import documents
from vitx.cli import commands_page
from vitx.cli.main import COMMANDS, Parser, declare_arguments

PAGE = "docs/commands.md"


def test_the_page_is_what_the_parsers_say():
  assert documents.read(PAGE) == commands_page.render(), (
    f"write it anew: python -m vitx.cli.commands_page > {PAGE}"
  )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_stands_in_the_section_of_its_command(name):
  parser = Parser(prog=name)
  declare_arguments(name, parser)
  (section,) = re.findall(rf"^## vitx {name}$(.*?)(?=^## |\Z)", documents.read(PAGE), re.S | re.M)
  named = " ".join(re.findall(r"^\| `([^`]*)`", section, re.M))
  assert set(re.findall(r"--\w+", named)) >= set(re.findall(r"--\w+", parser.format_usage()))
  assert all(line.count(" | ") == 2 for line in section.splitlines() if line.startswith("|"))


def test_what_a_row_says():
  text = documents.read(PAGE)
  assert "| `--workdir WORKDIR` | required | The workdir of a training run, or its" in text
  assert (
    "| `FILE ...` | required | An image file, a folder of images, or an .npz file of arrays. |"
    in text
  )
  assert "| `--seed SEED` | `0` | The seed of the draws. |" in text
  assert "| `--plot, --no-plot` | `--plot` | Draws the curves. |" in text
