"""`vitx convert WORKDIR --out hf:OWNER/NAME`, and `vitx.load("hf:OWNER/NAME")` of the result."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import save_file

import vitx
from tests import runs
from tests.checkpoints import untrained
from tests.cli import density_models
from tests.interop.conftest import set_constants
from tests.interop.published import FILES as SMALL
from vitx.checkpoints.tree import name_arrays
from vitx.checkpoints.workdir import from_plain
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.inference.convert import describe
from vitx.inference.publish import FILES, hide_paths, publish
from vitx.interop import hub
from vitx.interop.foreign import read_grid, read_safetensors
from vitx.interop.init_from import check_source, initial_variables
from vitx.interop.repository import is_weights
from vitx.training import teacher

# huggingface_hub 2.4 gives its HTTP client a file by an argument that the client has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
FIRST, SECOND = f"{1:040}", f"{2:040}"  # the commits of the local server


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


def compare(found, wanted):
  """Asserts that two models have the same bits, step and classes."""
  arrays = name_arrays(found.variables)
  for name, value in name_arrays(wanted.variables).items():
    assert arrays.pop(name).tobytes() == value.tobytes(), name
  assert not arrays and found.step == wanted.step and found.class_names == wanted.class_names


def edit(folder, **changes):
  """Changes fields of a repository's `vitx.json`."""
  path = Path(folder) / "vitx.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_there_and_back(folder, loaded, tmp_path):
  assert sorted(os.listdir(folder)) == sorted(FILES)
  assert read_grid(os.path.join(folder, FILES[0])) == (2, 2)
  found = vitx.load(folder)
  compare(found, loaded)
  assert found.fingerprint == loaded.fingerprint and found.workdir == folder
  changed = {"data_dir": None}
  wanted = loaded.config.to_dict()
  assert found.config.to_dict() == wanted | {"data": wanted["data"] | changed}
  image = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
  answers = [vitx.predict(model, [image]).rows["probabilities"] for model in (found, loaded)]
  np.testing.assert_array_equal(*answers)
  compare(vitx.load(publish(folder, str(tmp_path / "again"))), loaded)


CLS = dict(width=12, depth=2, num_heads=3, mlp_dim=20, stem=dict(name="linear", patch=4))
NETWORKS = {
  "timm": dict(name="vit", **CLS, pool="cls"),
  "convmixer": dict(name="convmixer", width=6, depth=2, patch=2, kernel=3),
  "vitx": dict(name="vit", **CLS, pool="mean", token_mixer=dict(name="performer", features=8)),
}


@pytest.mark.parametrize("names", NETWORKS)
def test_each_kind_of_network(names, tmp_path):
  """A repository has timm's names if timm has the network; all state is kept."""
  model = untrained.make(**NETWORKS[names])
  folder = publish(model, str(tmp_path / names))
  record = json.loads((tmp_path / names / "vitx.json").read_text())
  assert record["names"] == names
  found = read_safetensors(f"{folder}/model.safetensors", "the test")
  marks = {"timm": "blocks.0.attn.qkv.weight", "convmixer": "stem.2.running_mean"}
  assert marks.get(names, "params/block_0/mlp/up/kernel") in found
  compare(vitx.load(folder), model)
  card = (tmp_path / names / "README.md").read_text()
  assert ("## Use in timm" in card) == (names != "vitx") and "ant, bee, cat" in card
  head = card.split("---")[1]
  assert "library_name: vitx" in head and "- image-classification" in head
  assert "\nlicense:" not in head and "# license:" in head


def test_a_masked_autoencoder(tmp_path):
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


def test_a_density_model(tmp_path):
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


