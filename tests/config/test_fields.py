"""Every config field is declared once, with its default, type, range and meaning."""

import dataclasses

import pytest
from ml_collections import ConfigDict

from vitx.checkpoints.workdir import flatten
from vitx.config import default_config, fields, with_overrides
from vitx.config.checks import PositiveInt, check_value
from vitx.config.describe import describe
from vitx.config.errors import ConfigError
from vitx.config.fields import declarations, default_of, named_choices, read_settings, suggest
from vitx.config.registry import TABLES, table_of
from vitx.config.settings import Group

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
  read_settings(default_config())


@pytest.mark.parametrize(
  ("path", "value"),
  [
    ("seed", True),
    ("batch_size", 1e9),
    ("learning_rate", NAN),
    ("learning_rate", None),
    ("freeze", "stem/.*"),
    ("data.value_range", (0,)),
  ],
)
def test_a_value_out_of_range_is_named_in_one_line(path, value):
  with pytest.raises(ConfigError) as error:
    read_settings(config(path, value))
  assert f"{path}={value!r}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("path", declarations())
def test_a_check_passes_or_names_the_field(path):
  for value in (-1, 0, 1e9, NAN, "text", True, None):
    try:
      check_value(value, path, declarations()[path].type)
    except ConfigError as error:
      assert str(error).startswith(path) and "\n" not in str(error), value


def test_every_default_equals_its_declaration():
  defaults = flatten({key: value for key, value in default_config().to_dict().items()})
  choices = {path for path in defaults if path.split(".")[0] in (*named_choices(), "phases")}
  present = declarations().keys() - {*fields.ABSENT}
  assert defaults.keys() - choices == present - {*named_choices()} - {"phases"}
  for path in present:
    value = fields.find(default_config(), path)
    value = Group(value) if isinstance(value, ConfigDict) else value
    assert value == default_of(path) and type(value) is type(default_of(path)), path


def test_an_absent_field_can_be_set():
  assert "data.exclude" not in describe(default_config())
  config = with_overrides(default_config(), "data.exclude=audit/duplicates.csv")
  assert fields.read_settings(config).data.exclude == "audit/duplicates.csv"
  assert fields.read_settings(default_config()).data.exclude is None


def test_one_line_declares_a_field(monkeypatch):
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
  with pytest.raises(ValueError, match=r"patience='x' must be an integer in \[1"):
    with_overrides(default_config(), "patience=x")
  with pytest.raises(ValueError, match=r"no field 'early_stop'\. Did you mean 'patience'"):
    with_overrides(default_config(), "early_stop=5")
  row = describe(default_config())["patience"]
  assert (row.value, row.kind) == (3, "int in [1, 1000000]")
  assert row.meaning == "evaluations without a better one that a run endures."


def test_other_names_lead_to_a_field():
  known = {*declarations(), *named_choices()}
  for path, field in declarations().items():
    section = path.removesuffix(field.name)
    for alias, below in field.metadata.get("aliases", {}).items():
      assert section + alias not in known and f"{path}{below}" in suggest(section + alias, [])


def test_tables_of_named_choices_exist():
  for path in named_choices():
    assert default_of(path)["name"] in table_of(path), path
  registered = {path for path, field in declarations().items() if "Registered" in str(field.type)}
  assert registered <= TABLES.keys() and all(map(table_of, TABLES))
