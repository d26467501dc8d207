"""The command that draws figures, from a config and from a run."""

import csv

import pytest
from PIL import Image, ImageChops, ImageStat

import vitx
from configs.density_digits import get_config
from tests.runs import ROOT
from vitx.analysis.figures import patterns
from vitx.cli.main import main
from vitx.cli.visualize import Options, visualize

SMALL = (
  "model.width=16,model.depth=2,model.num_heads=2,model.mlp_dim=16,batch_size=32,duration=2 steps,"
  "evaluation.every=2 steps,checkpoint.every=2 steps,schedule.warmup=1 steps"
)


def read(path):
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.reader(file))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["atention_past", "--config=density_digits"], "Did you mean 'attention_past'?"),
    (["patterns"], "neither given"),
    (["patterns", "--config=density_digits", "--workdir=x"], "both given"),
    (["attention_past", "--config=digits:softmax"], "task.name='density'"),
    (["patterns", "--config=density_digits", "--examples=0"], "examples=0 must be at least 1"),
    (["attention_past", "--config=density_digits:dense", "--queries=64"], "choose from 0 to 63"),
    (["gallery", "--patterns=windw"], "Did you mean 'window'?"),
    (["gallery", "--grid=12"], "grid=12 must be rows,columns"),
    (["gallery", "--grid=100,100"], "at most 2,304 tokens"),
    (["gallery", "--config=digits"], "gallery is a figure of --patterns"),
    (["patterns", "--config=digits", "--patterns=window"], "gallery draws patterns"),
  ],
)
def test_errors_name_the_fix(arguments, message, tmp_path, capsys):
  assert main(["visualize", *arguments, f"--out={tmp_path}"]) == 1
  error = capsys.readouterr().err.splitlines()  # the digits may be prepared first, with progress
  assert error[-1].startswith("ConfigError: ") and message in error[-1]
  assert not list(tmp_path.iterdir())


def test_patterns_of_a_row_are_the_same_file_twice(tmp_path, capsys):
  config = "density_digits:strided,model.layer_cycle=2"
  for folder in ("one", "two"):
    assert main(["visualize", "patterns", f"--config={config}", f"--out={tmp_path / folder}"]) == 0
  one, two = (tmp_path / folder / "patterns_strided.png" for folder in ("one", "two"))
  assert one.read_bytes() == two.read_bytes() and one.read_bytes().startswith(b"\x89PNG")
  assert str(two) in capsys.readouterr().out


def test_without_a_pattern_every_kind_is_shown(tmp_path, monkeypatch):
  few = dict(list(patterns.PATTERNS.items())[:3])
  monkeypatch.setattr(patterns, "PATTERNS", few)
  (path,) = visualize("patterns", tmp_path, config="density_digits:dense")
  assert path.name == "patterns_dense_examples.png" and path.exists()


def test_the_picture_of_the_front_page_is_what_the_command_draws(tmp_path):
  assert main(["visualize", "gallery", f"--out={tmp_path}"]) == 0
  drawn, shown = Image.open(tmp_path / "gallery.png"), Image.open(ROOT / "docs" / "gallery.png")
  # Other versions of matplotlib set letters otherwise, by a few pixels.
  assert drawn.size == pytest.approx(shown.size, rel=0.02)
  apart = ImageChops.difference(drawn.convert("L"), shown.convert("L").resize(drawn.size))
  assert ImageStat.Stat(apart).mean[0] < 1  # one other pattern is 1.2
  assert (ROOT / "docs" / "gallery.png").stat().st_size < 200_000


def test_a_gallery_of_ones_own(tmp_path):
  names = ("axial_rows", "vitx.ops.patterns.examples:_CLASS")
  (path,) = visualize("gallery", tmp_path, patterns=names, grid=(7, 9))
  assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # trains, and compiles a model twice more
@pytest.mark.usefixtures("whole_runs")
def test_attention_past_of_a_run_and_of_its_config(tmp_path, capsys):
  workdir = tmp_path / "trained"
  vitx.train(get_config(f"dense,{SMALL},learning_rate=0.1"), workdir)
  capsys.readouterr()
  out = f"--out={tmp_path / 'pictures'}"
  assert main(["visualize", "attention_past", f"--workdir={workdir}", "--examples=2", out]) == 0
  assert "layer,local,row,column\n0," in capsys.readouterr().out
  table = read(tmp_path / "pictures" / "attention_past_trained.csv")
  assert [row[0] for row in table] == ["layer", "0", "1", "uniform"]
  assert (tmp_path / "pictures" / "attention_past_trained.png").exists()

  _, start = visualize(
    "attention_past",
    tmp_path,
    config=f"density_digits:dense,{SMALL}",
    options=Options(examples=2, queries=(9,)),
  )
  untrained = read(start)
  assert start.name == "attention_past_dense.csv"
  assert untrained[-1] == table[-1] and untrained[1] != table[1]
  # Nothing is learned yet: attention is nearly uniform.
  for found, uniform in zip(untrained[1][1:], untrained[-1][1:], strict=True):
    assert float(found) == pytest.approx(float(uniform), rel=0.1)
