"""The pages of docs/reference name every public function and class; Sphinx is not needed."""

import inspect
import pkgutil
import re
import types
from collections.abc import Iterator

import pytest

import vitx
import vitx.attention
import vitx.config
import vitx.models
import vitx.testing
from tests.runs import ROOT
from vitx import ops
from vitx.attention import MIXERS
from vitx.blocks.registry import BLOCKS
from vitx.models import MODELS
from vitx.ops import patterns

FACES = (vitx, ops, patterns, vitx.attention, vitx.config, vitx.models)
DIRECTIVE = re.compile(r"^\.\. auto(?:module|class|function):: (\S+)\n((?:   :.*\n)*)", re.M)


def documented(page: str) -> Iterator[object]:
  """Yields the objects that the directives of a page describe."""
  for name, options in DIRECTIVE.findall(page):
    thing = pkgutil.resolve_name(name)
    yield thing
    if isinstance(thing, types.ModuleType) and ":no-members:" not in options:
      names = vars(thing) if ":imported-members:" in options else getattr(thing, "__all__", ())
      yield from (getattr(thing, member) for member in names)


@pytest.fixture(scope="module")
def reference() -> set[int]:
  """The identities (`id`) of all objects that the reference describes."""
  pages = sorted((ROOT / "docs" / "reference").glob("*.rst"))
  return {id(thing) for page in pages for thing in documented(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_public_name_is_in_the_reference(face, reference):
  public = {name: getattr(face, name) for name in face.__all__}
  missing = {
    name for name, thing in public.items() if callable(thing) and id(thing) not in reference
  }
  assert not missing, f"no page of docs/reference names {missing} of {face.__name__}"


@pytest.mark.parametrize("table", [MIXERS, BLOCKS, MODELS], ids=["mixers", "blocks", "models"])
def test_every_named_choice_is_in_the_reference(table, reference):
  missing = {name for name, choice in table.items() if id(choice) not in reference}
  assert not missing, f"no page of docs/reference has the classes of {missing}"


def test_the_contract_is_in_the_reference(reference):
  assert id(vitx.testing.check_token_mixer) in reference


def test_every_object_in_the_reference_has_a_docstring():
  # Sphinx leaves out objects without a docstring, without a warning.
  for face in FACES:
    for name in face.__all__:
      thing = getattr(face, name)
      assert not callable(thing) or inspect.getdoc(thing), f"{face.__name__}.{name}"


def test_a_name_without_a_directive_is_noticed():
  page = ".. automodule:: vitx\n   :no-members:\n\n.. autofunction:: vitx.load\n"
  assert {id(thing) for thing in documented(page)} == {id(vitx), id(vitx.load)}
