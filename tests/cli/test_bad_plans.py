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
  ([*DIGITS, "--rows", "fnet,fnet"], "rows='fnet,fnet' has 'fnet' twice"),
  (["--config", "digits:fnet", "--rows", "fnet"], "names the row 'fnet' already"),
  (["--config", "digts"], "config='digts' does not exist. Did you mean 'digits'?"),
  (["--config", "vix_cifar10:vip,dataset=food110"], "Did you mean 'food101'?"),
  (["--config", "digits:fnet,model.depth=0"], "model.depth=0 is out of range"),
  ([*TWO, "--pareto", "gflop,parameters", "--out", "."], "Did you mean 'gflops'?"),
  (
    [*TWO, "--pareto", "gflops,published_top1", "--out", "."],
    "--pareto='published_top1' is unknown",
  ),
  ([*TWO, "--pareto", "gflops,train_per_s", "--out", "."], "needs a measurement; add --rates"),
  ([*TWO, "--pareto", "gflops", "--out", "."], "--pareto gflops must be two different"),
  ([*TWO, "--pareto", "gflops,gflops", "--out", "."], "--pareto gflops,gflops must be two"),
  ([*TWO, "--pareto", "gflops,parameters"], "--out DIR, the folder of the picture"),
  ([*TWO, "--out", "."], "a plot needs both --pareto X,Y"),
  ([*TWO, "--pareto", "gflops,parameters", "--out", "no/where"], "--out no/where is not a folder"),
  ([*TWO, "--csv", "no/where.csv"], "csv='no/where.csv': there is no folder 'no'"),
  ([*TWO, "--json", "."], "json='.' is a folder; name a file"),
  (["--config", "digits:fnet", "--all"], "names the row 'fnet' already; leave --all out"),
  ([*TWO, "--modules"], "--modules shows one row, and 2 rows are requested"),
  ([*TWO, "--rates", "--no-compile"], "--rates compiles each row, but --no-compile forbids that"),
  (["--rates"], "required: --config"),
  ([*DIGITS, "--memory", "much"], "'much' must be a number and a unit of MB"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[0]))
def test_what_cannot_be_told_of_rows(case, elsewhere, capsys):
  arguments, part = case
  refuse(capsys, elsewhere, ["plan", *arguments], part)


def test_a_plot_without_its_extra(elsewhere, capsys, monkeypatch):
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