def test_no_path_of_the_author_is_published(loaded, tmp_path):
  config = loaded.config.copy_and_resolve_references().unlock()
  config.data.source, config.data.data_dir = "folder:/home/jane/photos", "/home/jane/data"
  config.init_from = "clients/secret/run"
  config.task = ConfigDict({"name": "classification", "teacher": "C:\\Users\\jane\\teacher"})
  config.tracking = {"name": "wandb", "project": "secret client"}
  plain = hide_paths(config.to_dict())
  assert plain["tracking"] == {"name": "none"}
  assert plain["data"]["source"] == "folder:photos" and plain["data"]["data_dir"] is None
  assert plain["init_from"] == "run" and plain["task"]["teacher"] == "teacher"
  for kept in ("timm:vit_tiny.a", "hf:owner/name", "", "digits"):
    assert hide_paths({"init_from": kept, "data": {"source": kept}})["init_from"] == kept
  assert hide_paths({"data": {"source": "csv:clients/acme/all.csv"}})["data"]["source"] == (
    "csv:all.csv"
  )
  mine = untrained.make(**NETWORKS["timm"])
  mine.config.init_from = "clients/secret/run"
  mine.data["unreadable"] = ["/home/jane/photos/broken.png"]
  words = (b"jane", b"secret", b"broken.png", str(tmp_path).encode())
  for source in ("folder:/home/jane/photos", "folder:secret/photos"):
    mine.config.data.source = mine.data["source"] = source
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


@pytest.mark.slow  # evaluates, and trains for a step
def test_commands_take_a_repository(on_hub, loaded, tmp_path, capsys):
  assert main(["evaluate", "--workdir", "hf:me/tiny", "--json", str(tmp_path / "a.json")]) == 0
  found = json.loads((tmp_path / "a.json").read_text())
  assert found["nll"] == vitx.evaluate(loaded)["nll"] and found["workdir"] == "hf:me/tiny"
  assert "hf:me/tiny, checkpoint" in capsys.readouterr().out
  vitx.train(
    runs.tiny("duration=1 steps", "schedule.warmup=0 steps", "init_from=hf:me/tiny"),
    tmp_path / "new",
  )
  printed = capsys.readouterr().out
  assert f"init_from hf:me/tiny, checkpoint {loaded.step}" in printed
  assert re.search(r"skipped +0\nnew +0\nunused +0", printed)


def test_the_hub_there_and_back(hub_server, finished_run, loaded, capsys):
  assert main(["convert", str(finished_run[0]), "--out", "hf:me/tiny"]) == 0
  assert f"{hub_server.address}/me/tiny: a repository; try vitx.load('hf:me/tiny')" in (
    capsys.readouterr().out
  )
  commits = hub_server.repositories["me/tiny"]
  assert set(commits[-1]) == set(FILES) and len(commits) == 2
  assert "me/tiny" in hub_server.private  # a new repository
  found = vitx.load("hf:me/tiny")
  compare(found, loaded)
  assert found.workdir == "hf:me/tiny"
  card = commits[-1]["README.md"].decode()
  assert 'vitx.load("hf:me/tiny")' in card and "# tiny" in card


def test_a_second_version(on_hub, loaded, folder):
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

  def find_and_write(*given):
    path = find(*given)
    if "vitx.json" in given[1]:
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


def test_a_damaged_download(on_hub, tmp_path):
  vitx.load("hf:me/tiny")
  (path,) = (tmp_path / "hub_cache").rglob("model.safetensors")
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.resolve().write_bytes(content)
  with pytest.raises(ConfigError, match=r"the local copy .* is damaged: its SHA-256.*Delete"):
    vitx.load("hf:me/tiny")


def test_a_run_begins_from_a_repository(on_hub, loaded, capsys):
  params = jax.tree.map(np.zeros_like, loaded.variables["params"])
  layout = loaded.task.token_layout()
  check_source("hf:me/tiny", params, {}, layout)
  assert [path for _, path in on_hub.asked if path.endswith("model.safetensors")] == []
  found, _ = initial_variables("hf:me/tiny", params, {}, layout)
  wanted = name_arrays(loaded.variables["params"])
  for name, value in name_arrays(found).items():
    np.testing.assert_array_equal(value, wanted[name])


