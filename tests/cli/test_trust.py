"""A directory that somebody else made runs none of their code, unless it is trusted."""

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import types
import zipfile

import pytest
import tensorflow_datasets as tfds
from PIL import EpsImagePlugin

import vitx
from tests import runs
from tests.slow import all_but
from vitx.cli.main import main
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.data.sources import open_dataset
from vitx.inference.visualize import open_subject
from vitx.interop import foreign
from vitx.training import loop
from vitx.training.experiment import make_experiment
from vitx.training.phases import check as check_phases
from vitx.training.restore import check_beginning

OWN = """
import pathlib
from vitx.attention.softmax import SoftmaxAttention
pathlib.Path("imported").touch()
class Mixer(SoftmaxAttention):
  pass
"""


@pytest.fixture
def workdir(finished_run, tmp_path, monkeypatch):
  """A workdir whose config names code in the current folder."""
  shutil.copytree(finished_run[0], tmp_path / "run")
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  config["model"]["token_mixer"] = {"name": "own_mixer:Mixer"}
  (tmp_path / "run" / "config.json").write_text(json.dumps(config))
  (tmp_path / "own_mixer.py").write_text(OWN)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  yield tmp_path / "run"
  sys.modules.pop("own_mixer", None)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_commands(command, workdir, monkeypatch, capsys):
  monkeypatch.setattr(loop, "_train", lambda *_: loop.Result("new", 6, True))  # as if trained
  arguments = ["evaluate", "--workdir", str(workdir)]
  if command == "train":
    tiny = runs.replace(runs.TINY, "duration=6 steps", f"init_from='{workdir}'")
    arguments = ["train", "--config", f"digits:{tiny}", "--workdir", "new"]
  assert main(arguments) == 1
  error = capsys.readouterr().err
  assert "own_mixer:Mixer" in error and "--trust_code" in error
  assert not (workdir.parent / "imported").exists() and not (workdir.parent / "new").exists()
  assert main([*arguments, "--trust_code"]) == 0
  assert (workdir.parent / "imported").exists()


