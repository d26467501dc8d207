"""The description of each config field: its value, the values that it takes, its meaning."""

from ml_collections import ConfigDict

from vitx.config.describe import complete, describe, read_meanings, show_kind
from vitx.config.loader import load_config


def test_every_field_has_a_meaning():
  for row in ("digits", "vix_cifar10:vip"):
    described = describe(load_config(row))
    common = ("optimizer.", "schedule.", "model.norm.")
    without = [path for path, field in described.items() if not field.meaning]
    assert [path for path in without if not path.startswith(common)] == []


def test_meanings_come_from_docstrings():
  assert show_kind(tuple[int, ...] | None) == "tuple[int, ...] or None"

  class Base:
    """Something.

    Attributes:
      a, b: of both
        lines.
      c: of the base.
    """

  class Derived(Base):
    """More.

    Attributes:
      c: of the derived.
    """

  both = dict.fromkeys(("a", "b"), "of both lines.")
  assert read_meanings(Derived) == both | {"c": "of the derived."}


def test_a_users_fields_follow_the_declared_ones():
  config = load_config("digits")
  with config.unlocked():
    config.data.seasons, config.mine = 5, {"depth": 3}
  described = describe(config)
  assert list(described)[-2:] == ["data.seasons", "mine.depth"]
  assert (described["data.seasons"].value, described["data.seasons"].kind) == (5, "int")
  assert complete(config)["data"]["seasons"] == 5 and complete(config)["mine"] == {"depth": 3}


def test_a_config_without_phases_is_described():
  """A config file may make its config without `default_config`."""
  assert complete(ConfigDict({"batch_size": 16})) == {"batch_size": 16, "phases": {}}