def test_weights_of_others_begin_a_run_as_before(hub_server):
  """A repository without `vitx.json` begins a run from the first of its two files of weights."""
  weights = Path(SMALL["timm_vit"]).read_bytes()
  files = {"pytorch_model.bin": b"not this", "model.safetensors": weights}
  hub_server.add("timm/small.tiny", files)
  with pytest.raises(
    ConfigError, match=r"init_from='\w+:.*': none of the network's 1 parameters fits"
  ):
    initial_variables("timm:small.tiny", {"a": np.zeros(1)}, {}, None)
  with pytest.raises(
    ConfigError, match=r"init_from='\w+:.*': none of the network's 1 parameters fits"
  ):
    initial_variables("hf:timm/small.tiny", {"a": np.zeros(1)}, {}, None)
  asked = [path for _, path in hub_server.asked]
  assert asked[0] == "/timm/small.tiny/resolve/main/model.safetensors"
  assert not [path for path in asked if "pytorch" in path]
  with pytest.raises(ConfigError, match=r"has no vitx.json: .*use init_from or vitx convert"):
    vitx.load("hf:timm/small.tiny")


def test_weights_in_the_cache_need_no_network(hub_server, monkeypatch, tmp_path):
  """No attempt to reach the Hub delays a run whose weights are in the cache."""
  hub_server.add("you/small", {"model.safetensors": Path(SMALL["timm_vit"]).read_bytes()})
  assert is_weights("hf:you/small")
  hub.download("hf:you/small")
  asked = len(hub_server.asked)
  assert is_weights("hf:you/small") and len(hub_server.asked) == asked
  set_constants(monkeypatch, "http://127.0.0.1:9", tmp_path / "hub_cache")
  hub.download("hf:you/small")


@pytest.mark.parametrize("source", ["hf:../..", "hf:me/tiny.git", "hf:me/a--b"])
def test_a_name_that_the_library_refuses(source, hub_server):
  for field, use in (("workdir", vitx.load), ("init_from", is_weights)):
    with pytest.raises(ConfigError, match=f"^{field}='{source}' cannot be downloaded: .*(R|r)epo"):
      use(source)


def arrange(server, case, monkeypatch):
  """Sets up a case of `REFUSED`."""
  weights = Path(SMALL["timm_vit"]).read_bytes()
  server.add("me/one", {"model.safetensors": weights, "vitx.json": b"{}"})
  if case == "private":
    server.private.add("me/one")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
  elif case == "gated":
    server.gated.add("me/one")
  elif case == "no network":
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http.time, "sleep", lambda _: None)  # between its attempts
    set_constants(monkeypatch, "http://127.0.0.1:9", "nowhere")


