"""Names that contain control characters are escaped; a closed console is no error."""

import dataclasses
import errno
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitx
from vitx.checkpoints import load
from vitx.checkpoints.errors import CorruptCheckpoint
from vitx.cli import main
from vitx.config.errors import ConfigError, escape
from vitx.inference import opening
from vitx.runtime.progress import count_bar
from vitx.training.record import console

EVIL = "cat\x1b[2J\x1b]0;title\x07\r\x9b31m\u202egnp.exe\x08\x7f"
SHOWN = r"cat\x1b[2J\x1b]0;title\x07\r\x9b31m\u202egnp.exe\x08\x7f"


def run(command, capsys, status=0):
  assert main.run(command) == status
  return capsys.readouterr()


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    (EVIL, SHOWN),
    ("naïve 猫 ‍ \u200d é\xa0x", "naïve 猫 ‍ \u200d é\xa0x"),  # letters, joiners, blanks
    ("\u2066a\u2069\u061c\u2028", r"\u2066a\u2069\u061c\u2028"),
    ("not UTF-8: \udcff", r"not UTF-8: \udcff"),
    ("two\nlines\tand", "two\nlines\tand"),
  ],
)
def test_control_characters_are_written_out(text, shown, capsys):
  assert escape(text) == shown
  assert str(ConfigError(text)) == str(CorruptCheckpoint(text)) == shown
  assert run(lambda: print("name:", text), capsys).out == f"name: {shown}\n"
  assert run(lambda: print("name:", text, file=sys.stderr), capsys).err == f"name: {shown}\n"


def test_errors_and_warnings_are_escaped(capsys, tmp_path):
  def fail():
    raise OSError(f"no {EVIL}")

  assert run(fail, capsys, 1).err == f"OSError: no {SHOWN}\n"
  stream = (tmp_path / "stderr").open("w")
  handler = logging.StreamHandler(stream)  # a handler that still has the former stream
  logging.getLogger("absl").addHandler(handler)
  try:
    run(lambda: logging.getLogger("absl").warning("skipping %s", EVIL), capsys)
  finally:
    logging.getLogger("absl").removeHandler(handler)
    stream.close()
  assert (tmp_path / "stderr").read_text() == f"skipping {SHOWN}\n"


def test_own_control_sequences_are_printed(capsys, monkeypatch):
  drawn = ["\r\033[Kstep 1", "\033[3A\r\033[Jtable", "\r\033[K", "\r 5%|", "\n\n\033[A\033[A", "\n"]
  for text in drawn:
    assert run(lambda text=text: print(text, end=""), capsys).out == text
  monkeypatch.setattr("vitx.runtime.progress.SOON", 0.0)

  def count():
    with count_bar(f"reading {EVIL}", 2, "file") as bar:
      bar.update()
      bar.refresh()

  shown = run(count, capsys).err
  assert shown.startswith("\r") and SHOWN in shown and "\x1b[2J" not in shown


def test_the_log_of_a_run_is_escaped(tmp_path, capsys):
  with pytest.raises(ConfigError), console.keep_log(tmp_path, write=True):
    print(f"\r\033[Kinit_from {EVIL}")
    logging.getLogger("absl").warning("skipping %s", EVIL)
    raise ConfigError(EVIL)
  lines = (tmp_path / "log.txt").read_bytes().decode().splitlines()[1:]
  assert lines == [f"init_from {SHOWN}", f"skipping {SHOWN}", f"ConfigError: {SHOWN}"]
  assert capsys.readouterr().out == f"\r\033[Kinit_from {SHOWN}\n"


def test_commands_escape_the_names_of_classes(finished_run, tmp_path, monkeypatch, capsys):
  loaded = vitx.load(finished_run[0])
  names = [EVIL, "=1+1", "two\nlines", *"3456789"]
  loaded = dataclasses.replace(loaded, data={**loaded.data, "class_names": names})
  monkeypatch.setattr(load, "load", lambda *_, **__: loaded)
  monkeypatch.setattr(opening, "_match", lambda loaded, dataset: dataset)
  monkeypatch.chdir(tmp_path)
  Image.fromarray(np.zeros((8, 8), np.uint8)).save("x.png")
  assert main.main(["evaluate", "--workdir", "w", "--limit", "40"]) == 0
  printed = capsys.readouterr().out
  assert SHOWN in printed and r"two\nlines" in printed and "\x1b" not in printed
  assert main.main(["predict", "--workdir", "w", "x.png", "--top_k", "20"]) == 0
  printed = capsys.readouterr().out
  assert SHOWN in printed and len(printed.splitlines()) == 2 and "class 10" in printed


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full disk")
def test_a_full_disk_ends_with_one_line(finished_run, capsys):
  arguments = ["evaluate", "--limit", "4", "--predictions", "/dev/full"]
  assert main.main([*arguments, "--workdir", str(finished_run[0])]) == 1
  error = capsys.readouterr().err
  assert error == f"OSError: [Errno {errno.ENOSPC}] No space left on device\n"


class Closed:
  """A console whose reader has closed it."""

  encoding = "utf-8"

  def write(self, text):
    raise BrokenPipeError(errno.EPIPE, "Broken pipe")

  def flush(self):
    pass

  def isatty(self):
    return False

  def fileno(self):
    raise OSError


def test_files_are_written_although_the_console_has_gone(finished_run, tmp_path, monkeypatch):
  Image.new("L", (8, 8)).save(tmp_path / "a.png")
  monkeypatch.setattr(sys, "stdout", Closed())
  files = [str(tmp_path / "p.csv"), str(tmp_path / "p.json")]
  words = ["--workdir", str(finished_run[0]), "--csv", files[0], "--json", files[1]]
  assert main.main(["predict", str(tmp_path / "a.png"), *words]) == main.GONE
  assert all(Path(file).read_text().count("a.png") == 1 for file in files)


@pytest.mark.parametrize(
  ("stream", "arguments"),
  [("stdout", ["--help"]), ("stdout", ["config", "digits"]), ("stderr", ["config", "nothing"])],
)
def test_a_closed_console_ends_quietly(stream, arguments, monkeypatch, capsys):
  monkeypatch.setattr(sys, stream, Closed())
  assert main.main(arguments) == main.GONE == 141
  assert not capsys.readouterr().err
