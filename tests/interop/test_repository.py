"""`vitx convert WORKDIR --out hf:OWNER/NAME`, and `vitx.load("hf:OWNER/NAME")` of the result."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import vitx
from tests import runs
from tests.checkpoints import untrained
from tests.cli import density_models
from tests.interop.published import FILES as SMALL
from vitx.checkpoints.tree import name_arrays
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.fields import read_settings
from vitx.inference.convert import describe
from vitx.inference.publish import FILES, hide_paths, publish
from vitx.interop import hub
from vitx.interop.foreign import read_grid, read_safetensors
from vitx.interop.init_from import Fit, check_source, initial_variables
from vitx.interop.repository import is_weights
from vitx.runtime.weights import with_teacher_model
from vitx.tasks.base import find_layout

# huggingface_hub 2.4 gives its HTTP client a file by an argument that the client has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
FIRST = f"{1:040}"  # a commit of the local server


@pytest.fixture(scope="module")
def loaded(finished_run):
  return vitx.load(finished_run[0])


@pytest.fixture
def folder(loaded, tmp_path):
  """The finished run, published as a repository in a folder."""
  return publish(loaded, str(tmp_path / "published" / "tiny"))


@pytest.fixture
def on_hub(hub_server, loaded, capsys):
  """The Hub with the finished run, published as the repository `hf:me/tiny`."""
  assert publish(loaded, "hf:me/tiny") == f"{hub_server.address}/me/tiny"
  return hub_server


def compare(model, expected):
  """Asserts that two models have the same bits, step and classes."""
  arrays = name_arrays(model.variables)
  for name, value in name_arrays(expected.variables).items():
    assert arrays.pop(name).tobytes() == value.tobytes(), name
  assert not arrays and model.step == expected.step and model.class_names == expected.class_names


def test_a_folder_holds_the_whole_model(folder, loaded, tmp_path):
  assert sorted(os.listdir(folder)) == sorted(FILES)
  assert read_grid(os.path.join(folder, FILES[0])) == (2, 2)
  published = vitx.load(folder)
  compare(published, loaded)
  assert published.fingerprint == loaded.fingerprint and published.workdir == folder
  changed = {"data_dir": None}
  config = loaded.config.to_dict()
  assert published.config.to_dict() == config | {"data": config["data"] | changed}
  image = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
  answers = [vitx.predict(model, [image]).rows["probabilities"] for model in (published, loaded)]
  np.testing.assert_array_equal(*answers)
  compare(vitx.load(publish(folder, str(tmp_path / "again"))), loaded)


CLS = dict(width=12, depth=2, num_heads=3, mlp_dim=20, stem=dict(name="linear", patch=4))
NETWORKS = {
  "timm": dict(name="vit", **CLS, pool="cls"),
  "convmixer": dict(name="convmixer", width=6, depth=2, patch=2, kernel=3),
  "vitx": dict(name="vit", **CLS, pool="mean", token_mixer=dict(name="performer", features=8)),
}


@pytest.mark.parametrize("names", NETWORKS)
def test_each_kind_of_network_is_published(names, tmp_path):
  """A repository has timm's names if timm has the network; all state is kept."""
  model = untrained.make(**NETWORKS[names])
  folder = publish(model, str(tmp_path / names))
  record = json.loads((tmp_path / names / "vitx.json").read_text())
  assert record["names"] == names
  arrays = read_safetensors(f"{folder}/model.safetensors", "the test")
  marks = {"timm": "blocks.0.attn.qkv.weight", "convmixer": "stem.2.running_mean"}
  assert marks.get(names, "params/block_0/mlp/up/kernel") in arrays
  compare(vitx.load(folder), model)
  card = (tmp_path / names / "README.md").read_text()
  assert ("## Use in timm" in card) == (names != "vitx") and "ant, bee, cat" in card
  head = card.split("---")[1]
  assert "library_name: vitx" in head and "- image-classification" in head
  assert "\nlicense:" not in head and "# license:" in head


