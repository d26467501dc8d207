"""The summary of configs: rows as they are, layers that add up, nothing allocated."""

import dataclasses
import math
import types
from pathlib import Path

import jax
import pytest

from configs import cifar10, digits, vix_cifar10
from vitx.analysis.tabulate import list_layers
from vitx.cli import summary
from vitx.cli.main import main
from vitx.config import loader as configs
from vitx.data import sources
from vitx.data.dataset import DatasetInfo
from vitx.data.images.settings import image_spec
from vitx.models import count, model_from_config
from vitx.training import trial

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from ml_collections import ConfigDict
from vitx.config import default_config, parse_arg, with_overrides
ROWS = ("one", "two")
PUBLISHED = {"two": {"parameters": 4242, "top1": 51.5, "by_epoch": {1: 10.0, 7: 20.5}}}
MISPRINTS = {"two": {"top1": 15.5}}
def get_config(arg=None):
  row, overrides = parse_arg(arg, ROWS, default="one")
  config = default_config()
  config.data.image_size, config.batch_size = 8, 4
  config.model = ConfigDict(dict(name="vit", num_classes=3, width=8, num_heads=2, mlp_dim=16))
  with config.unlocked():
    config.model.depth = ROWS.index(row) + 1
    config.model.token_mixer = ConfigDict({"name": "softmax", "implementation": "masked"})
  return with_overrides(config, overrides)
"""


@pytest.fixture
def file(tmp_path):
  (tmp_path / "rows.py").write_text(CONFIG)
  return str(tmp_path / "rows.py")


def parameters(depth):
  """Of the file's networks: 4 x 4 patches, 5 tokens of 8 channels."""
  layer = 4 * (8 * 8 + 8) + 2 * 8 * 16 + 16 + 8 + 4 * 8
  return 48 * 8 + 8 + 5 * 8 + 8 + depth * layer + 16 + 3 * 8 + 3


def run(capsys, *arguments, memory=False):
  code = main(["summary", *arguments, *["--no-memory"] * (not memory)])
  out, err = capsys.readouterr()
  return code, out, err


def test_a_table_of_rows_with_the_published_figures_beside_them(file, capsys):
  code, out, _ = run(capsys, "--config", file)
  head, one, two, misprint = out.splitlines()[-4:]
  assert code == 0
  assert head.split() == [
    *("row", "parameters", "torchsummary", "GFLOPs"),
    *("published", "parameters", "top1", "by_epoch"),
  ]
  flops = [f"{flops_of(depth) / 1e9:.3f}" for depth in (1, 2)]
  bare = 5 * 8 + 8
  totals = [parameters(depth) for depth in (1, 2)]
  assert one.split() == ["one", f"{totals[0]:,}", f"{totals[0] - bare:,}", flops[0]]
  figures = ["4,242", "51.5", "20.5", "at", "7"]
  assert two.split() == ["two", f"{totals[1]:,}", f"{totals[1] - bare:,}", flops[1], *figures]
  assert misprint == "misprint: two's top1 should be 15.5"


def flops_of(depth):
  n, c, hidden = 5, 8, 16
  layer = 4 * n * c * c + 2 * n * n * c + 2 * n * c * hidden
  return 2 * (4 * 48 * c + depth * layer + 3 * c)


@pytest.mark.parametrize("depth", [1, 2])
def test_flops_are_those_of_the_formula(file, depth):
  config = configs.load_config(f"{file}:one,model.depth={depth}")
  assert summary.count_forward_flops(summary.complete_config(config)) == flops_of(depth)


def test_overrides_hold_for_every_row(file, capsys):
  _, out, _ = run(capsys, "--config", f"{file}:model.num_classes=5")
  found = [line.split()[1] for line in out.splitlines()[2:4]]
  assert found == [f"{parameters(depth) + 2 * 9:,}" for depth in (1, 2)]


def test_a_row_that_does_not_build_says_why_and_the_others_stand(file, capsys):
  code, out, _ = run(capsys, "--config", f"{file}:data.image_size=10")
  assert code == 0 and out.count("does not build") == 2
  assert "one: model.stem.patch=4 does not divide the image of 10 x 10" in out


@pytest.mark.parametrize(
  ("config", "parts"),
  [
    ("{file}:thre", ["unknown row 'thre'", "Rows: one, two"]),
    ("{file}:one,model.dept=3", ["depth"]),
    ("nowhere.py", ["'nowhere.py' is no file"]),
    ("{root}/configs/__init__.py", ["no function get_config"]),
    ("{root}/configs/vix_cifar10.py:vip,dataset=food110", ["food110", "food101"]),
  ],
)
def test_errors_are_one_line(file, config, parts, capsys):
  code, _, err = run(capsys, "--config", config.format(file=file, root=ROOT))
  assert code == 1 and len(err.splitlines()) == 1
  assert all(part in err for part in parts)


