"""The rule by which "auto" picks an implementation: a JSON file for each kind of device.

`vitx benchmark choose` writes such a file; the CPU's file ships with the package. For every family
of ops the file gives the numbers of tokens, and of matrices (B H) in a call, up to which the masked
path was faster. This module never uses a device.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from vitx.config.errors import ConfigError, listing
from vitx.files import replace_text

# The families of ops that share a rule, each with a description.
FAMILIES = {
  "dense": "softmax over all pairs of tokens",
  "pattern_blocks": "softmax along a pattern, by blocks that hold edges",
  "pattern_runs": "softmax along a pattern that an order of the tokens turns into dense runs",
  "shaped": "shaped attention",
  "linear": "linear attention, and local attention beside it",
  "linformer": "softmax over slots",
  "nystrom": "Nystromformer's attention",
  "fourier": "the Fourier transform",
  "predicted_keys": "softmax over keys that a predictor keeps",
  "chosen_blocks": "softmax over blocks of keys that each example chooses",
  "bilevel": "softmax over regions that each region chooses",
}
SHIPPED = Path(__file__).parent / "choices"
UNMEASURED = "cpu"  # this kind's shipped file is also the file of devices that have none
VARIABLE = "VITX_CHOICES"
FIX = "write it again with `vitx benchmark choose`, or delete it"

Bound = tuple[int, int | Fraction | None]


@dataclasses.dataclass(frozen=True)
class Rule:
  """The choices of "auto" on a kind of device.

  Attributes:
    device_kind: The kind of device for which the rule is made.
    source: The origin of the rule, in words.
    masked: The bounds (N, M) of each family, N rising and M falling. The first bound whose N is at
      least the call's number of tokens decides: "masked" for at most M matrices (`None`: any
      number), otherwise "kernelized". A call with more tokens than all bounds is "kernelized".
  """

  device_kind: str
  source: str
  masked: Mapping[str, tuple[Bound, ...]]

  def is_masked(self, family: str, length: int, matrices: int) -> bool:
    """Returns whether "masked" is picked.

    Args:
      family: A key of `FAMILIES`.
      length: The number of tokens N.
      matrices: The number B H of matrices, N rows each, that the masked path would compute.
    """
    for most_tokens, most_matrices in self.masked[family]:
      if length <= most_tokens:
        return most_matrices is None or matrices <= most_matrices
    return False

  def scaled(self, factor: Fraction) -> "Rule":
    """Returns a rule that picks for `factor` · M matrices the path that this rule picks for M."""
    masked = {
      family: tuple((n, None if limit is None else limit * factor) for n, limit in bounds)
      for family, bounds in self.masked.items()
    }
    return dataclasses.replace(self, masked=masked)

  def to_json(self) -> dict[str, Any]:
    """Returns the rule in the form that a run records and `from_json` reads."""
    masked = {family: [list(bound) for bound in found] for family, found in self.masked.items()}
    return {"device_kind": self.device_kind, "source": self.source, "masked": masked}

  @classmethod
  def from_json(cls, stored: Mapping[str, Any], where: str, fix: str) -> "Rule":
    """Returns the rule that `to_json` recorded, without the families that are missing there.

    Args:
      stored: The recorded JSON.
      where: The origin of the JSON, for error messages.
      fix: The remedy that error messages name.

    Raises:
      ConfigError: The JSON is damaged.
    """
    try:
      kind, source, masked = stored["device_kind"], stored["source"], dict(stored["masked"])
    except (KeyError, TypeError, ValueError) as error:
      raise ConfigError(f"{where} holds no rule for implementation='auto': {fix}.") from error
    bounds = {
      family: _parse_bounds(masked[family], f"{where}: {family}", fix)
      for family in FAMILIES
      if family in masked
    }
    return cls(kind, source, bounds)


def user_directory() -> Path:
  """Returns the directory of a user's rules: `VITX_CHOICES`, or one in the configuration directory.

  Raises:
    ConfigError: `VITX_CHOICES` is a file.
  """
  given = os.environ.get(VARIABLE)
  if given:
    if Path(given).is_file():
      raise ConfigError(f"{VARIABLE}={given!r} is a file. Name the directory of the file.")
    return Path(given)
  base = os.environ.get("XDG_CONFIG_HOME")
  return (Path(base) if base else Path.home() / ".config") / "vitx" / "choices"


def file_name(device_kind: str) -> str:
  """Returns the name of a device kind's file: "NVIDIA H100 PCIe" has `nvidia_h100_pcie.json`."""
  return re.sub(r"[^a-z0-9]+", "_", device_kind.lower()).strip("_") + ".json"