def test_a_masked_autoencoder_is_no_classifier(tmp_path):
  """A masked autoencoder's card does not call it a classifier, nor show its use in timm.

  Its body alone would have timm's names.
  """
  task = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
  model = untrained.make(**NETWORKS["timm"], task={"name": "masked_autoencoder", **task})
  compare(vitx.load(publish(model, str(tmp_path / "masked"))), model)
  card = (tmp_path / "masked" / "README.md").read_text()
  assert "image-classification" not in card and "## Use in timm" not in card
  with pytest.raises(ConfigError, match=r"has a decoder, .* with init_from=runs/untrained"):
    describe(model)


def test_a_density_model_is_published(tmp_path):
  model = density_models.make()
  compare(vitx.load(publish(model, str(tmp_path / "density"))), model)
  card = (tmp_path / "density" / "README.md").read_text()
  assert "image-classification" not in card and "classes, in order" not in card


def test_the_card_has_the_figures_of_the_checkpoint(folder, finished_run, loaded):
  card = Path(folder, "README.md").read_text()
  rows = [row for row in runs.rows(finished_run[0]) if row.get("step") == loaded.step]
  best = next(row for row in rows if row["kind"] == "validation")
  assert f"| validation | {best['examples']} |" in card and f"{best['top1']:.4f}" in card
  for part in ('vitx.load("tiny")', loaded.fingerprint, "The task is `classification`"):
    assert part in card, part
  assert "- command:" not in card and "jax " in card


def test_no_path_of_the_author_is_published(tmp_path):
  task = {"name": "classification", "teacher": "C:\\Users\\jane\\teacher"}
  data = {"source": "csv:clients/acme/all.csv", "data_dir": "/home/jane/data"}
  plain = hide_paths({"data": data, "task": task, "tracking": {"name": "wandb", "project": "acme"}})
  assert plain["data"] == {"source": "csv:all.csv", "data_dir": None}
  assert plain["task"]["teacher"] == "teacher" and plain["tracking"] == {"name": "none"}
  for public in ("timm:vit_tiny.a", "hf:owner/name", "", "digits"):
    assert hide_paths({"init_from": public, "data": {"source": public}})["init_from"] == public
  mine = untrained.make(**NETWORKS["timm"])
  mine = runs.change_settings(mine, {"init_from": "clients/secret/run"})
  mine.data["unreadable"] = ["/home/jane/photos/broken.png"]
  words = (b"jane", b"secret", b"broken.png", str(tmp_path).encode())
  for source in ("folder:/home/jane/photos", "folder:secret/photos"):
    mine.data["source"] = source
    mine = runs.change_settings(mine, {"data.source": source})
    folder = publish(mine, str(tmp_path / str(len(source))))
    for name in FILES:
      content = Path(folder, name).read_bytes()
      assert not [word for word in words if word in content], (source, name)
    assert vitx.load(folder).config.data.source == "folder:photos"


def test_nothing_is_overwritten(folder, loaded, capsys):
  before = runs.snapshot(Path(folder))
  assert main(["convert", folder, "--out", folder]) == 1
  assert "exists already; a repository has its own folder" in capsys.readouterr().err
  assert runs.snapshot(Path(folder)) == before


def test_the_hub_holds_the_whole_model(hub_server, finished_run, loaded, capsys):
  assert main(["convert", str(finished_run[0]), "--out", "hf:me/tiny"]) == 0
  assert f"{hub_server.address}/me/tiny: a repository; try vitx.load('hf:me/tiny')" in (
    capsys.readouterr().out
  )
  commits = hub_server.repositories["me/tiny"]
  assert set(commits[-1]) == set(FILES) and len(commits) == 2
  assert "me/tiny" in hub_server.private  # a new repository
  published = vitx.load("hf:me/tiny")
  compare(published, loaded)
  assert published.workdir == "hf:me/tiny"
  card = commits[-1]["README.md"].decode()
  assert 'vitx.load("hf:me/tiny")' in card and "# tiny" in card


