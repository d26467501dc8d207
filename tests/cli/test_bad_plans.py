"""`vitx plan` refuses bad arguments, and rows that it cannot plan, before it compiles anything."""

import argparse
import sys

import pytest

from tests.cli.refusal import elsewhere, refuse
from vitx.cli import flags, plan, reproduce

__all__ = ["elsewhere"]

DIGITS = ["--config", "digits"]
TWO = [*DIGITS, "--rows", "softmax,fnet"]

CASES = [
  ([*DIGITS, "--rows", "softmx"], "rows='softmx' is no row of 'digits'. Did you mean 'softmax'?"),
  (["--config", "digits:fnet", "--rows", "fnet"], "names the row 'fnet' already"),
  ([*TWO, "--pareto", "gflop,parameters", "--out", "."], "Did you mean 'gflops'?"),
  (
    [*TWO, "--pareto", "gflops,published_top1", "--out", "."],
    "--pareto='published_top1' is unknown",
  ),
  ([*TWO, "--pareto", "gflops", "--out", "."], "a plot needs --pareto X,Y, two columns"),
  ([*TWO, "--pareto", "gflops,parameters"], "and --out DIR, its folder"),
  ([*TWO, "--csv", "no/where.csv"], "csv='no/where.csv' is a folder, or is in a folder that does"),
  (["--config", "digits:fnet", "--all"], "names the row 'fnet' already; leave --all out"),
  (["--rates"], "required: --config"),
  ([*DIGITS, "--memory", "much"], "'much' must be a number and a unit of MB"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[0]))
def test_a_plan_refuses_contradictory_arguments(case, elsewhere, capsys):
  arguments, part = case
  refuse(capsys, elsewhere, ["plan", *arguments], part)


def test_a_plot_needs_its_extra(elsewhere, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
  arguments = ["plan", *TWO, "--pareto", "gflops,parameters", "--out", "."]
  refuse(capsys, elsewhere, arguments, 'needs the extra "plot"')


def test_positive_integers_begin_with_one():
  assert flags.positives("1,20") == [1, 20] and flags.positive("1") == 1
  for text in ("0", "2,-1", "x", "1.5"):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a positive integer, such as"):
      flags.positives(text)
  with pytest.raises(argparse.ArgumentTypeError, match="'1,20' is not a positive integer"):
    flags.positive("1,20")


@pytest.mark.parametrize(
  ("parse", "text", "value"),
  [
    (plan.parse_memory, "1.5 GiB", 1.5 * 2**30),
    (reproduce.parse_budget, "0.05PFLOP", 5e13),
    (reproduce.parse_budget, "3 TFLOPs", 3e12),
  ],
)
def test_amounts_have_a_unit(parse, text, value):
  assert parse(text) == value
  for wrong in ("5", "x GFLOP", "3 KFLOP", "0PFLOP", "0GB", "16gb", "-1GB", "nanGB", "1.2.3GB"):
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{wrong}' must be a number and a unit"):
      parse(wrong)
