"""Every config field is declared once, with its default, type, range and meaning."""

import ast
import dataclasses
import pathlib
import re

import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

import vitx
from vitx.checkpoints.workdir import flatten
from vitx.config import default_config, fields, with_overrides
from vitx.config.checks import PositiveInt, check_value
from vitx.config.describe import describe
from vitx.config.errors import ConfigError
from vitx.config.fields import check_config, declarations, default_of, named_choices, suggest
from vitx.config.registry import import_name

NAN = float("nan")


def config(path, value):
  """Returns the default config with a value that ml_collections itself would refuse."""
  nested = default_config().to_dict()
  *parents, last = path.split(".")
  node = nested
  for parent in parents:
    node = node[parent]
  assert last in node
  node[last] = value
  return ConfigDict(nested)


def test_the_defaults_pass():
  check_config(default_config())


@pytest.mark.parametrize(
  ("path", "value"),
  [
    ("seed", 12345678901234567890),
    ("seed", True),
    ("batch_size", 1e9),
    ("learning_rate", True),
    ("learning_rate", NAN),
    ("learning_rate", None),
    ("freeze", "stem/.*"),
    ("checkpoint.keep", "two"),
    ("data.device", "some"),
    ("augment.mixup", NAN),
    ("task.label_smoothing", 2),
    ("tracking", None),
    ("optimizer", None),
    ("schedule", None),
    ("model", None),
    ("task", 3),
  ],
)
def test_what_is_out_of_range_is_named_in_one_line(path, value):
  with pytest.raises(ConfigError) as error:
    check_config(config(path, value))
  assert f"{path}={value!r}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("path", declarations())
def test_a_check_says_yes_or_names_the_field(path):
  for value in (-1, 0, 1e9, NAN, "text", True, None):
    try:
      check_value(value, path, declarations()[path].type)
    except ConfigError as error:
      assert str(error).startswith(path) and "\n" not in str(error), value


def test_every_default_is_that_of_the_declaration():
  found = flatten({key: value for key, value in default_config().to_dict().items()})
  choices = {path for path in found if path.split(".")[0] in (*named_choices(), "phases")}
  assert found.keys() - choices == declarations().keys() - named_choices().keys() - {"phases"}
  for path in declarations():
    value = fields.find(default_config(), path)
    value = value.to_dict() if isinstance(value, ConfigDict) else value
    assert value == default_of(path) and type(value) is type(default_of(path)), path


def test_no_other_class_has_a_default_of_a_field():
  """Only the declaration of a config field has its default.

  Another class may have a field of that name, whose default must differ.
  """
  ours = {path.rpartition(".")[2]: each.type for path, each in declarations().items()}
  room = pathlib.Path(fields.__file__).parents[1]
  for path in sorted(room.rglob("*.py")):
    tree = ast.parse(path.read_text())
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
      said = {
        line.target.id: ast.literal_eval(line.value)
        for line in owner.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Constant)
      }
      same = {name for name in said.keys() & ours.keys() - {"seed"} if is_default(name, said[name])}
      assert not same or path == pathlib.Path(fields.__file__), f"{path}: {owner.name} has {same}"
    for node in ast.walk(tree):  # config.get("field", default)
      if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
        about = ast.unparse(node.func.value)
        assert (
          len(node.args) < 2
          or not about.endswith("config")
          or not isinstance(node.args[1], ast.Constant)
        ), f"{path}: {ast.unparse(node)}"


def is_default(name, value):
  paths = [path for path in declarations() if path.rpartition(".")[2] == name]
  return value is not None and any(default_of(path) == value for path in paths)


def test_a_field_is_one_line(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Longer(fields.RunSettings):
    """A run of somebody who counts.

    Attributes:
      patience: evaluations without a better one that a run endures.
    """

    patience: PositiveInt = fields.declare(3, "early_stop")  # noqa: RUF009

  monkeypatch.setattr(fields, "RunSettings", Longer)
  assert default_config().patience == 3
  assert with_overrides(default_config(), "patience=5").patience == 5
  with pytest.raises(ValueError, match=r"patience='x' must be an integer, such as 3"):
    with_overrides(default_config(), "patience=x")
  with pytest.raises(ValueError, match=r"no field 'early_stop'\. Did you mean 'patience'"):
    with_overrides(default_config(), "early_stop=5")
  with pytest.raises(ConfigError, match="patience=0 is out of range"):
    check_config(with_overrides(default_config(), "patience=0"))
  row = describe(default_config())["patience"]
  assert (row.value, row.kind) == (3, "int in [1, 1000000]")
  assert row.meaning == "evaluations without a better one that a run endures."


def test_other_names_are_no_fields_and_lead_to_one():
  known = declarations().keys() | named_choices().keys()
  for path, each in declarations().items():
    section = path.removesuffix(each.name)
    for alias, below in each.metadata.get("aliases", {}).items():
      assert section + alias not in known and f"{path}{below}" in suggest(section + alias, [])


def test_tables_of_named_choices_are_there():
  for path, choice in named_choices().items():
    assert default_of(path)["name"] in import_name(choice.name), path
  for path in ("data.source", "data.validation_choice"):
    notes = str(declarations()[path].type)
    assert import_name(re.search(r"name='([^']*)'", notes)[1]), path


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: vitx.train("digits", "run"), r"config='digits' must be a ConfigDict, such as vitx\."),
    (lambda: vitx.train({}, "run"), "config={} must be a ConfigDict"),
    (lambda: vitx.train(ConfigDict(), "run"), r"has no 'data'; begin with vitx\.config\.default_"),
    (lambda: vitx.train(FrozenConfigDict(default_config()), "run"), "config is a FrozenConfigDict"),
    (lambda: vitx.train(default_config(), None), "workdir=None must be the path of a directory"),
    (lambda: vitx.load(None), "workdir=None must be the path of a directory"),
    (lambda: vitx.evaluate(3), "workdir=3 must be the path of a directory"),
    (lambda: vitx.predict(3, ["x.png"]), "workdir=3 must be the path of a directory"),
    (lambda: vitx.load_config(3), r"config=3 must name a file, such as 'configs/digits\.py:"),
    (lambda: vitx.load_config(None), "config=None must name a file"),
  ],
)
def test_arguments_of_another_kind_are_one_line(call, message):
  with pytest.raises(ConfigError, match=message) as error:
    call()
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", [check_config, describe])
def test_a_number_of_numpy_is_named_since_no_run_could_store_it(read):
  config = default_config()
  config.optimizer.unlock().decay = np.float32(0.25)
  with pytest.raises(ConfigError, match=r"^optimizer\.decay=np.float32\(0\.25\) cannot be stored"):
    read(config)


def test_a_path_names_a_config():
  assert vitx.load_config(pathlib.Path("configs/digits.py")).model.name == "vit"
