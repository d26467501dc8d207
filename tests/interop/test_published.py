"""The table of published weights agrees with the configs, the pages and the files themselves."""

import fnmatch
import re
from pathlib import Path

import pytest

from configs import finetune, imagenet
from tests.configs.test_vix_rows import count_by_layers
from tests.documents import PAGES
from tests.interop.published import FILES, make
from tests.slow import all_but
from vitx.cli import main as front
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.interop import foreign, hub
from vitx.interop.init_from import initial_variables
from vitx.interop.published import WEIGHTS, look_up

ROOT = Path(__file__).parents[2]


QUICK = ("timm:deit_tiny_patch16_224",)


@pytest.mark.parametrize(
  "entry",
  all_but(*(entry for entry in WEIGHTS if entry.name.startswith(QUICK)), of=WEIGHTS),
  ids=lambda entry: entry.name,
)
def test_the_network_of_an_entry_has_its_parameters(entry):
  config = load_config(f"{entry.config},data.image_size={entry.size}")
  if not entry.classes:
    config.model.num_classes = 1
  head = 0 if entry.classes else config.model.width + 1
  assert config.model.num_classes == (entry.classes or 1)
  assert count_by_layers(config) - head == entry.parameters


def test_the_configs_name_files_and_sizes_of_entries():
  for row, file in finetune.FILES.items():
    entry = look_up(file)
    assert entry is not None and entry.row.endswith(f":{row}"), row
  rows = {entry.row: entry for entry in WEIGHTS}
  for row, figures in imagenet.PUBLISHED.items():
    if entry := rows.get(f"imagenet:{row}"):
      assert entry.parameters == figures["parameters"], row
  # Rows without known weights: one is a variant, and for the other no address was found.
  assert {row for row in imagenet.ROWS if f"imagenet:{row}" not in rows} == {
    "deit_s_linformer",
    "lv_vit_t",
  }


def test_the_names_in_pages_and_configs_are_known():
  named = re.compile(r"\b(?:timm:|hf:timm/)(?!NAME)[\w.-]*\w")
  texts = [*PAGES, *(ROOT / "configs").glob("*.py"), "vitx/cli/convert.py"]
  names = {name for path in texts for name in named.findall((ROOT / path).read_text())}
  assert len(names) >= 4, names
  assert not [name for name in names if look_up(name) is None]
  page = (ROOT / "docs" / "weights.md").read_text()
  assert "vitx convert --list" in page


def test_the_page_says_with_whom_each_network_agrees():
  page = (ROOT / "docs" / "weights.md").read_text().split("With whom the features agree")[1]
  patterns = re.findall(r"^\| [^|]*\(`(.*?)`\) \|", page, re.MULTILINE)
  names = [entry.name.removeprefix("timm:") for entry in WEIGHTS]
  assert all(fnmatch.filter(names, pattern) for pattern in patterns)
  for name in names:
    assert sum(fnmatch.fnmatch(name, pattern) for pattern in patterns) == 1, name


@pytest.mark.parametrize(
  ("source", "row"),
  [
    ("hf:timm/deit_small_patch16_224.fb_in1k", "imagenet:deit_s"),
    ("timm:vit_small_patch14_dinov2.lvd142m@v1", "finetune:dinov2_s"),
    ("hf:timm/vit_small_patch14_dinov2.lvd142m", "finetune:dinov2_s"),
    ("downloads/deit_tiny_patch16_224-a1311bcf.pth", "imagenet:deit_ti"),
    ("hf:someone/deit_small_patch16_224.fb_in1k", None),
    ("timm:resnet50.a1_in1k", None),
    ("deit_small_patch16_224.fb_in1k", None),
  ],
)
def test_a_name_finds_its_row(source, row):
  entry = look_up(source)
  assert (entry and entry.row) == row


def test_the_command_lists_all_weights(capsys):
  assert front.main(["convert", "--list"]) == 0
  printed = capsys.readouterr().out
  for entry in WEIGHTS:
    assert f"{entry.name}\n  {entry.parameters:,} parameters" in printed
    assert entry.row in printed and entry.address in printed and entry.license in printed
  assert printed.count("(SHA-256 not known)") == sum(not entry.digest for entry in WEIGHTS)


def test_a_file_of_a_published_name_has_its_digest(tmp_path):
  """A file whose name has a digest, as those of PyTorch's loader have, must have this digest."""
  assert {entry.digest for entry in WEIGHTS} >= {"a1311bcf", "cd65a155", "b5f2ef4d", ""}
  damaged = tmp_path / "deit_small_patch16_224-cd65a155.pth"
  damaged.write_bytes((ROOT / "tests/golden/torch_archive.pth").read_bytes())
  with pytest.raises(ConfigError, match=r"SHA-256 \w{8}\.\.\., but the published.*cd65a155.*again"):
    foreign.read_variables(str(damaged), 3)
  other = damaged.rename(tmp_path / "mine.pth")
  with pytest.raises(ConfigError, match="names of its arrays"):  # it is read, but does not fit
    foreign.read_variables(str(other), 3)


@pytest.mark.parametrize("words", [[], ["run"], ["--out", "file.safetensors"]])
def test_a_source_needs_a_place(words, capsys):
  assert front.main(["convert", *words]) == 1
  assert "give SOURCE and --out, or --list alone" in capsys.readouterr().err


@pytest.fixture
def timm(monkeypatch, tmp_path):
  """timm's repositories, each with one small network; the fixture lists the requests."""
  asked = []

  def download(source, *_):
    asked.append(hub.split(source))
    return FILES["timm_vit"]

  monkeypatch.setattr(hub, "download", download)
  monkeypatch.chdir(tmp_path)
  return asked


def test_known_weights_need_no_config(timm, capsys):
  """The small file does not fit DeiT-S; the error shows that the row was found and compared."""
  name = "timm:deit_small_patch16_224.fb_in1k@v2"
  assert front.main(["convert", name, "--out", "run", "--without_data"]) == 1
  error = capsys.readouterr().err
  assert "none of the network's 200 parameters fits: the source has 2 blocks" in error
  assert timm == [("timm/deit_small_patch16_224.fb_in1k", "v2")] and not Path("run").exists()


def test_known_weights_need_their_number_of_heads(timm):
  variables = make("timm_vit", num_heads=2)[1]
  with pytest.raises(ConfigError, match=r"query/kernel \(.*model\.num_heads=3, not 2\)"):
    initial_variables("timm:vit_tiny_patch16_224.augreg_in21k", variables)
  variables = make("timm_vit", num_heads=3)[1]
  initial_variables("timm:vit_tiny_patch16_224.augreg_in21k", variables)


def test_weights_without_a_head_begin_a_training(timm, capsys):
  name = "timm:vit_small_patch14_dinov2.lvd142m"
  assert front.main(["convert", name, "--out", "run"]) == 1
  error = capsys.readouterr().err
  assert "has no head, and a workdir needs one. Train a head: vitx train --config" in error
  assert f"finetune:dinov2_s,init_from={name}" in error and not timm


def test_unknown_weights_need_a_config(timm, capsys):
  assert front.main(["convert", "timm:resnet50.a1_in1k", "--out", "run"]) == 1
  assert "none of the weights of vitx convert --list; it needs --config" in capsys.readouterr().err
  assert not timm
