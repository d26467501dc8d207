"""`vitx convert` makes workdirs from published weights, and exports weights with a model card."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import vitx
from tests import runs
from tests.interop.published import FILES
from vitx.analysis.markdown import shorten_paths
from vitx.checkpoints.tree import name_leaves
from vitx.cli import main as front
from vitx.config.settings import change
from vitx.inference import convert as convert_module
from vitx.inference import model_card
from vitx.interop.foreign import read_grid

SHORT = ("duration=2 steps", "schedule.warmup=1 steps", "pool=cls", "evaluation.every=2 steps")
SHORT += runs.PLAIN
ROW = runs.replace(runs.TINY, *SHORT)
CONFIG = f"configs/digits.py:{ROW}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A short run, and the folder of its weights."""
  folder = tmp_path_factory.mktemp("convert")
  vitx.train(runs.tiny(*SHORT), folder / "run")
  assert convert(folder / "run", out=folder / "out" / "tiny.safetensors") == 0
  return folder


def convert(source, *more, out):
  return front.main(["convert", str(source), "--out", str(out), *more])


@pytest.mark.slow  # reads a whole run
def test_exported_weights_are_imported_again(run, tmp_path, capsys):
  file = run / "out" / "tiny.safetensors"
  assert read_grid(str(file)) == (2, 2)
  assert convert(file, f"--config={CONFIG}", out=tmp_path / "again") == 0
  printed = capsys.readouterr().out
  assert printed.count("loaded") == 1 and "vitx evaluate --workdir" in printed
  before, after = vitx.load(run / "run"), vitx.load(tmp_path / "again")
  expected = name_leaves(before.variables)
  for name, value in name_leaves(after.variables).items():
    assert value.tobytes() == np.asarray(expected.pop(name)).tobytes(), name
  assert not expected
  assert after.fingerprint == before.fingerprint and after.class_names == before.class_names
  assert after.config.init_from == str(file)
  (test,) = (row for row in runs.rows(run / "run") if row["kind"] == "test")
  figures = vitx.evaluate(after)
  assert figures["nll"] == pytest.approx(test["nll"], rel=1e-6) and figures["examples"] == 359


@pytest.mark.slow  # reads a whole run
def test_the_card_describes_the_training(run):
  card = (run / "out" / "README.md").read_text()
  environment = json.loads((run / "run" / "environment.json").read_text())
  config = json.loads((run / "run" / "config.json").read_text())
  rows = [row for row in runs.rows(run / "run") if row["kind"] == "test"]
  assert card.startswith("---\nlibrary_name: timm\n")
  for text in (
    "VisionTransformer(\n  img_size=8,\n  patch_size=4,\n  in_chans=1,\n  num_classes=10,",
    'load_file("tiny.safetensors")',
    environment["data"]["fingerprint"],
    f"{environment['data']['examples']['train']:,} train",
    " ".join(shorten_paths(environment["command"])),
    f"jax {environment['versions']['jax']}",
    f"| test | {rows[-1]['examples']} | {rows[-1]['top1']:.4f} |",
    "0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
  ):
    assert text in card, text
  assert json.loads(card.split("```json\n")[1].split("```")[0]) == shorten_paths(config)


@pytest.mark.slow  # reads a whole run
def test_a_card_hides_folders_and_escapes_names(run):
  loaded = vitx.load(run / "run")
  names = ["<script>x</script>", "a | b", "[x](http://evil)", "two\nlines", "`", *"56789"]
  private = {"data.source": "folder:/home/jane/`photos`", "data.data_dir": "/home/jane/data"}
  settings = change(loaded.settings, private | {"init_from": "~/secret/run"})
  data = {**loaded.data, "class_names": names}
  loaded = dataclasses.replace(loaded, settings=settings, data=data)
  card = model_card.write_card(loaded, convert_module.describe(vitx.load(run / "run")), 'a".b')
  text, code = card.split("## Config")
  assert "jane" not in card and "secret" not in card and "`` folder:`photos` ``" in text
  bare = text.replace(r"\<script", "").replace(r"\](http\:", "")
  assert "<script" not in bare and "](http" not in bare
  assert r"two\\nlines" in text and r"a \| b" in text and r"\`" in text
  assert json.loads(code.split("```json\n")[1].split("\n```")[0])["init_from"] == "run"
  assert 'load_file("a\\".b")' in text