def test_a_second_version_keeps_the_card(on_hub, loaded, folder):
  """A second version keeps the author's model card; a commit selects the first version."""
  on_hub.add("me/tiny", {"README.md": b"mine, license: mit"})
  other = vitx.load(folder)
  other.variables["params"] = jax.tree.map(lambda x: x + 1, other.variables["params"])
  publish(other, "hf:me/tiny")
  assert on_hub.repositories["me/tiny"][-1]["README.md"] == b"mine, license: mit"
  compare(vitx.load("hf:me/tiny"), other)
  compare(vitx.load(f"hf:me/tiny@{FIRST}"), loaded)


def test_weights_and_config_are_of_one_commit(on_hub, loaded, monkeypatch):
  """Weights and config are of one commit, though a new version comes between the two downloads."""
  find = hub.find

  def find_and_write(*names):
    path = find(*names)
    if "vitx.json" in names[1]:
      on_hub.add("me/tiny", {"model.safetensors": b"of the next version"})
    return path

  monkeypatch.setattr(hub, "find", find_and_write)
  compare(vitx.load("hf:me/tiny"), loaded)


def test_the_cache_serves_without_a_network(on_hub, loaded, monkeypatch):
  from huggingface_hub import constants

  vitx.load("hf:me/tiny")
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  asked = len(on_hub.asked)
  compare(vitx.load("hf:me/tiny"), loaded)
  assert len(on_hub.asked) == asked


def test_a_run_begins_from_a_repository(on_hub, loaded, capsys):
  params = jax.tree.map(np.zeros_like, loaded.variables["params"])
  fit = Fit(layout=find_layout(loaded.task))
  check_source("hf:me/tiny", {"params": params}, fit)
  assert [path for _, path in on_hub.asked if path.endswith("model.safetensors")] == []
  initial = initial_variables("hf:me/tiny", {"params": params}, fit)["params"]
  expected = name_arrays(loaded.variables["params"])
  for name, value in name_arrays(initial).items():
    np.testing.assert_array_equal(value, expected[name])


def test_a_run_takes_over_the_random_features_of_performer(tmp_path):
  """The weights of attention belong to the features with which they were trained."""
  model = untrained.make(**NETWORKS["vitx"])
  folder = publish(model, str(tmp_path / "published"))
  fresh = jax.tree.map(np.zeros_like, model.variables)
  fresh["features"]["block_1"] = {"token_mixer": {"features": np.zeros((1, 4, 4))}}
  variables = initial_variables(folder, fresh, Fit(layout=find_layout(model.task)))
  expected = name_arrays(model.variables)
  assert "features" in variables
  for name, value in name_arrays(variables).items():
    right = np.zeros((1, 4, 4)) if name.startswith("features/block_1") else expected[name]
    np.testing.assert_array_equal(value, right, err_msg=name)


def test_a_repository_without_config_begins_a_run(hub_server):
  """A repository without `vitx.json` begins a run from the first of its two files of weights."""
  weights = Path(SMALL["timm_vit"]).read_bytes()
  files = {"pytorch_model.bin": b"not this", "model.safetensors": weights}
  hub_server.add("timm/small.tiny", files)
  for source in ("timm:small.tiny", "hf:timm/small.tiny"):
    with pytest.raises(ConfigError, match=f"init_from='{source}': none of the network's 1 param"):
      initial_variables(source, {"params": {"a": np.zeros(1)}})
  asked = [path for _, path in hub_server.asked]
  assert asked[0] == "/timm/small.tiny/resolve/main/model.safetensors"
  assert not [path for path in asked if "pytorch" in path]
  with pytest.raises(ConfigError, match=r"hf:timm/small.tiny/config.json is missing"):
    vitx.load("hf:timm/small.tiny")


