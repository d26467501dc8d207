"""A directory that somebody else made runs none of their code, unless it is trusted."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
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
from vitx.inference.publish import publish
from vitx.inference.visualize import open_subject
from vitx.interop import foreign
from vitx.training.experiment import make_experiment
from vitx.training.phases import check as check_phases
from vitx.training.restore import check_beginning

pytestmark = pytest.mark.usefixtures("shared_programs")

# This module is beside the stranger's files, in the working directory; each file below names it.
MODULE = """
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
IMAGE = "tensorflow_datasets.core.features.image_feature.Image"
COUNT = itertools.count()


class Stranger:
  """A copy of a workdir, and a module beside it, whose name no other test has imported."""

  def __init__(self, run, data, place):
    self.run, self.data, self.place = shutil.copytree(run, place / "run"), data, place
    self.name = f"theirs{next(COUNT)}"
    (place / f"{self.name}.py").write_text(MODULE)
    self.mixer = {"token_mixer": {"name": f"{self.name}:Mixer"}}
    self.source = {"source": f"{self.name}:load"}

  def has_run(self):
    return (self.place / "imported").exists()

  def config(self, path="run/config.json", **sections):
    """Writes the run's config with changed sections, and returns its path."""
    config = json.loads((self.run / "config.json").read_text())
    for section, change in sections.items():
      config[section] = {**config.get(section, {}), **change}
    (self.place / path).write_text(json.dumps(config))
    return str(self.place / path)

  def weights(self, name):
    """Writes a pickle that calls the module's `load()`, in the format of the name's suffix."""
    content = f"c{self.name}\nload\n(tR.".encode()
    if name == "x.pth":
      (self.place / name).write_bytes(content)
      return str(self.place / name)
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': ()}".ljust(117) + b"\n"
    with zipfile.ZipFile(name, "w") as archive:
      archive.writestr("a/data.pkl", content)
      archive.writestr("a.npy", b"\x93NUMPY\x01\x00v\x00" + header + content)
    return str(self.place / name)

  def features(self, kind="as_written"):
    """Copies the prepared digits, and makes them name a feature class of the module."""
    shutil.copytree(self.data, self.place / "data")
    (path,) = (self.place / "data").rglob("features.json")
    text = path.read_text().replace(IMAGE, f"{self.name}.Scan")
    if kind == "snake_case":
      text = text.replace("pythonClassName", "python_class_name")
    if kind == "legacy":
      shape = {"shape": [8, 8, 1], "dtype": "uint8", "encoding_format": "png"}
      content = {"image": {"type": f"{self.name}.Scan", "content": shape}}
      features = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
      text = json.dumps({"type": features, "content": content})
    path.write_text(text)
    return {"data_dir": str(self.place / "data")}


