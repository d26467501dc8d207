"""The files of the rule by which "auto" picks: their places, their contents, and errors."""

import itertools
import json
from fractions import Fraction

import jax
import pytest

from vitx.config.errors import ConfigError
from vitx.ops import rule
from vitx.ops.implementation import current_rule, lowering_for

SHIPPED = sorted(rule.SHIPPED.glob("*.json"))


@pytest.fixture
def directory(tmp_path, monkeypatch):
  """The directory of a user's own rules."""
  monkeypatch.setenv(rule.VARIABLE, str(tmp_path))
  return tmp_path


def write(directory, kind, tiles=None, **masked):
  """Writes a user's rule that picks "masked" only within the bounds, with an entry of tiles."""
  families = {name: {"masked": list(masked.get(name, ()))} for name in rule.FAMILIES}
  path = directory / rule.file_name(kind)
  rule.write_families(path, kind, families, tiles)
  return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_rules_never_mask_many_tokens(path):
  shipped = rule.load_rule(json.loads(path.read_text())["device_kind"])
  assert shipped.source == f"{path.name} of the package"
  lengths, counts = (1, 16, 64, 65, 128, 196, 256, 512, 577, 1023), (1, 4, 16, 64, 256, 10**6)
  for family in rule.FAMILIES:
    assert not shipped.is_masked(family, 1024, 1)
    for (n, m), (more, larger) in itertools.product(itertools.product(lengths, counts), repeat=2):
      if n <= more and m <= larger and shipped.is_masked(family, more, larger):
        assert shipped.is_masked(family, n, m)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_rules_state_their_measurements(path):
  for family, entry in rule._read(path)["families"].items():
    measured = entry["measured"]
    assert measured["masked_over_kernelized"], family
    assert {"date", "cores", "versions", "dtype", "heads", "head_dim"} <= measured.keys()


def test_bounds_are_looked_up():
  bounds = ((64, None), (128, 32), (256, 8))
  subject = rule.Rule("any", "a test", {"dense": bounds})
  cases = [(1, 10**9, True), (64, 33, True), (65, 32, True), (65, 33, False), (256, 8, True)]
  for length, matrices, expected in [*cases, (256, 9, False), (257, 1, False)]:
    assert subject.is_masked("dense", length, matrices) == expected


def test_a_scaled_rule_counts_matrices_by_its_factor():
  unscaled = rule.Rule("any", "a test", {"dense": ((64, None), (128, 32))})
  for factor in (Fraction(1, 4), Fraction(1, 3), Fraction(1), Fraction(8)):
    scaled = unscaled.scaled(factor)
    for matrices in (12, 24, 30, 33, 36, 96):
      for length in (64, 128, 129):
        picked = scaled.is_masked("dense", length, matrices * factor)
        assert picked == unscaled.is_masked("dense", length, matrices)


def test_a_file_of_a_user_takes_precedence(directory):
  path = write(directory, "cpu", dense=[[64, None], [512, 4]])
  loaded = rule.load_rule("cpu")
  assert loaded.source == str(path) and loaded.masked["dense"] == ((64, None), (512, 4))
  assert loaded.masked["linear"] == ()
  write(directory, "cpu", linear=[[8, 1]])  # a process reads the rule that it has written
  assert rule.load_rule("cpu").masked["linear"] == ((8, 1),)


def test_a_variable_names_the_directory_of_a_user(monkeypatch, tmp_path):
  monkeypatch.delenv(rule.VARIABLE)
  monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
  assert rule.user_directory() == tmp_path / "vitx" / "choices"
  monkeypatch.setenv("XDG_CONFIG_HOME", "")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert rule.user_directory() == tmp_path / ".config" / "vitx" / "choices"


def test_an_unmeasured_device_follows_the_shipped_rule_of_the_cpu(directory):
  write(directory, "cpu", dense=[[512, None]])  # the user's file is for no other device
  loaded = rule.load_rule("NVIDIA H100 80GB HBM3")
  assert "'NVIDIA H100 80GB HBM3' has not been measured" in loaded.source
  assert "cpu.json of the package" in loaded.source
  assert loaded.masked != rule.load_rule("cpu").masked
  path = write(directory, "NVIDIA H100 80GB HBM3", shaped=[[16, 2]])
  assert path.name == "nvidia_h100_80gb_hbm3.json"
  assert rule.load_rule("NVIDIA H100 80GB HBM3").masked["shaped"] == ((16, 2),)


def test_a_program_for_another_platform_follows_its_file(directory):
  path = write(directory, "tpu", shaped=[[16, 2]])
  assert current_rule().device_kind == jax.devices()[0].device_kind
  with lowering_for("tpu"):
    assert current_rule().source == str(path)


@pytest.mark.parametrize(
  "text",
  ["", "{", "[]", '{"families": []}', '{"families": {"dense": {"masked": []}}}'],
)
def test_a_damaged_file_is_named_with_the_fix(directory, text):
  path = directory / "cpu.json"
  path.write_text(text)
  with pytest.raises(ConfigError, match=r"cpu\.json.*vitx benchmark choose") as caught:
    rule.load_rule("cpu")
  assert str(path) in str(caught.value)


TILES = {"bfloat16": {64: rule.TileSizes(64, *[rule.Launch(2, 8, 3)] * 3), 128: None}}


def test_bounds_and_tiles_are_stored_loaded_and_recorded(directory):
  entry = {"sizes": rule.tiles_to_json(TILES), "measured": {"date": "2026-11-26"}}
  write(directory, "cpu", entry, dense=[[64, None], [512, 4]])
  loaded = rule.load_rule("cpu")
  assert loaded.tiles == TILES
  assert rule.read_stored("cpu")["tiles"] == json.loads(json.dumps(entry))
  stored = json.loads(json.dumps(loaded.to_json()))
  assert stored["tiles"]["bfloat16"] == {"64": [64, *[[2, 8, 3]] * 3], "128": None}
  assert rule.Rule.from_json(stored) == loaded
  assert loaded.scaled(Fraction(2)).tiles == TILES
  del stored["tiles"]  # as recorded by an older version
  assert rule.Rule.from_json(stored).tiles == {}
  write(directory, "cpu")
  assert rule.load_rule("cpu").tiles == {} and "tiles" not in rule.read_stored("cpu")
  assert "tiles" not in rule.load_rule("cpu").to_json()