def test_weights_in_the_cache_need_no_network(hub_server):
  """No attempt to reach the Hub delays a run whose weights are in the cache."""
  hub_server.add("you/small", {"model.safetensors": Path(SMALL["timm_vit"]).read_bytes()})
  assert is_weights("hf:you/small")
  hub.download("hf:you/small")
  asked = len(hub_server.asked)
  assert is_weights("hf:you/small") and len(hub_server.asked) == asked


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("hf:me/two", "cannot be downloaded: .*Repository Not Found"),
    ("hf:me/gated", "cannot be downloaded: .*Cannot access gated repo"),
    ("hf:me/one@v2", "cannot be downloaded: .*Revision Not Found"),
    ("hf:me/tiny.git", "cannot be downloaded: Repo_id cannot"),
  ],
)
def test_an_unreadable_repository_is_refused(source, message, hub_server):
  """Each use of a repository gives one message with the field; nothing is compiled."""
  for name in ("me/one", "me/gated"):
    hub_server.add(name, {"vitx.json": b"{}"})
  hub_server.gated.add("me/gated")
  with pytest.raises(ConfigError, match=f"^workdir='{source}' {message}"):
    vitx.load(source)
  with pytest.raises(ConfigError, match=f"^init_from='{source}' {message}"):
    check_source(source, {"params": {"a": np.zeros(1)}})


@pytest.mark.parametrize(
  ("out", "token"),
  [("hf:me/new", ""), ("hf:you/new", None), ("hf:me/new@v1", None), ("timm:a", None)],
)
def test_an_unwritable_repository_is_refused(out, token, hub_server, loaded, monkeypatch, tmp_path):
  if token is not None:
    monkeypatch.setenv("HF_TOKEN", token)
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=f"^out='{out}' cannot be written"):
    publish(loaded, out)
  assert not hub_server.repositories


@pytest.mark.parametrize("options", [dict(checkpoint=3), dict(weights="ema")], ids=str)
def test_a_repository_has_one_model(options, folder):
  with pytest.raises(
    ConfigError, match=r"does not exist in workdir=.* step 40 and one kind of wei"
  ):
    vitx.load(folder, **options)


def test_a_repository_and_a_run_have_folders_of_their_own(folder, loaded, run_copy):
  """A workdir refuses a published model, and the folder of a published model refuses a run.

  Otherwise, the published model would be loaded in place of the run.
  """
  before = runs.snapshot(run_copy)
  with pytest.raises(ConfigError, match=r"is a workdir; a repository has its own folder"):
    publish(loaded, str(run_copy))
  assert runs.snapshot(run_copy) == before
  before = runs.snapshot(Path(folder))
  with pytest.raises(ConfigError, match=r"has vitx.json of a model of another kind"):
    vitx.train(runs.tiny("duration=1 steps", "schedule.warmup=0 steps"), folder)
  assert runs.snapshot(Path(folder)) == before


def test_weights_of_another_network_are_refused(folder, tmp_path):
  other = publish(untrained.make(**NETWORKS["timm"]), str(tmp_path / "other"))
  shutil.copy(f"{other}/model.safetensors", folder)
  with pytest.raises(ConfigError, match=r"model\.safetensors is intact but of another shape"):
    vitx.load(folder)
  path = f"{other}/model.safetensors"
  arrays = read_safetensors(path, "the test")
  for name in ("blocks.0.attn.qkv.weight", "blocks.0.attn.q_norm.weight"):
    save_file({**arrays, name: np.zeros((), np.float32)}, path)
    with pytest.raises(ConfigError, match=rf"(?s)^workdir='{other}': model\.safetensors .*{name}"):
      vitx.load(other)


def test_a_teacher_is_a_repository(folder, loaded):
  """The teacher's network is read from the repository, as from a workdir."""
  config = runs.tiny("task=distillation", f"task.teacher='{folder}'")
  assert with_teacher_model(read_settings(config)).task.teacher_model == loaded.settings.model