@pytest.fixture
def theirs(finished_run, data_dir, tmp_path, monkeypatch):
  """A stranger's workdir and module in the current folder."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
  stranger = Stranger(finished_run[0], data_dir, tmp_path)
  yield stranger
  sys.modules.pop(stranger.name, None)
  tfds.features.FeatureConnector._registered_features.pop(f"{stranger.name}.Scan", None)


# Each field of a config.json that may name code, with such a name.
FIELDS = {
  "mixer": {"model": {"token_mixer": {"name": "theirs:Mixer"}}},
  "mixer_as_text": {"model": {"token_mixer": "theirs:Mixer"}},
  "edges": {"model": {"token_mixer": {"name": "pattern", "edges": "theirs:edges"}}},
  "spaces": {"model": {"token_mixer": {"name": "their mixer:!"}}},
  "optimizer": {"optimizer": {"name": "theirs:Mixer"}},
  "source": {"data": {"source": "theirs:Mixer"}},
  "source_of_vitx": {"data": {"source": "vitx.runtime.environment:subprocess"}},
  "validation_choice": {"data": {"validation_choice": "theirs:Mixer"}},
  "phase": {"phases": {"a": {"model": {"token_mixer": "theirs:Mixer"}}}},
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_config_file_names_no_code(field, theirs):
  path = theirs.config("theirs.json", **FIELDS[field])
  with pytest.raises(ConfigError, match="trust_code"):
    vitx.load_config(path)
  with registry.trusting(True):
    assert vitx.load_config(path).seed == 0


def test_a_command_needs_the_flag(theirs, capsys):
  arguments = ["config", theirs.config("theirs.json", model=theirs.mixer)]
  assert main(arguments) == 1
  error = capsys.readouterr().err
  assert f"{theirs.name}:Mixer" in error and "--trust_code" in error and not theirs.has_run()
  assert main([*arguments, "--trust_code"]) == 0


@pytest.mark.parametrize("kind", ["as_written", "snake_case", "legacy"])
def test_a_data_directory_names_no_code(kind, theirs):
  data = {"source": "digits", **theirs.features(kind)}
  for trusted in (None, False):
    with registry.trusting(trusted), pytest.raises(ConfigError, match=r"theirs.*trust_code"):
      open_dataset(data)
  assert not theirs.has_run()
  if kind != "legacy":
    with registry.trusting(True):
      assert open_dataset(data).info.class_names == tuple("0123456789")
    assert theirs.has_run()


def train(trusted, **more):
  """Checks a run of the user's own, with fields that name the stranger's files."""
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
  theirs.config(data=theirs.features())
  return lambda trusted: vitx.evaluate("run", trust_code=trusted, limit=1)


def picture_of_a_workdir(theirs):
  """The data are opened when the figure asks for them, after `open_subject` has returned."""
  theirs.config(data=theirs.source)
  return lambda trusted: open_subject(workdir="run", trust_code=trusted).inputs(1)


def repository(theirs):
  """A published model whose config was changed."""
  publish("run", "published")
  path = theirs.place / "published" / "vitx.json"
  record = json.loads(path.read_text())
  record["config"]["model"] |= theirs.mixer
  path.write_text(json.dumps(record))
  return lambda trusted: vitx.load("published", trust_code=trusted)


def phases_of_a_config(theirs):
  path = theirs.config("theirs.json", phases={"a": {"model": theirs.mixer}})

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


def swap_from(theirs, trusted):
  with registry.trusting(trusted or None):  # like the flag --trust_code
    make_experiment(vitx.load_config(f"finetune:swap,init_from={theirs.run}"), is_trial=True)


def network_of_a_base(theirs):
  """The user's own config takes over the base's network and data."""
  theirs.config(model={"name": f"{theirs.name}:Mixer"})
  return lambda trusted: swap_from(theirs, trusted)


def data_of_a_base(theirs):
  theirs.config(data=theirs.source)
  return lambda trusted: swap_from(theirs, trusted)


def weights_of_a_run(theirs):
  return lambda trusted: train(trusted, init_from=theirs.weights("x.pth"))


def weights(name):
  return lambda theirs: lambda trusted: foreign.read_variables(theirs.weights(name), 10)


def image(theirs):
  content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
  (theirs.place / "x.png").write_bytes(content)
  return lambda trusted: vitx.predict("run", ["x.png"], trust_code=trusted)


# The ways in which a stranger's file is read, and whether --trust_code lets its code run.
WAYS = [
  (a_workdir, True),
  (workdir_of_phases, True),
  (workdirs_source, True),
  (workdirs_data, True),
  (picture_of_a_workdir, True),
  (repository, True),
  (phases_of_a_config, True),
  (teacher, True),
  (init_from, True),
  (network_of_a_base, True),
  (data_of_a_base, True),
  (weights_of_a_run, False),
  *((weights(name), False) for name in ("x.zip.pth", "x.npz")),
  (image, False),
]


@pytest.mark.parametrize(
  ("way", "lets_in"),
  all_but(
    *(a_workdir, picture_of_a_workdir, phases_of_a_config, repository, weights_of_a_run, image),
    network_of_a_base,
    of=WAYS,
  ),
  ids=lambda way: getattr(way, "__name__", ""),
)
def test_each_way_in_needs_trust(way, lets_in, theirs, monkeypatch):
  touch = (theirs.place / "imported").touch
  monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: touch())
  use = way(theirs)
  with pytest.raises(ConfigError) as refused:
    use(False)
  assert not theirs.has_run() and not (theirs.place / "new").exists()
  assert not lets_in or ("theirs" in str(refused.value) and "trust_code" in str(refused.value))
  with contextlib.suppress(ConfigError, AttributeError):  # the stranger's files need not work
    use(True)
  assert theirs.has_run() == lets_in


@pytest.mark.parametrize(
  "command",
  [
    "evaluate --workdir run --source NAME:missing",
    "probe --workdir run --source NAME:missing",
    "visualize patterns --out out --config digits:softmax,token_mixer=NAME:missing",
  ],
)
def test_code_on_the_command_line_needs_no_flag(command, theirs, capsys):
  """The module lacks the name, so that nothing is computed after the import."""
  assert main([word.replace("NAME", theirs.name) for word in command.split()]) == 1
  assert theirs.has_run() and "cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize("before", ["init_from", "task.teacher"])
def test_a_run_of_the_code_that_a_config_names_is_read(before, theirs):
  theirs.config(model=theirs.mixer)
  more = {"task": "distillation"} if before == "task.teacher" else {}
  train(False, **more, **{before: theirs.run, "token_mixer": f"{theirs.name}:Mixer"})
  assert theirs.has_run()


@pytest.mark.parametrize(
  "arguments",
  [
    ["config", "digits"],  # reads the shipped file, not the stranger's digits.py
    ["config", "theirs"],
    ["evaluate", "--workdir", "run", "--limit", "1"],
  ],
  ids=" ".join,
)
def test_no_command_looks_for_packages_among_their_files(arguments, theirs, monkeypatch):
  monkeypatch.setattr(sys, "path", [x for x in sys.path if x not in ("", str(theirs.place))])
  for name in ("digits", "theirs"):
    (theirs.place / name).write_text(MODULE)
  main(arguments)
  assert str(theirs.place) not in sys.path and not theirs.has_run()
  (theirs.place / "mine.py").write_text(f"from {theirs.name} import Mixer\nget_config = None")
  with pytest.raises(TypeError, match="not callable"):
    main(["config", "mine.py"])  # a file of the user's own, which is code
  assert str(theirs.place) in sys.path and theirs.has_run()


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