REFUSED = {
  "missing": ("hf:me/two", "does not exist or is private.*hf auth login"),
  "private": ("hf:me/one", "does not exist or is private.*hf auth login"),
  "gated": ("hf:me/one", "needs its owner's permission.*huggingface.co/me/one.*hf auth login"),
  "revision": ("hf:me/one@v2", "has no revision 'v2'. Name a branch, a tag or a commit"),
  "no network": ("hf:me/one", "not in the cache, and the Hub cannot be reached.*Connect"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_repository_that_cannot_be_read(case, hub_server, monkeypatch):
  """Each use of a repository gives one message with field and fix; nothing is compiled."""
  arrange(hub_server, case, monkeypatch)
  source, message = REFUSED[case]
  with pytest.raises(ConfigError, match=f"^workdir='{source}'.*{message}"):
    vitx.load(source)
  with pytest.raises(ConfigError, match=f"^init_from='{source}'.*{message}"):
    check_source(source, {"a": np.zeros(1)}, {}, None)


@pytest.mark.parametrize(
  ("out", "token", "message"),
  [
    ("hf:me/new", "", r"may not be written by you. Correct the owner, or log in"),
    ("hf:you/new", None, r"may not be written by you. Correct the owner, or log in"),
    ("hf:me/new@v1", None, r"cannot be written; write hf:OWNER/NAME"),
    ("timm:new", None, r"cannot be written; write hf:OWNER/NAME"),
    ("hf:new", None, r"is no name of the Hub"),
  ],
)
def test_a_repository_that_cannot_be_written(
  out, token, message, hub_server, loaded, monkeypatch, tmp_path
):
  if token is not None:
    monkeypatch.setenv("HF_TOKEN", token)
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=f"^out='{out}' {message}"):
    publish(loaded, out)
  assert not hub_server.repositories


@pytest.mark.parametrize(
  ("changes", "options", "message"),
  [
    (dict(step="three"), {}, "vitx.json is damaged .step is no integer"),
    (dict(config=None), {}, "vitx.json is damaged .it lacks config"),
    (dict(data={}), {}, "vitx.json is damaged .it lacks data.fingerprint"),
    (dict(data={"fingerprint": "", "class_names": ["a"]}), {}, "name the 10.*Restore vitx.json"),
    (dict(names="theirs"), {}, "names in vitx.json of workdir=.*'theirs'"),
    (dict(names="timm"), {}, "'params/.*' has no place in this network"),
    (dict(config={"model": 3}), {}, r"vitx\.json of workdir=.*model=3 must be a group"),
    ({}, dict(checkpoint=3), "checkpoint=3 does not exist in workdir=.* has only step 40"),
    ({}, dict(weights="ema"), "weights='ema'.* has one kind of weights; leave weights out"),
  ],
)
def test_a_repository_that_does_not_fit(changes, options, message, folder):
  edit(folder, **changes)
  with pytest.raises(ConfigError, match=message):
    vitx.load(folder, **options)


DEEP = json.loads('{"a":' * 900 + "1" + "}" * 900)


@pytest.mark.parametrize(
  "fields", [{"a.b": 1}, {"__class__": 1}, DEEP], ids=["dot", "class", "deep"]
)
def test_a_config_that_no_config_can_be(fields, folder, run_copy):
  """A stranger's config may have names that no field can have, or too many levels."""
  edit(folder, config=fields)
  (run_copy / "config.json").write_text(json.dumps(fields))
  for place, name in ((folder, "vitx.json"), (str(run_copy), "config.json")):
    damaged = rf"{name} is damaged \(.*Restore it"
    if fields is DEEP:  # Python 3.12 reads it, and finds that the config has no task
      damaged = rf"{damaged}|{name}.*lacks the field 'task'"
    with pytest.raises(ConfigError, match=damaged):
      vitx.load(place)
    with pytest.raises(ConfigError, match=damaged):
      check_source(place, {}, {}, None)


def test_a_pipe_is_no_file_of_weights(folder):
  """A pipe in place of the weights is refused, since reading it would never return."""
  Path(folder, "model.safetensors").unlink()
  os.mkfifo(f"{folder}/model.safetensors")
  with pytest.raises(ConfigError, match=r"model\.safetensors is no readable .*not a regular file"):
    vitx.load(folder)


def test_an_array_of_another_shape_is_of_a_file(tmp_path):
  folder = publish(untrained.make(**NETWORKS["timm"]), str(tmp_path / "published"))
  path = f"{folder}/model.safetensors"
  arrays = read_safetensors(path, "the test")
  save_file({**arrays, "blocks.0.attn.qkv.weight": np.zeros((), np.float32)}, path)
  with pytest.raises(ConfigError, match=rf"^workdir='{folder}': model\.safetensors .*qkv\.weight"):
    vitx.load(folder)


def test_a_repository_and_a_run_have_folders_of_their_own(folder, loaded, run_copy):
  """A workdir refuses a published model, and the folder of a published model refuses a run.

  Otherwise, the published model would be loaded in place of the run.
  """
  before = runs.snapshot(run_copy)
  with pytest.raises(ConfigError, match=r"is a workdir; a repository has its own folder"):
    publish(loaded, str(run_copy))
  assert runs.snapshot(run_copy) == before
  before = runs.snapshot(Path(folder))
  with pytest.raises(ConfigError, match=r"has a published model .vitx\.json.*another directory"):
    vitx.train(runs.tiny("duration=1 steps", "schedule.warmup=0 steps"), folder)
  assert runs.snapshot(Path(folder)) == before


def test_a_damaged_record_leaves_no_half_of_a_repository(folder, tmp_path):
  record = json.loads(Path(folder, "vitx.json").read_text())
  edit(folder, data={**record["data"], "examples": {"train": "many"}})
  with pytest.raises(ConfigError, match=r"data\.examples\.train is no integer"):
    publish(folder, str(tmp_path / "again"))
  for section, key in (("data", "source"), ("evaluation", "interpolation")):
    config = {**record["config"], section: dict(record["config"][section])}
    del config[section][key]
    edit(folder, config=config, data=record["data"])
    if key == "source":
      with pytest.raises(ConfigError, match=r"vitx\.json of workdir=.* lacks the field 'source'"):
        publish(folder, str(tmp_path / "again"))
      assert not (tmp_path / "again").exists()
  publish(folder, str(tmp_path / "again"))  # a missing field of evaluation has its default
  assert "No figures" in (tmp_path / "again" / "README.md").read_text()


def test_weights_that_do_not_fit(folder, tmp_path):
  other = publish(untrained.make(**NETWORKS["vitx"]), str(tmp_path / "other"))
  shutil.copy(f"{other}/model.safetensors", folder)
  with pytest.raises(ConfigError, match=r"model\.safetensors is intact but of another shape"):
    vitx.load(folder)
  Path(folder, "model.safetensors").write_bytes(b"no weights")
  with pytest.raises(ConfigError, match=r"model\.safetensors is no readable safetensors file"):
    vitx.load(folder)


def test_a_stranger_names_code(folder, tmp_path, monkeypatch):
  """A repository's config is checked for the code that it names, like a workdir's config."""
  Path(tmp_path, "their_mixer.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  record = json.loads(Path(folder, "vitx.json").read_text())
  record["config"]["model"]["token_mixer"] = {"name": "their_mixer:Mixer"}
  edit(folder, config=record["config"])
  with pytest.raises(ConfigError, match=r"their_mixer:Mixer.*trust_code"):
    vitx.load(folder)
  with pytest.raises(ConfigError, match=r"init_from=.*their_mixer:Mixer.*trust_code"):
    check_source(folder, {}, {}, None)
  assert not Path("imported").exists()
  with pytest.raises(ConfigError, match="Mixer"):
    vitx.load(folder, trust_code=True)
  assert Path("imported").exists() and sys.modules.pop("their_mixer")


def test_a_teacher_is_a_repository(folder, loaded):
  """The teacher's network is read from the repository, as from a workdir."""
  config = runs.tiny("task=distillation", f"task.teacher='{folder}'")
  assert teacher.with_model(config).task.teacher_model.to_dict() == loaded.config.model.to_dict()


@pytest.mark.slow  # a process of its own, which reads the address from the environment
def test_another_process_asks_the_hub(on_hub, loaded, tmp_path):
  code = "import vitx; print(vitx.load('hf:me/tiny').step)"
  environment = {"HF_ENDPOINT": on_hub.address, "HF_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
  output = subprocess.run(
    [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, check=True
  ).stdout
  assert int(output) == loaded.step
  assert list(tmp_path.rglob("hub/models--me--tiny/snapshots/*/model.safetensors"))


def test_a_record_survives_json():
  config = untrained.make(**NETWORKS["timm"]).config
  plain = json.loads(json.dumps(hide_paths(config.to_dict())))
  assert from_plain(plain).to_dict()["model"] == config.to_dict()["model"]