@pytest.mark.slow  # reads a whole run
def test_nothing_is_overwritten(run, capsys):
  assert convert(run / "run", out=run / "out" / "second.safetensors") == 1
  assert "README.md exists already; each export has its own folder" in capsys.readouterr().err
  file = run / "out" / "tiny.safetensors"
  assert convert(file, f"--config={CONFIG}", out=run / "run") == 1
  assert "has a run already" in capsys.readouterr().err


def test_weights_of_other_classes_are_refused(tmp_path, capsys):
  small = ("model.width=12", "model.depth=2", "model.num_heads=3", "model.mlp_dim=48")
  config = runs.replace(ROW, *small, "data.image_size=24", "stem.patch=8")
  allowed = "init_from_except=('params/stem/embed/kernel',)"
  text = f"--config=configs/digits.py:{config},{allowed}"
  assert convert(FILES["timm_vit"], text, out=tmp_path / "a") == 1
  assert "params/head/kernel ([12, 5] -> [12, 10])" in capsys.readouterr().err


@pytest.mark.slow
def test_weights_are_imported_without_the_data(tmp_path, capsys):
  """`--without_data` converts a config without its data set: five classes of 24 x 24 pixels."""
  row = "deit_ti,model.width=12,model.depth=2,model.num_heads=3,model.mlp_dim=48,stem.patch=8"
  config = f"--config=imagenet:{row},data.image_size=24,model.num_classes=5,model.dtype=float32"
  assert convert(FILES["timm_vit"], config, out=tmp_path / "a") == 1
  assert "imagenet2012" in capsys.readouterr().err and not (tmp_path / "a").exists()
  assert convert(FILES["timm_vit"], config, "--without_data", out=tmp_path / "a") == 0
  loaded = vitx.load(tmp_path / "a")
  assert loaded.class_names == ("0", "1", "2", "3", "4") and loaded.fingerprint == ""
  assert loaded.config.data.mean == (0.485, 0.456, 0.406)
  image = np.full((24, 24, 3), 128, np.uint8)
  assert vitx.predict(loaded, [image]).classes[0] in loaded.class_names
  assert convert(tmp_path / "a", out=tmp_path / "b" / "c.safetensors") == 0
  card = (tmp_path / "b" / "README.md").read_text()
  assert "the data were not opened" in card and "No figures" in card
  unsaid = "--config=digits:softmax"
  assert convert(FILES["timm_vit"], unsaid, "--without_data", out=tmp_path / "d") == 1
  assert "set model.num_classes and data.image_size" in capsys.readouterr().err


@pytest.mark.slow  # reads a whole run
def test_a_source_decides_the_direction(run, tmp_path, capsys):
  assert convert(FILES["timm_vit"], out=tmp_path / "a") == 1
  assert "needs --config FILE:ROW" in capsys.readouterr().err
  assert convert(run / "run", out=tmp_path / "b" / "a.npz") == 1
  assert "must end in .safetensors" in capsys.readouterr().err
  assert convert(tmp_path / "nowhere", out=tmp_path / "a.safetensors") == 1
  assert "config.json is missing" in capsys.readouterr().err


@pytest.mark.slow  # initializes networks
def test_a_list_beside_the_weights_names_their_classes(tmp_path, capsys):
  file = shutil.copy(FILES["timm_vit"], tmp_path / "five.safetensors")
  row = "deit_ti,model.width=12,model.depth=2,model.num_heads=3,model.mlp_dim=48,stem.patch=8"
  config = f"--config=imagenet:{row},data.image_size=24,model.num_classes=5,model.dtype=float32"
  (tmp_path / "classes.txt").write_text("a\nb\nc\n")
  assert convert(file, config, "--without_data", out=tmp_path / "run") == 1
  assert "classes.txt names 3 classes, but " in capsys.readouterr().err
  (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n")
  assert convert(file, config, "--without_data", out=tmp_path / "run") == 0
  assert vitx.load(tmp_path / "run").class_names == tuple("abcde")
  assert convert(tmp_path / "run", out=tmp_path / "out" / "a.safetensors") == 0
  assert (tmp_path / "out" / "classes.txt").read_text() == "a\nb\nc\nd\ne\n"
