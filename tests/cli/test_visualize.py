"""The command that draws figures, from a config and from a run."""

import csv
import functools

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageStat

import vitx
from tests.runs import ROOT
from vitx.analysis.classification import read_logits
from vitx.analysis.figures import attention, confusion, patterns
from vitx.analysis.figures.mistakes import PredictedSplit
from vitx.analysis.figures.papers import landmarks, memory, performer_error
from vitx.cli import visualize as printing
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.data.sources import open_source
from vitx.inference.visualize import Options, open_subject, visualize
from vitx.sweeps import results as sweep
from vitx.tasks.settle import complete_config
from vitx.training.trial import count_training_flops

NARROW = "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=16"
PIXELS = f"{NARROW},stem=linear,stem.patch=1,augment.rotate=0.0,augment.pad_crop=0"


def read(path):
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.reader(file))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["atention_past", "--config=density_digits"], "Did you mean 'attention_past'?"),
    (["patterns"], "give one of them"),
    (["gallery", "--inputs", "a.png"], "takes patterns; given: inputs"),
    (
      ["attention", "--config=digits", "--split=test"],
      "takes config, inputs, workdir; given: config, split",
    ),
    (["posemb", "--workdir", "a", "b"], "workdir of one run; given: workdir"),
    (["patterns", "--config=density_digits", "--examples=0"], "examples=0 is out of range"),
    (["attention", "--config=digits", "--inputs", "a.png"], "no statistics of its data"),
    (["gallery", "--grid=100,100"], "at most 2,304 tokens"),
    (["attention_past", "--config=density_digits:dense", "--queries=64"], "choose from 0 to 63"),
    (["attention", f"--config=density_digits:dense,{NARROW}"], "dense has no matrix of attention"),
    (["attention_past", "--config=digits:softmax"], "task.name='density'"),
    (["graph", "--config=digits:softmax"], "SoftmaxAttention has no pattern"),
    (["shaped_scalars", f"--config=digits:softmax,{PIXELS}"], "token_mixer=shaped"),
    (["projections", f"--config=digits:fnet,{PIXELS}"], "have no query and key kernels"),
    (["posemb", f"--config=digits:softmax,posemb=rope,{PIXELS}"], "adds no positions"),
    (["performer_error", f"--config=digits:fnet,{PIXELS}"], "has no queries and keys"),
    (["landmarks", f"--config=digits:softmax,{PIXELS}"], "token_mixer=nystromformer"),
    (["reconstructions", f"--config=digits:softmax,{PIXELS}"], "task.name='masked_autoencoder'"),
  ],
)
def test_a_refusal_is_one_line_and_writes_nothing(arguments, message, tmp_path, capsys):
  assert main(["visualize", *arguments, f"--out={tmp_path}"]) == 1
  error = capsys.readouterr().err.splitlines()  # the digits may be prepared first, with progress
  assert error[-1].startswith("ConfigError: ") and message in error[-1]
  assert not list(tmp_path.iterdir())


def test_a_model_without_patterns_shows_every_named_one(tmp_path, monkeypatch):
  few = dict(list(patterns.PATTERNS.items())[:3])
  monkeypatch.setattr(patterns, "PATTERNS", few)
  (path,) = visualize("patterns", tmp_path, config="density_digits:dense")
  assert path.name == "patterns_dense_examples.png" and path.exists()


def test_the_command_draws_the_picture_of_the_front_page(tmp_path):
  assert main(["visualize", "gallery", f"--out={tmp_path}"]) == 0
  drawn, shown = Image.open(tmp_path / "gallery.png"), Image.open(ROOT / "docs" / "gallery.png")
  # Other versions of matplotlib move letters by a few pixels.
  assert drawn.size == pytest.approx(shown.size, rel=0.02)
  apart = ImageChops.difference(drawn.convert("L"), shown.convert("L").resize(drawn.size))
  assert ImageStat.Stat(apart).mean[0] < 1  # another pattern differs by 1.2
  assert (ROOT / "docs" / "gallery.png").stat().st_size < 200_000


def test_a_gallery_shows_chosen_patterns(tmp_path):
  names = ("axial_rows", "vitx.ops.patterns.examples:_CLASS")
  (path,) = visualize("gallery", tmp_path, patterns=names, grid=(7, 9))
  assert path.read_bytes().startswith(b"\x89PNG")


# Each compiles a model and draws with matplotlib: seconds.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("figure", "row", "files"),
  [
    ("attention", "softmax,pool=cls", ["attention_softmax_heads.png", "attention_softmax.png"]),
    (
      "receptive_field",
      "neighborhood",
      [f"receptive_field_neighborhood.{e}" for e in ("png", "csv")],
    ),
    ("graph", "bigbird", ["graph_bigbird.png", "graph_bigbird.csv"]),
    ("shaped_scalars", "shaped", ["shaped_scalars_shaped.png", "shaped_scalars_shaped.csv"]),
    (
      "projections",
      "performer",
      [f"projections_performer{end}" for end in ("_query_key.png", "_value_out.png", ".csv")],
    ),
    ("posemb", "fnet", ["posemb_fnet.png"]),
    ("performer_error", "softmax", ["performer_error_softmax.png", "performer_error_softmax.csv"]),
    (
      "landmarks",
      "nystromformer",
      [f"landmarks_nystromformer{end}" for end in (".png", "_error.png", ".csv")],
    ),
    (
      "reconstructions",
      "softmax,task=masked_autoencoder,task.decoder_width=16,task.decoder_depth=1,"
      "task.decoder_heads=2,task.normalize_pixels=False",
      ["reconstructions_softmax.png"],
    ),
  ],
)
def test_every_figure_of_a_config_writes_its_files(figure, row, files, tmp_path, monkeypatch):
  for module in (performer_error, landmarks):
    monkeypatch.setattr(module, "COUNTS", (8, 32))
  paths = visualize(figure, tmp_path, config=f"digits:{row},{PIXELS}", options=Options(examples=2))
  assert [path.name for path in paths] == files and all(path.stat().st_size for path in paths)