def load_rule(device_kind: str) -> Rule:
  """Loads the rule for a kind of device: the user's file, else the shipped one, else the CPU's.

  The rule's `source` says which one it is.

  Raises:
    ConfigError: The file is damaged.
  """
  return _load(device_kind, user_directory())


@functools.lru_cache(maxsize=64)
def _load(device_kind: str, directory: Path) -> Rule:
  path, source = _find(device_kind, directory)
  families = read_families(path)
  masked = {
    family: _parse_bounds(families[family]["masked"], f"{path}: {family}", FIX)
    for family in FAMILIES
  }
  return Rule(device_kind, source, masked)


def _find(device_kind: str, directory: Path) -> tuple[Path, str]:
  own, shipped = directory / file_name(device_kind), SHIPPED / file_name(device_kind)
  if own.exists():
    return own, str(own)
  if shipped.exists():
    return shipped, f"{shipped.name} of the package"
  path = SHIPPED / file_name(UNMEASURED)
  return path, (
    f"{path.name} of the package, since {device_kind!r} has not been measured"
    " (`vitx benchmark choose` measures it)"
  )


def find_families(device_kind: str) -> dict[str, Any]:
  """Returns the bounds and measurements of a device kind, in the form of `read_families`."""
  return read_families(_find(device_kind, user_directory())[0])


def read_families(path: Path) -> dict[str, Any]:
  """Reads the bounds ("masked") and the measurements ("measured") of each family from a file.

  Raises:
    ConfigError: The file cannot be read, is not JSON, or its families are not those in
      `FAMILIES`. The message names the file and the remedy.
  """
  try:
    families = json.loads(path.read_text(encoding="utf-8"))["families"]
    found = {family: dict(entry) for family, entry in families.items()}
  except OSError as error:
    raise ConfigError(f"{path} cannot be read: {error}") from error
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ConfigError(f"{path} is not a file that `vitx benchmark choose` wrote: {FIX}.") from error
  if found.keys() != FAMILIES.keys() or not all("masked" in entry for entry in found.values()):
    differing = listing(found.keys() ^ FAMILIES.keys()) or "an entry without 'masked'"
    raise ConfigError(
      f"{path} does not have the families of this version of vitx ({differing} differs): {FIX}."
    )
  return found


def write_families(path: Path, device_kind: str, families: Mapping[str, Any]) -> None:
  """Writes a file of families and makes the next `load_rule` of this process read it.

  Args:
    path: The file, `user_directory() / file_name(device_kind)` or another path.
    device_kind: The kind of device that was measured.
    families: All families, in the format of `read_families`.

  Raises:
    ConfigError: The file cannot be written.
  """
  text = json.dumps({"device_kind": device_kind, "families": families}, indent=1)
  text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found.group().split()), text)
  try:
    replace_text(path, text + "\n")
  except OSError as error:
    raise ConfigError(f"out={str(path)!r} cannot be written: {error}") from error
  _load.cache_clear()


def _parse_bounds(stored: Any, where: str, fix: str) -> tuple[Bound, ...]:
  """Parses the bounds in a JSON list of pairs.

  Raises:
    ConfigError: N does not rise, or M does not fall.
  """
  try:
    bounds = tuple((length, matrices) for length, matrices in stored)
  except (TypeError, ValueError):
    bounds = ((0, 0),)  # no pairs
  numbers = [x for bound in bounds for x in bound if x is not None]
  if all(type(x) is int for x in numbers):
    lengths = [0, *(length or 0 for length, _ in bounds)]
    limits = [*(math.inf if limit is None else limit for _, limit in bounds), 0]
    rising = all(a < b for a, b in itertools.pairwise(lengths))
    if rising and all(a > b for a, b in itertools.pairwise(limits)):
      return bounds
  raise ConfigError(
    f"{where}: masked={stored!r} must be pairs [N, matrices] with N rising and matrices"
    f" falling: {fix}."
  )
