"""What `vitx plan` cannot tell of a config: refused before anything is compiled."""

import argparse
import sys

import pytest

from tests.cli.refusal import elsewhere, refuse
from vitx.cli import flags

__all__ = ["elsewhere"]

DIGITS = ["--config", "digits"]
TWO = [*DIGITS, "--rows", "softmax,fnet"]

CASES = [
  ([*DIGITS, "--rows", "softmx"], "has no row 'softmx'. Did you mean 'softmax'?"),
  ([*DIGITS, "--rows", "fnet,fnet"], "rows: 'fnet' occurs twice"),
  (["--config", "digits:fnet", "--rows", "fnet"], "names the row 'fnet' already"),
  (["--config", "digts"], "config='digts' is no file. Did you mean 'digits'?"),
  (["--config", "digits:fnet,model.depth=0"], "model.depth=0 is out of range"),
  ([*TWO, "--pareto", "gflop,parameters", "--out", "."], "Did you mean 'gflops'?"),
  ([*TWO, "--pareto", "gflops,published_top1", "--out", "."], "'published_top1' is no column"),
  ([*TWO, "--pareto", "gflops,train_per_s", "--out", "."], "is measured: add --rates"),
  ([*TWO, "--pareto", "gflops", "--out", "."], "pareto='gflops': name two columns"),
  ([*TWO, "--pareto", "gflops,gflops", "--out", "."], "pareto='gflops,gflops': name two"),
  ([*TWO, "--pareto", "gflops,parameters"], "--out the folder of their plot: give both"),
  ([*TWO, "--out", "."], "--pareto names two columns"),
  ([*TWO, "--pareto", "gflops,parameters", "--out", "no/where"], "out='no/where' is no folder"),
  ([*TWO, "--csv", "no/where.csv"], "csv='no/where.csv': there is no folder 'no'"),
  ([*TWO, "--json", "."], "json='.' is a folder; name a file"),
  (["--config", "digits:fnet", "--all"], "names the row 'fnet' already: leave out --all"),
  ([*TWO, "--modules"], "--modules is of one row, and 2 are asked for"),
  ([*TWO, "--rates", "--no-compile"], "--rates runs what --no-compile leaves out"),
  (["--rates"], "required: --config"),
  ([*DIGITS, "--memory", "much"], "'much': write a number and MB"),
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
    with pytest.raises(argparse.ArgumentTypeError, match=text):
      flags.positives(text)
  with pytest.raises(argparse.ArgumentTypeError, match="one positive integer, such as 1"):
    flags.positive("1,20")
