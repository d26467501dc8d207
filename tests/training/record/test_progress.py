"""The display of progress while something takes long."""

import re
import sys
import time

import pytest

from vitx.runtime import progress
from vitx.training.record import console


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_after_a_while_also_before_anything_is_done(
  is_terminal, monkeypatch, capsys
):
  """A terminal shows a bar; elsewhere, progress is lines, which overwrite no message."""
  monkeypatch.setattr(progress, "SOON", 0.05)
  monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
  with progress.count_bar("sampling", 40, "token") as bar:
    shown, until = "", time.monotonic() + 30  # as while a program is compiled
    while "0/40" not in shown and time.monotonic() < until:
      time.sleep(0.01)
      shown += capsys.readouterr().err
    assert "sampling: " in shown and "0/40" in shown
    assert ("\r" in shown) == ("0%" in shown) == (not shown.endswith("\n")) == is_terminal
    bar.update(20)
    if is_terminal:
      bar.refresh()
      shown = capsys.readouterr().err
      assert "50%" in shown
    assert re.search(r"20/40 \[00:\d\d<00:\d\d", str(bar))  # the time that is left
  assert not capsys.readouterr().err.replace("\r", "").strip()  # it is cleared


def test_quick_work_is_not_shown(capsys):
  with progress.count_bar("evaluating", 3, "batch") as bar:
    bar.update(3)
  assert progress.announce("compiling", lambda: 7, patience=2.0) == 7
  out, err = capsys.readouterr()
  assert not out and not err


def test_the_time_left_depends_on_the_steps_of_this_session(monkeypatch):
  """A resumed run may be on another machine, so only its own steps count."""
  now = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  clock = progress.Progress(step=30, total=100, batch_size=8, seconds=6.0)
  now[0] += 50.0  # decoding and compiling
  clock.begin()
  for step, eta in ((40, 4.0 * 60), (50, 4.0 * 50), (100, 0.0)):
    now[0] = 150.0 + 4.0 * (step - 30)
    assert clock.window(step)["eta"] == eta
  assert clock.seconds == 6.0 + 4.0 * 70


def test_the_log_holds_every_line_that_a_terminal_drew_over(tmp_path, capsys):
  with console.keep_log(tmp_path, write=True):
    print("\r\033[Kstep 1", end="")
    print("\r\033[Kstep 2", end="")
    print("\r\033[Ka line that stays")
    print("another")
  lines = (tmp_path / "log.txt").read_text().splitlines()
  assert lines[1:] == ["step 1", "step 2", "a line that stays", "another"]
  assert "\033[Kstep 2" in capsys.readouterr().out


def test_the_log_says_how_a_run_failed_and_does_not_end_it(tmp_path):
  for place in (tmp_path, tmp_path / "deleted"):
    try:
      with console.keep_log(place, write=True):
        print("step 1")
        raise OSError("disk full")
    except OSError:
      pass
  assert (tmp_path / "log.txt").read_text().endswith("step 1\nOSError: disk full\n")


def test_a_small_loss_is_shown_with_its_digits(capsys):
  clock = progress.Progress(step=0, total=9, batch_size=8, seconds=0.0)
  for loss, shown in ((0.693147, "loss 0.6931  lr"), (0.0000321, "loss 3.21e-05  lr")):
    clock.line(1, {"loss": loss, "learning_rate": 1e-3}, "", clock.window(1), 0.1)
    assert shown in capsys.readouterr().out
