"""The command `vitx plan`, from its arguments to its tables and files."""

import csv
import json
from pathlib import Path

import pytest

from vitx.benchmark import rows as library
from vitx.cli import plan
from vitx.cli.main import main
from vitx.config.loader import load_config

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from ml_collections import ConfigDict
from vitx.config import default_config, parse_arg, with_overrides
ROWS = ("one", "two")
PUBLISHED = {"two": {"parameters": 4242, "top1": 51.5, "by_epoch": {1: 10.0, 7: 20.5}}}
MISPRINTS = {"two": {"top1": 15.5}}
def get_config(arg=None):
  row, overrides = parse_arg(arg, ROWS, default="two")
  config = default_config()
  config.data.image_size, config.batch_size = 8, 4
  config.model = ConfigDict(dict(name="vit", num_classes=3, width=8, num_heads=2, mlp_dim=16))
  with config.unlocked():
    config.model.depth = ROWS.index(row) + 1
    config.model.token_mixer = ConfigDict({"name": "softmax", "implementation": "masked"})
  return with_overrides(config, overrides)
"""
SMALL = "model.depth=1,model.width=16,model.num_heads=2,model.mlp_dim=32"


@pytest.fixture
def file(tmp_path):
  (tmp_path / "rows.py").write_text(CONFIG)
  return str(tmp_path / "rows.py")


def parameters(depth):
  """Returns the number of parameters of the file's networks, with 5 tokens of 8 channels.

  The patches have 4 x 4 pixels.
  """
  layer = 4 * (8 * 8 + 8) + 2 * 8 * 16 + 16 + 8 + 4 * 8
  return 48 * 8 + 8 + 5 * 8 + 8 + depth * layer + 16 + 3 * 8 + 3


def gflops(depth):
  n, c, hidden = 5, 8, 16
  layer = 4 * n * c * c + 2 * n * n * c + 2 * n * c * hidden
  return 2 * (4 * 48 * c + depth * layer + 3 * c) / 1e9


def run(capsys, *arguments):
  code = main(["plan", *arguments])
  return code, *capsys.readouterr()


def counted(capsys, *arguments):
  code, out, _ = run(capsys, "--no-compile", *arguments)
  assert code == 0
  return out


def cells(out):
  """Returns the printed rows by name, each by column."""
  head, _, *lines = [line[2:-2].split(" | ") for line in out.splitlines() if line.startswith("|")]
  return {line[0]: dict(zip(head, line, strict=True)) for line in lines}


def test_published_figures_are_beside_the_rows(file, capsys):
  out = counted(capsys, "--config", file, "--all")
  rows = cells(out)
  assert list(rows["one"])[:3] == ["row", "parameters", "published_parameters"]
  for depth, row in enumerate(rows.values(), 1):
    assert row["parameters"] == f"{parameters(depth):,}"
    assert row["parameters_torchsummary"] == f"{parameters(depth) - 5 * 8 - 8:,}"
    assert float(row["gflops_products"]) == pytest.approx(gflops(depth), rel=1e-3)
  quoted = {key: value for key, value in rows["two"].items() if key.startswith("published")}
  assert list(quoted.values()) == ["4,242", "51.5", "20.5 at 7"]
  assert "misprint: two's top1 should be 15.5" in out.splitlines()


def test_each_phase_is_a_row(file, capsys):
  phases = "phases.a.model.depth=1,phases.b.batch_size=2,phases.b.model.depth=3"
  rows = cells(counted(capsys, "--config", f"{file}:two,{phases}"))
  assert {name: row["parameters"] for name, row in rows.items()} == {
    f"two/{name}": f"{parameters(depth):,}" for name, depth in (("a", 1), ("b", 3))
  }
  assert {row["published_parameters"] for row in rows.values()} == {"4,242"}


def test_a_config_names_rows_that_are_shown_beside_one_row(file, capsys):
  more = 'def list_beside(arg): return {"base": get_config(arg.replace("two", "one"))}'
  Path(file).write_text(f"{CONFIG}\n{more}\n")
  assert main(["plan", "--config", f"{file}:two", "--no-compile"]) == 0
  rows = [line.split(" | ")[:2] for line in capsys.readouterr().out.splitlines()]
  assert ["| base", f"{parameters(1):,}"] in rows and ["| two", f"{parameters(2):,}"] in rows


def test_a_row_that_fails_says_why(file, capsys):
  out = counted(capsys, "--config", f"{file}:data.image_size=10", "--all")
  assert list(cells(out)) == ["one", "two"]
  assert "one: model.stem.patch=4 does not divide the image of 10 x 10" in out


def test_one_row_shows_its_modules(file, capsys):
  out = counted(capsys, "--config", f"{file}:model.mlp_dim=24", "--modules")
  table, figures = out.split("\n\n")
  lines = [line.split() for line in table.splitlines()]
  total = parameters(2) + 2 * 8 * (2 * 8 + 1)
  assert lines[1] == ["network", "ViT", "1x3", f"{total:,}", "cls", "1x1x8"]
  assert ["embed", "Conv", "1x2x2x8", "392", "bias", "8,", "kernel", "4x4x3x8"] in lines
  values = {line.split()[0]: line.split()[1] for line in figures.splitlines()}
  # The default is the second row, beside which are the figures of its source.
  assert (values["parameters"], values["published_top1"]) == (f"{total:,}", "51.5")


def test_it_works_from_any_folder_without_data(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", "nowhere")
  config = "configs/finetune.py:deit_ti,dataset=cifar100,model.depth=1"
  assert "100 classes (cifar100)" in counted(capsys, "--config", config)
  assert not list(tmp_path.iterdir())


def test_a_batch_fits_or_not(capsys, monkeypatch):
  needs = {"step_mb": 1.0, "example_mb": 0.1}
  monkeypatch.setattr(library, "compile_costs", lambda config: {})
  monkeypatch.setattr(library, "measure_needs", lambda *_, **__: needs)
  remedies = [({"model.remat": True}, 10**6), ({"model.dtype": "bfloat16"}, 10**9)]
  monkeypatch.setattr(library, "measure_remedies", lambda *_: iter(remedies))
  arguments = ["--config", f"configs/digits.py:{SMALL}", "--no-time", "--memory"]
  assert run(capsys, *arguments, "4GB")[1].endswith("batch_size=64 fits\n")
  lines = run(capsys, *arguments, "3MB")[1].splitlines()
  assert "does not fit" in lines[-4]
  assert [line.split() for line in lines[-2:]] == [
    ["model.remat=True", "1.00", "fits"],
    ["model.dtype=bfloat16", "1,000.00"],
  ]
  remedies.pop(0)
  assert run(capsys, *arguments, "3MB")[1].splitlines()[-1].startswith("None of them fits")


@pytest.fixture
def made_up(monkeypatch):
  """Gives rows made-up costs by their mixers, so that nothing is compiled."""
  costs = {"softmax": (9.0, 2.0), "performer": (4.0, 3.0), "fnet": (1.0, 1.0)}

  def fill(row, config, *_, **__):
    train, flops = costs[config.model.token_mixer.name]
    row |= {"parameters": 12_345, "train_mb": train, "gflops": flops}

  monkeypatch.setattr(library, "fill", fill)


@pytest.mark.usefixtures("made_up")
def test_files_and_the_front_are_written(tmp_path, capsys):
  files = ["--csv", str(tmp_path / "rows.csv"), "--json", str(tmp_path / "rows.json")]
  plot = ["--pareto", "train_mb,published_top1", "--out", str(tmp_path)]
  code, out, _ = run(
    capsys, "--config", "vix_cifar10", "--rows", "vit,vip,fnet", "--no-time", *files, *plot
  )
  # 58.23 at 4 and 50.87 at 1; vit has 56.81 at 9.
  assert code == 0 and "rows that no other beats: fnet, vip" in out
  with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as opened:
    written = {row["row"]: row for row in csv.DictReader(opened)}
  listed = json.loads((tmp_path / "rows.json").read_text())
  assert list(written) == [row["row"] for row in listed["rows"]] == ["vit", "vip", "fnet"]
  assert float(written["vip"]["published_top1"]) == listed["rows"][1]["published_top1"] == 58.23
  assert written["vip"]["front"] == "True" and "cpu" in listed["device"]
  picture = tmp_path / "pareto_vix_cifar10_train_mb_published_top1.png"
  assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("made_up")
def test_the_methods_of_a_sweep_have_their_mean_test_metrics(tmp_path, capsys):
  runs = {"vip_seed-0": 0.5, "vip_seed-1": 0.6, "fnet_seed-0": 0.3, "vit_seed-0": None}
  for name, top1 in runs.items():
    (tmp_path / name).mkdir()
    method = name.partition("_")[0]
    (tmp_path / name / "config.json").write_text(load_config(f"vix_cifar10:{method}").to_json())
    (tmp_path / name / "point.json").write_text(json.dumps({"method": method}))
    row = {"kind": "train" if top1 is None else "test", "step": 9, "examples": 5, "top1": top1}
    row |= {"f1": top1, "nll": top1, "r2": None if name == "vip_seed-1" else 0.1}
    (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
  file, plot = tmp_path / "rows.csv", ["--pareto", "train_mb,test_top1", "--out", str(tmp_path)]
  code, out, _ = run(capsys, "--config", str(tmp_path), "--no-time", "--csv", str(file), *plot)
  assert code == 0 and "rows that no other beats: fnet, vip" in out  # vit is not finished
  with open(file, newline="", encoding="utf-8") as opened:
    rows = list(csv.DictReader(opened))
  top1 = {row["row"]: float(row["test_top1"]) for row in rows}
  assert top1 == {"fnet": 0.3, "vip": pytest.approx(0.55)}
  assert {row["row"]: row["test_r2"] for row in rows} == {"fnet": "0.1", "vip": ""}
  for figure, best in {"f1": "vip", "nll": "fnet"}.items():
    plot = ["--pareto", f"test_{figure},test_{figure}", "--out", str(tmp_path)]
    code, out, _ = run(capsys, "--config", str(tmp_path), "--no-compile", *plot)
    assert code == 0 and f"rows that no other beats: {best}\n" in out
  code, _, err = run(capsys, "--config", str(tmp_path / "vit_seed-0"))
  assert code == 1 and "is no sweep with a finished run" in err


def test_a_long_text_of_a_config_is_no_directory(capsys):
  long = "data.source=" + 300 * "a"
  code, _, err = run(capsys, "--config", f"digits:{long},wdith=3")
  assert code == 1 and "wdith" in err
  code, _, err = run(capsys, "--config", 300 * "a")
  assert code == 1 and "does not exist" in err


def test_texts_of_the_requested_rows_are_made(tmp_path):
  find = plan.find_texts
  row = "vix_cifar10:fnet,model.depth=1"
  assert find(row, [], False) == {"fnet": row}
  assert find("vix_cifar10:stride=2", [], False) == {"vit": "vix_cifar10:stride=2"}
  (tmp_path / "own.py").write_text("from vitx.configs.digits import get_config\n")
  for whole in (True, False):
    assert find(f"{tmp_path}/own.py", [], whole) == {"own": f"{tmp_path}/own.py"}
  assert find("digits:seed=3", ["fnet"], False) == {"fnet": "digits:fnet,seed=3"}
  assert len(find("vix_cifar10", [], True)) == 60