@pytest.mark.slow  # loads a run twice and draws three pictures
def test_several_runs_share_a_picture(tmp_path, finished_run, run_copy):
  one = str(finished_run[0])
  with pytest.raises(ConfigError, match="two runs have one name"):
    visualize("attention", tmp_path, workdir=[one, one])
  options = Options(examples=1)
  files = visualize("attention", tmp_path, workdir=[one, str(run_copy)], options=options)
  label = finished_run[0].name
  names = [f"attention_{label}_heads", "attention_copy_heads", f"attention_{label}_copy"]
  assert [path.name for path in files] == [f"{name}.png" for name in names]


@pytest.mark.slow  # compiles a model twice
def test_image_files_have_the_maps_of_the_data_set(finished_run, tmp_path):
  run = str(finished_run[0])
  loaded = vitx.load(run)
  validation = open_source(loaded.config.data, loaded.config.data_seed).validation
  files = tuple(str(tmp_path / f"{i}.png") for i in range(3))
  for i, file in enumerate(files):
    Image.fromarray(validation[i]["image"][..., 0]).save(file)
  ours = open_subject(workdir=run, options=Options(examples=2, inputs=files))
  theirs = open_subject(workdir=run, options=Options(examples=3))
  maps, expected = (attention.compute_maps(subject) for subject in (ours, theirs))
  assert ours.examples == 3
  for one, two in zip(maps.layers, expected.layers, strict=True):
    np.testing.assert_array_equal(one, two)
  (tmp_path / "3.png").write_bytes(b"none")
  with pytest.raises(ConfigError, match=r"3\.png"):
    open_subject(workdir=run, options=Options(inputs=(str(tmp_path / "3.png"),))).inputs(1)


@pytest.mark.slow  # compiles the training steps of two rows
def test_the_memory_of_a_sweep_is_compiled_by_row(tmp_path):
  results = tmp_path / "two.csv"
  measure = functools.partial(sweep.measure_sweep, results)
  results.write_text(
    "method,seed,problem,test_top1\nsoftmax,0,,0.5\nsoftmax,1,,0.7\nfnet,0,,0.4\nfnet,1,lost,\n"
  )
  picture, table = visualize("memory", tmp_path, results=measure, config=f"digits:{PIXELS}")
  assert picture.name == "memory_two.png" and picture.exists()
  head, softmax, fnet = read(table)
  assert head == ["method", "runs", "gigabytes", "test_top1"]
  assert softmax[:2] == ["softmax", "2"] and float(softmax[3]) == pytest.approx(0.6)
  assert fnet[:2] == ["fnet", "1"] and 0 < float(fnet[2]) < float(softmax[2])
  results.write_text("method,seed,problem,test_top1\nsofmax,0,,0.5\n")
  with pytest.raises(ConfigError, match="Did you mean 'softmax'"):
    visualize("memory", tmp_path, results=measure, config="digits")


def test_a_test_figure_of_zero_is_a_result(tmp_path):
  results = tmp_path / "results.csv"
  results.write_text("method,flops,steps,test_top1\na,8,4,0.0\nb,,4,0.5\nb,,4,\n")
  assert memory.read_results(results, "top1") == ({"a": (0.0,), "b": (0.5,)}, {"a": 2.0})
  with pytest.raises(ConfigError, match="has no column 'test_bits'"):
    memory.read_results(results, "bits")


def test_a_config_that_differs_from_the_runs_is_refused(tmp_path, monkeypatch):
  """The results contain the cost of a step, so a config that lacks an override is noticed."""
  monkeypatch.setattr(sweep, "measure_training_bytes", lambda config: 10**6)
  results = tmp_path / "one" / "runs.csv"  # the picture has the name of the design
  results.parent.mkdir()
  flops = count_training_flops(complete_config(load_config(f"digits:softmax,{PIXELS}")))
  results.write_text(f"method,seed,steps,flops,test_top1\nsoftmax,0,10,{10 * flops},0.5\n")
  measured = sweep.measure_sweep(results, f"digits:{PIXELS}")
  assert measured.gigabytes == {"softmax": 1e-3} and measured.name == "memory_one"
  with pytest.raises(ConfigError, match=r"GFLOP.*give the overrides that"):
    sweep.measure_sweep(results, f"digits:{PIXELS},batch_size=4")


def test_a_confusion_of_many_classes_prints_its_ten_most_frequent(tmp_path, capsys):
  guess = np.repeat(np.arange(60), np.arange(60))
  numbers = np.arange(len(guess))
  predictions = read_logits(numbers, np.zeros_like(numbers), np.eye(60)[guess])
  split = PredictedSplit("run", "", tuple(f"n{k}" for k in range(60)), predictions, None)
  _, matrix, listed = confusion.draw(split, tmp_path)
  assert read(matrix)[1][1:] == [str(k) for k in range(60)]
  printing.print_table(matrix)
  printing.print_table(listed)
  head, *rows, more = capsys.readouterr().out.splitlines()
  assert head == "true class,predicted class,examples" and more.startswith("... and 49 more rows")
  assert rows == [f"n0,n{k},{k}" for k in range(59, 49, -1)]