def test_the_layers_of_a_row(file, capsys):
  code, out, _ = run(capsys, "--config", f"{file}:two,model.mlp_dim=24")
  assert code == 0
  table, figures = out.split("\n\n")
  lines = [line.split() for line in table.splitlines()]
  total = parameters(2) + 2 * 8 * (2 * 8 + 1)
  assert lines[1] == ["network", "ViT", "1x3", f"{total:,}", "cls", "1x1x8"]
  assert ["embed", "Conv", "1x2x2x8", "392", "bias", "8,", "kernel", "4x4x3x8"] in lines
  assert f"parameters {total:,}" in figures and "published top1: 51.5" in figures


@pytest.mark.parametrize("row", ["hybrid_vin", "cvt", "rope_vil", "mlp_mixer"])
def test_layers_add_up_to_the_count(row):
  config = vix_cifar10.get_config(row)
  found = list_layers(model_from_config(config.model), (1, 32, 32, 3))
  assert found[0].path == () and found[0].parameters == count(config).total
  paths = [layer.path for layer in found]
  assert len(set(paths)) == len(paths)
  for layer in found:
    below = [x for x in found if x.path[:-1] == layer.path and x.path]
    own = sum(map(math.prod, layer.own.values()))
    assert layer.parameters == own + sum(x.parameters for x in below), layer.path
    assert layer.output[0] == 1


def test_layers_of_a_recomputed_network_are_the_same():
  plain, remat = (
    list_layers(model_from_config(cifar10.get_config(f"vit,model.remat={r}").model), (1, 32, 32, 3))
    for r in (False, True)
  )
  assert {x.path: (x.kind, x.output, x.own) for x in remat} == {
    x.path: (x.kind, x.output, x.own) for x in plain
  }


@pytest.mark.slow
def test_memory_holds_the_state_and_grows_with_the_batch(file, monkeypatch, capsys):
  small, large = (
    trial.measure_training_bytes(
      summary.complete_config(configs.load_config(f"{file}:one,batch_size={b}"))
    )
    for b in (4, 256)
  )
  assert small > 3 * 4 * parameters(1)  # parameters and Adam's two moments
  assert large - small > 252 * 4 * 5 * 8  # at the least the tokens once
  monkeypatch.setattr(summary, "measure_training_bytes", lambda config: 7_200_000_000)
  code, out, _ = run(capsys, "--config", f"{file}:batch_size=4", memory=True)
  assert code == 0 and "train GB" in out and "(cpu)" in out and out.count(" 7.2") == 2


def test_nothing_is_opened_or_allocated_where_the_config_says_all(monkeypatch):
  monkeypatch.setattr(sources, "open_dataset", None)
  config = vix_cifar10.get_config("vip,data.image_size=1024,data.data_dir=/nowhere")
  before = len(jax.live_arrays())
  row = summary.summarize("vip", config, {})
  assert row.flops > 1e11 and row.count.total > 1024**2 * 128
  assert len(jax.live_arrays()) <= before + 4


def test_what_the_data_set_says_is_asked_where_it_is_needed(monkeypatch):
  info = DatasetInfo("folder:x", image_spec(1, (28, 28)), class_names=("a", "b", "c"))
  dataset = types.SimpleNamespace(info=info)
  monkeypatch.setattr(sources, "open_dataset", lambda data: dataset)
  config = summary.complete_config(cifar10.get_config("vit,dataset=folder:x"))
  assert (config.model.num_classes, config.data.image_size, config.data.channels) == (3, 28, 1)


KNOWN = {  # from each set's own paper or page
  "mnist": ((28, 28, 1), 10),
  "cifar100": ((32, 32, 3), 100),
  "stl10": ((96, 96, 3), 10),
  "imagenette/320px-v2": ((None, None, 3), 10),
  "imagenet2012:5.1.0": ((None, None, 3), 1000),
  "tiny_imagenet": ((64, 64, 3), 200),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_known_set_is_like_ships_with_its_name(name, tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "open_dataset", None)
  shape, classes = KNOWN[name]
  data = cifar10.get_config(f"vit,dataset={name},data.data_dir={tmp_path}").data
  info = sources.find_info(data)
  assert (info.spec["image"].shape, len(info.class_names)) == (shape, classes)
  assert not list(tmp_path.iterdir())


def test_what_is_known_of_a_set_is_what_it_is_when_opened(data_dir):
  data = digits.get_config().data
  known, opened = sources.find_info(data), sources.open_dataset(data).info
  assert dataclasses.replace(opened, fingerprint="") == known


def test_it_works_from_any_folder_without_data(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", "nowhere")
  code, out, _ = run(
    capsys, "--config", "configs/finetune.py:deit_ti,dataset=cifar100,model.depth=1"
  )
  assert code == 0 and "100 classes (cifar100)" in out
  assert not list(tmp_path.iterdir())
