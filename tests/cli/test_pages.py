"""A training's process asks for large pages, where Linux gives them to who asks."""

import os
import subprocess
import sys

import pytest

from vitx.cli import pages
from vitx.cli.main import start

RESTARTED = {pages.TUNABLES: "glibc.malloc.hugetlb=1"}


class Restart(BaseException):
  """In place of the process that would begin."""


@pytest.fixture
def machine(monkeypatch, tmp_path):
  """Makes a machine on which large pages are for those that ask, and nothing is decided yet."""
  offered = tmp_path / "enabled"
  offered.write_text("always [madvise] never\n")
  monkeypatch.setattr(pages, "LARGE_PAGES", offered)
  monkeypatch.setattr(sys, "platform", "linux")
  monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
  monkeypatch.delenv(pages.TUNABLES, raising=False)
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")

  def begin(program, arguments, environment):
    raise Restart(program, arguments, environment)

  monkeypatch.setattr(os, "execve", begin)
  return offered


def test_asks(machine):
  with pytest.raises(Restart) as begun:
    pages.restart()
  program, arguments, environment = begun.value.args
  assert (program, arguments) == (sys.executable, sys.orig_argv)
  assert environment == os.environ | RESTARTED


def test_keeps_other_tunables(machine, monkeypatch):
  monkeypatch.setenv(pages.TUNABLES, "glibc.malloc.arena_max=2")
  with pytest.raises(Restart) as begun:
    pages.restart()
  told = begun.value.args[2][pages.TUNABLES]
  assert told == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"


@pytest.mark.parametrize("value", ["glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=1"])
def test_leaves_what_was_decided(machine, monkeypatch, value):
  monkeypatch.setenv(pages.TUNABLES, value)
  pages.restart()


@pytest.mark.parametrize("offered", ["[always] madvise never\n", "always madvise [never]\n"])
def test_leaves_what_the_machine_decided(machine, offered):
  machine.write_text(offered)
  pages.restart()


def test_leaves_a_machine_without_large_pages(machine):
  machine.unlink()
  pages.restart()


@pytest.mark.parametrize("library", ["glibc 2.31", "glibc 2.4", None])
def test_leaves_other_libraries(machine, monkeypatch, library):
  monkeypatch.setattr(os, "confstr", lambda _: library)
  pages.restart()


def test_leaves_a_library_that_does_not_say(machine, monkeypatch):
  def unknown(_):
    raise ValueError("unrecognized configuration name")

  monkeypatch.setattr(os, "confstr", unknown)
  pages.restart()


@pytest.mark.parametrize("platforms, asks", [("cuda", False), ("cuda,cpu", True), ("", True)])
def test_is_for_cpus(machine, monkeypatch, platforms, asks):
  monkeypatch.setenv("JAX_PLATFORMS", platforms)
  if asks:
    with pytest.raises(Restart):
      pages.restart()
  else:
    pages.restart()


@pytest.mark.parametrize(
  "given, asks",
  [
    (["train", "--config", "x"], True),
    (["sweep"], True),
    (["benchmark", "choose"], True),
    (["benchmark", "models", "--help"], False),  # PyTorch would have them too
    (["config", "--help"], False),
    ([], False),
  ],
)
def test_commands_that_train_ask(machine, monkeypatch, given, asks):
  monkeypatch.setattr(sys, "argv", ["vitx", *given])
  with pytest.raises(Restart if asks else SystemExit):
    start()


def test_the_process_goes_on_as_it_was():
  """The same arguments and number; on a machine that offers large pages, with the tunable."""
  code = (
    "import os, sys; from vitx.cli import pages; before = os.environ.get('BEFORE');"
    " os.environ['BEFORE'] = str(os.getpid()); pages.restart();"
    " print(before or os.getpid(), os.getpid(), sys.argv[1], os.environ.get('GLIBC_TUNABLES'))"
  )
  environment = {k: v for k, v in os.environ.items() if k != pages.TUNABLES}
  environment.pop("BEFORE", None)
  told = subprocess.run(
    [sys.executable, "-c", code, "an argument"],
    env=environment | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  first, second, *argument, tunables = told.split()
  assert first == second and argument == ["an", "argument"]
  assert tunables == (RESTARTED[pages.TUNABLES] if pages._can_ask() else "None")
