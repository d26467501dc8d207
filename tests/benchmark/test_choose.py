"""The rule by which "auto" picks, made from measured ratios, and `vitx benchmark choose`."""

import json
import math

import pytest

from vitx.benchmark import choose, tune
from vitx.benchmark.choose import Ratio
from vitx.benchmark.mixers import Setting
from vitx.cli.main import main
from vitx.ops import rule
from vitx.ops.implementation import current_rule
from vitx.ops.sparse import triton_attention

TINY = ["benchmark", "choose", "--tokens=8,16", "--batches=2", "--heads=2", "--head_dim=4"]
TINY += ["--repeats=1", "--minutes=0.001"]


def ratios(table):
  """Returns ratios from a table: row i is for N = 64 · 2ⁱ, and column j for B H = 4 · 4ʲ."""
  return [
    Ratio("linear", "performer", 64 * 2**i, 4 * 4**j, value)
    for i, row in enumerate(table)
    for j, value in enumerate(row)
  ]


@pytest.mark.parametrize(
  ("table", "bounds"),
  [
    ([[2, 2], [3, 3]], ()),
    ([[0.5, 0.5], [0.5, 0.5]], ((128, None),)),
    ([[0.5, 0.7], [0.7, 1.4]], ((64, None), (128, 4))),
    ([[0.5, 1.7], [0.7, 1.4]], ((128, 4),)),
    ([[0.5, 0.7], [1.2, 1.4]], ((64, None),)),
    # A gain of less than five percent does not count.
    ([[0.96, 0.99], [1.0, 1.0]], ()),
    # One cell that contradicts its neighbors is outvoted by them.
    ([[0.5, 0.6], [1.1, 0.6]], ((128, None),)),
    ([[1.1, 1.2], [0.9, 1.2]], ()),
    # A path that does not fit the memory is never picked.
    ([[0.1, 0.1], [0.1, math.inf]], ((64, None), (128, 4))),
  ],
)
def test_the_rule_loses_the_least_time(table, bounds):
  assert choose.fit(ratios(table)) == bounds


def test_several_mixers_share_a_rule():
  other = [Ratio("linear", "other", r.tokens, r.matrices, 1.9) for r in ratios([[1, 1], [1, 1]])]
  assert choose.fit([*ratios([[0.3, 0.4], [0.6, 0.6]]), *other]) == ((64, None),)


@pytest.mark.slow
def test_every_family_has_a_mixer_that_calls_it():
  families = {
    choose.Candidate(spec, Setting(heads=2, head_dim=4)).find_family((64,))
    for spec in choose.SUBJECTS
  }
  assert families == {*rule.FAMILIES, None}  # MLP mixing has one path


@pytest.mark.slow  # compiles and times several programs
def test_the_command_measures_families_and_writes_the_rule(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv(rule.VARIABLE, str(tmp_path / "mine"))
  before = rule.load_rule("cpu")
  assert not main([*TINY, "--ops=fourier"])
  path = tmp_path / "mine" / "cpu.json"
  assert f"wrote {path}" in capsys.readouterr().out
  families = json.loads(path.read_text())["families"]
  measured = families["fourier"]["measured"]
  ratios = measured["masked_over_kernelized"]["fnet"]
  assert ratios.keys() == {"N=8", "N=16"} and all(row["M=4"] > 0 for row in ratios.values())
  assert (measured["heads"], measured["head_dim"], measured["rounds"]) == (2, 4, 1)
  shipped, after = rule._read(rule.SHIPPED / "cpu.json")["families"], rule.load_rule("cpu")
  assert after.source == str(path)
  for family in rule.FAMILIES.keys() - {"fourier"}:
    assert families[family] == shipped[family] and after.masked[family] == before.masked[family]


def test_the_command_writes_another_file_and_refuses_unknown_ops(tmp_path, monkeypatch, capsys):
  ratios = [Ratio("fourier", "fnet", 8, 4, 2.0)]
  monkeypatch.setattr(choose, "measure", lambda *_, **__: ratios)
  path = tmp_path / "rule.json"
  assert not main([*TINY, "--ops=fourier", f"--out={path}"])
  assert rule._read(path)["families"]["fourier"]["measured"]["cores"] >= 1
  assert main([*TINY, "--ops=forier"]) == 1
  assert "Did you mean 'fourier'" in capsys.readouterr().err


def test_tiles_are_measured_first_and_stay_afterwards(tmp_path, monkeypatch):
  sizes = rule.TileSizes(64, *[rule.Launch(2, 8, 3)] * 3)
  entry = {"sizes": {"float32": {"64": sizes}}, "measured": {"date": "2026-11-26"}}
  used = []

  def measure(*_, **__):
    used.append(current_rule().tiles)
    return [Ratio(family, "any", 8, 4, 2.0) for family in rule.FAMILIES]

  monkeypatch.setenv(rule.VARIABLE, str(tmp_path))
  monkeypatch.setattr(choose, "measure", measure)
  monkeypatch.setattr(tune, "measure", lambda minutes, say: entry)
  monkeypatch.setattr(triton_attention, "find_capability", lambda: 90)
  assert not main(TINY)
  monkeypatch.setattr(tune, "measure", lambda minutes, say: pytest.fail("it was not asked for"))
  assert not main([*TINY, "--ops=fourier"])
  assert used == [{"float32": {64: sizes}}] * 2
  assert (
    rule.load_rule("cpu").tiles == used[0] and rule.read_stored("cpu")["tiles"]["measured"]["date"]
  )


def test_a_masked_path_beyond_the_memory_takes_forever(monkeypatch):
  subject = choose.Candidate({"name": "softmax"}, Setting(heads=2, head_dim=4))
  monkeypatch.setattr("vitx.benchmark.timing.find_free_bytes", lambda: 10**5)
  assert subject.compare(256, 4, 1, 0.1) == (math.inf, 0.0)
