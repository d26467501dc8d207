"""The commands of the benchmarks, as the pages show them."""

import runpy

import pytest

from tests.benchmarks import console
from tests.documents import PAGES, page_commands

SHOWN = {
  command.words[2:]: command.text
  for page in PAGES
  for command in page_commands(page)
  if command.words[2:] and command.words[2].startswith("tests.benchmarks.")
}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # Other tests import the module.
@pytest.mark.parametrize("words", SHOWN, ids=SHOWN.get)
def test_a_command_of_the_pages_is_understood(words, monkeypatch):
  module, *arguments = words
  read = []
  monkeypatch.setattr(
    console, "start", lambda measure, parser: read.append(parser.parse_args(arguments))
  )
  with pytest.raises(SystemExit):
    runpy.run_module(module, run_name="__main__")
  assert {"runs", "repeats", "seconds"} <= set(vars(read[0]))