# Each field of a config.json that may name code, with such a name.
PLACES = {
  "mixer": ("model", {"token_mixer": {"name": "own_mixer:Mixer"}}),
  "mixer_as_text": ("model", {"token_mixer": "own_mixer:Mixer"}),
  "edges": ("model", {"token_mixer": {"name": "pattern", "edges": "own_mixer:edges"}}),
  "spaces": ("model", {"token_mixer": {"name": "own mixer:!"}}),
  "optimizer": ("optimizer", {"name": "own_mixer:Mixer"}),
  "source": ("data", {"source": "own_mixer:Mixer"}),
  "source_of_vitx": ("data", {"source": "vitx.training.record.provenance:subprocess"}),
  "validation_choice": ("data", {"validation_choice": "own_mixer:Mixer"}),
  "phase": ("phases", {"a": {"model": {"token_mixer": "own_mixer:Mixer"}}}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_config_file_of_data_names_no_code(place, workdir):
  config = json.loads((workdir / "config.json").read_text())
  config["model"]["token_mixer"] = {"name": "softmax"}
  section, changes = PLACES[place]
  config[section] = {**config.get(section, {}), **changes}
  path = workdir.parent / "theirs.json"
  path.write_text(json.dumps(config))
  with pytest.raises(ConfigError, match="trust_code"):
    vitx.load_config(str(path))
  with registry.trusting(True):
    assert vitx.load_config(str(path)).seed == 0
  assert not (workdir.parent / "imported").exists()


def test_every_command_refuses_it(workdir, capsys):
  theirs = str(workdir / "config.json")
  for arguments in (
    ["train", "--config", theirs, "--workdir", "new"],
    ["train", "--config", theirs, "--workdir", "new", "--dry_run"],
    ["sweep", "--config", theirs, "--workdir", "new"],
    ["reproduce", "--config", theirs, "--workdir", "new"],
    ["plan", "--config", theirs],
    ["config", theirs],
    ["config", theirs, "--explain"],
    ["benchmark", "data", "--config", theirs],
    ["visualize", "patterns", "--config", theirs, "--out", "new"],
  ):
    assert main(arguments) == 1, arguments
    error = capsys.readouterr().err
    assert ("own_mixer:Mixer" in error and "--trust_code" in error) or arguments[0] == "reproduce"
    assert not (workdir.parent / "imported").exists() and not (workdir.parent / "new").exists()
  assert main(["config", theirs, "--trust_code"]) == 0
  assert "own_mixer:Mixer" in capsys.readouterr().out


FEATURE = """
import pathlib
import tensorflow_datasets as tfds
pathlib.Path("imported").touch()
class Scan(tfds.features.Image):
  pass
"""


def rename_feature(directory, how):
  """Makes the prepared digits in a directory name a feature class of the current folder."""
  (path,) = directory.rglob("features.json")
  text = path.read_text()
  image = "tensorflow_datasets.core.features.image_feature.Image"
  assert image in text
  text = text.replace(image, "own_feature.Scan")
  if how == "snake_case":
    text = text.replace("pythonClassName", "python_class_name")
  if how == "legacy":
    shape = {"shape": [8, 8, 1], "dtype": "uint8", "encoding_format": "png"}
    content = {"image": {"type": "own_feature.Scan", "content": shape}}
    features = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    text = json.dumps({"type": features, "content": content})
  path.write_text(text)


@pytest.mark.parametrize("how", ["as_written", "snake_case", "legacy"])
def test_a_data_directory_names_no_code(how, data_dir, tmp_path, monkeypatch):
  shutil.copytree(data_dir, tmp_path / "data")
  (tmp_path / "own_feature.py").write_text(FEATURE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
  rename_feature(tmp_path / "data", how)
  data = {"source": "digits", "data_dir": str(tmp_path / "data")}
  for trusted in (None, False):
    with registry.trusting(trusted), pytest.raises(ConfigError, match=r"own_feature.*trust_code"):
      open_dataset(data)
  assert not (tmp_path / "imported").exists()
  try:
    with registry.trusting(True):
      if how != "legacy":
        assert open_dataset(data).info.class_names == tuple("0123456789")
  finally:
    sys.modules.pop("own_feature", None)
    tfds.features.FeatureConnector._registered_features.pop("own_feature.Scan", None)
  assert (tmp_path / "imported").exists() == (how != "legacy")


# Fields of a config.json, and the message about them before anything is read.
TOLD = [
  ({"data": {"source": "folder:photos"}}, "data.source='folder:photos' (here 'HERE/photos')"),
  ({"data": {"source": "bytes:/etc/passwd"}}, "data.source='bytes:/etc/passwd'"),
  ({"data": {"data_dir": "their/data"}}, "data.data_dir='their/data' (here 'HERE/their/data')"),
  ({"data": {"data_dir": "gs://bucket/x"}}, "data.data_dir='gs://bucket/x'"),
  ({"init_from": "hf:owner/name"}, "init_from='hf:owner/name'"),
  ({"task": {"teacher": "~/run"}}, "task.teacher='~/run'"),
  ({"phases": {"a": {"init_from": "x"}}}, "phases.a.init_from='x' (here 'HERE/x')"),
]


@pytest.mark.parametrize(("change", "said"), TOLD, ids=lambda x: str(x))
def test_a_config_of_data_says_what_it_has_read(change, said, run_copy, monkeypatch, caplog):
  monkeypatch.chdir(run_copy.parent)
  config = json.loads((run_copy / "config.json").read_text())
  for field, value in change.items():
    config[field] = {**config[field], **value} if isinstance(value, dict) else value
  (run_copy / "theirs.json").write_text(json.dumps(config))
  said = f"names files or data to read: {said.replace('HERE', str(run_copy.parent))}"
  vitx.load_config(str(run_copy / "theirs.json"))
  vitx.load_config(str(run_copy / "theirs.json"))  # as a sweep does for each point
  assert said in caplog.messages[0] and len(caplog.messages) == 1
  with registry.trusting(True):
    vitx.load_config(str(run_copy / "theirs.json"))
  assert len(caplog.messages) == 1


def test_a_run_says_what_it_has_read(run_copy, data_dir, monkeypatch, caplog):
  monkeypatch.chdir(run_copy.parent)
  vitx.evaluate(run_copy, limit=4)
  assert not caplog.messages  # no warning of a TFDS set in the user's own directory
  shutil.copytree(data_dir, run_copy / "data")
  config = json.loads((run_copy / "config.json").read_text())
  config["data"]["data_dir"] = "copy/data"
  (run_copy / "config.json").write_text(json.dumps(config))
  vitx.evaluate(run_copy, limit=4, data_dir=str(data_dir))
  assert not caplog.messages
  vitx.evaluate(run_copy, limit=4)
  (said,) = caplog.messages
  assert said == (
    f"'{run_copy}/config.json' names files or data to read: data.data_dir='copy/data'"
    f" (here '{run_copy}/data')"
  )


# This module is beside the stranger's files, in the working directory; each file below names it.
THEIRS = """
import pathlib
import tensorflow_datasets as tfds
from vitx.attention.softmax import SoftmaxAttention
pathlib.Path("imported").touch()
class Mixer(SoftmaxAttention):
  pass
class Scan(tfds.features.Image):
  pass
def load(*_):
  pathlib.Path("imported").touch()
"""
COUNT = itertools.count()


class Theirs:
  """A copy of a workdir, and a module beside it, whose name no other test has imported."""

  def __init__(self, run, data, place, modules):
    self.run, self.data = shutil.copytree(run, place / "run"), data
    self.place, self.modules = place, modules
    self.name = f"theirs{next(COUNT)}"
    (place / f"{self.name}.py").write_text(THEIRS)
    self.mixer = {"token_mixer": {"name": f"{self.name}:Mixer"}}
    self.source = {"source": f"{self.name}:load"}

  def config(self, path="run/config.json", **sections):
    config = json.loads((self.run / "config.json").read_text())
    for section, change in sections.items():
      config[section] = {**config.get(section, {}), **change}
    (self.place / path).write_text(json.dumps(config))
    return str(self.place / path)

  def weights(self, name):
    """Writes a pickle that calls the module's `load()`, in the format of the name's suffix.

    Returns its path.
    """
    content = f"c{self.name}\nload\n(tR.".encode()
    if name.endswith(".zip.pth"):
      with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("a/data.pkl", content)
    elif name.endswith(".npz"):
      with zipfile.ZipFile(name, "w") as archive:
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': ()}".ljust(117) + b"\n"
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00v\x00" + header + content)
    else:
      (self.place / name).write_bytes(content)
    return str(self.place / name)

  def features(self):
    shutil.copytree(self.data, self.place / "data")
    (path,) = (self.place / "data").rglob("features.json")
    image = "tensorflow_datasets.core.features.image_feature.Image"
    path.write_text(path.read_text().replace(image, f"{self.name}.Scan"))


def train(trusted, **more):
  """Checks a run of the user's own, which reads a field from the copied workdir.

  Everything before the compilation is checked.
  """
  config = runs.tiny(*(f"{field}='{value}'" for field, value in more.items()))
  with registry.trusting(trusted or None):
    check_beginning(make_experiment(config, is_trial=True), "new", writes=False)


def a_workdir(theirs):
  theirs.config(model=theirs.mixer)
  return lambda trusted: vitx.load("run", trust_code=trusted)


def workdir_of_phases(theirs):
  a_workdir(theirs)
  shutil.copytree(theirs.run, theirs.place / "phased" / "a")
  (theirs.place / "phased" / "phases.json").write_text('{"phases": ["a"]}')
  return lambda trusted: vitx.load("phased", trust_code=trusted)


def workdirs_source(theirs):
  theirs.config(data=theirs.source)
  return lambda trusted: vitx.evaluate("run", trust_code=trusted)


def workdirs_data(theirs):
  """The case of the original bug report: a config names a data set in its workdir."""
  theirs.features()
  theirs.config(data={"data_dir": "data"})
  return lambda trusted: vitx.evaluate("run", trust_code=trusted, limit=1)


def picture_of_a_workdir(theirs):
  """The data are opened when the figure asks for them, after `open_subject` has returned."""
  theirs.config(data=theirs.source)
  return lambda trusted: open_subject(workdir="run", trust_code=trusted).inputs(1)


def config_of_data(theirs):
  return check_config(theirs.config("theirs.json", model=theirs.mixer))


def phases_of_a_config(theirs):
  return check_config(theirs.config("theirs.json", phases={"a": {"model": theirs.mixer}}))


def check_config(path):
  def use(trusted):
    with registry.trusting(trusted or None):  # like the flag --trust_code
      check_phases(vitx.load_config(path), "new")

  return use


def teacher(theirs):
  theirs.config(model=theirs.mixer)
  more = {"task": "distillation", "task.teacher": theirs.run}
  return lambda trusted: train(trusted, **more)


def init_from(theirs):
  theirs.config(model=theirs.mixer)
  return lambda trusted: train(trusted, init_from=theirs.run)


def data_directory(theirs):
  theirs.features()
  return lambda trusted: train(trusted, **{"data.data_dir": theirs.place / "data"})


def weights_of_a_run(theirs):
  return lambda trusted: train(trusted, init_from=theirs.weights("x.pth"))


def weights(name):
  return lambda theirs: lambda trusted: foreign.read_variables(theirs.weights(name), 10)


def hub_name(theirs):
  """The Hub's library has the file in its cache, and returns its path."""
  library, errors = types.ModuleType("huggingface_hub"), types.ModuleType("huggingface_hub.errors")
  errors.LocalEntryNotFoundError = type("Local", (OSError,), {})
  errors.EntryNotFoundError = type("Entry", (Exception,), {})
  library.errors = errors

  def hf_hub_download(name, file, *, revision=None, local_files_only=False):
    if file == "vitx.json":
      raise errors.LocalEntryNotFoundError if local_files_only else errors.EntryNotFoundError
    return theirs.weights(file)

  library.hf_hub_download = hf_hub_download
  library.hf_hub_url = library.get_hf_file_metadata = lambda *_, **__: None
  theirs.modules("huggingface_hub", library)
  theirs.modules("huggingface_hub.errors", errors)
  return lambda trusted: train(trusted, init_from="hf:owner/name")


def image(theirs):
  content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
  (theirs.place / "x.png").write_bytes(content)
  return lambda trusted: vitx.predict("run", ["x.png"], trust_code=trusted)


def notebook(theirs):
  """Each cell that opens the workdir is refused, whatever the cells before it have opened."""
  theirs.config(data=theirs.source)
  cells = json.loads((runs.ROOT / "colab" / "evaluate_checkpoint.ipynb").read_text())["cells"]
  text = {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}

  def use(trusted):
    names = {"sys": sys, "os": os, "WORKDIR": "run", "FOREIGN": "", "IMAGES": []}
    exec(text["imports"], names)
    names["loaded"] = vitx.load("run")
    for cell in ("evaluate", "predict", "maps"):
      with pytest.raises(ConfigError, match=r"theirs\d+:load.*trust_code"):
        exec(text[cell], names)
    raise ConfigError("theirs ... trust_code")

  return use


@pytest.mark.parametrize(
  "arguments",
  [
    ["config", "theirs.json"],
    ["evaluate", "--workdir", "run", "--limit", "1"],
    ["config", "digits"],  # reads the shipped file, not the stranger's digits.py
    ["config", "theirs"],
    ["config", "theirs.cfg"],
  ],
  ids=" ".join,
)
def test_no_command_looks_for_packages_among_their_files(
  arguments, finished_run, data_dir, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
  theirs = Theirs(finished_run[0], data_dir, tmp_path, None)
  theirs.config("theirs.json")
  for name in ("digits", "theirs", "theirs.cfg"):
    (tmp_path / name).write_text(THEIRS)
  main(arguments)
  assert str(tmp_path) not in sys.path and not (tmp_path / "imported").exists()
  (tmp_path / "mine.py").write_text(f"from {theirs.name} import Mixer\nget_config = None")
  assert main(["config", "mine.py"]) == 1  # a file of the user's own, which is code
  assert str(tmp_path) in sys.path and (tmp_path / "imported").exists()
  sys.modules.pop(theirs.name, None)


@pytest.mark.slow
def test_python_m_vitx_finds_no_package_among_their_files(tmp_path):
  for name in ("ml_collections", "wandb", "json"):
    (tmp_path / f"{name}.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
  done = subprocess.run(
    [sys.executable, "-m", "vitx", "config", "digits"],
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(runs.ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0 and json.loads(done.stdout)["seed"] == 0, done.stderr
  assert not (tmp_path / "imported").exists()


# The ways in which a stranger's file is read, and whether --trust_code lets its code run.
WAYS = [
  (a_workdir, True),
  (workdir_of_phases, True),
  (workdirs_source, True),
  (workdirs_data, True),
  (picture_of_a_workdir, True),
  (config_of_data, True),
  (phases_of_a_config, True),
  (teacher, True),
  (init_from, True),
  (data_directory, True),
  (weights_of_a_run, False),
  *((weights(name), False) for name in ("x.zip.pth", "x.npz", "x.safetensors", "x.bin")),
  (hub_name, False),
  (image, False),
  (notebook, False),
]


@pytest.mark.parametrize(
  ("way", "lets_in"),
  all_but(a_workdir, config_of_data, weights_of_a_run, image, of=WAYS),
  ids=lambda way: getattr(way, "__name__", ""),
)
def test_each_way_in(way, lets_in, finished_run, data_dir, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
  touch = (tmp_path / "imported").touch
  monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: touch())
  modules = functools.partial(monkeypatch.setitem, sys.modules)
  theirs = Theirs(finished_run[0], data_dir, tmp_path, modules)
  use = way(theirs)
  with pytest.raises(ConfigError) as refused:
    use(False)
  assert not (tmp_path / "imported").exists() and not (tmp_path / "new").exists()
  assert not lets_in or ("theirs" in str(refused.value) and "trust_code" in str(refused.value))
  try:
    with contextlib.suppress(ConfigError):  # the stranger's files need not work
      use(True)
  finally:
    sys.modules.pop(theirs.name, None)
    tfds.features.FeatureConnector._registered_features.pop(f"{theirs.name}.Scan", None)
  assert (tmp_path / "imported").exists() == lets_in
