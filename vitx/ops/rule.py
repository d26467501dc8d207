"""The rule by which "auto" picks an implementation: a JSON file for each kind of device.

`vitx benchmark choose` writes such a file; the CPU's file ships with the package. A family is a
group of ops that share a rule. For every family the file gives the numbers of tokens, and of
matrices (B H) in a call, up to which the masked path was faster. A GPU's file may also have the
fastest tiles of the attention kernels. This module never uses a device.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from vitx.config.errors import ConfigError
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
UNMEASURED = "cpu"  # the kind whose shipped file is used for devices without a file of their own
VARIABLE = "VITX_CHOICES"
FIX = "write it again with `vitx benchmark choose`, or delete it"

# The dtype whose measured tiles are used, for each dtype of q, k and v. Both 16-bit dtypes share
# the tiles of bfloat16.
TILED = {"float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16"}

Bound = tuple[int, int | Fraction | None]


class Launch(NamedTuple):
  """The launch settings of one GPU kernel.

  Attributes:
    blocks: The largest number of rows that one program computes, divided by `TileSizes.block`.
    warps: The number of warps of one program.
    stages: The number of blocks that a program loads ahead, the current one included.
  """

  blocks: int
  warps: int
  stages: int


class TileSizes(NamedTuple):
  """The sizes of the tiles of the attention kernels on GPUs.

  Attributes:
    block: The number b of tokens in a block of a mask that is known before the call. The kernels
      take no blocks of more than b tokens.
    forward, query_gradient, key_gradients: The launch settings of each of the three kernels.
  """

  block: int
  forward: Launch
  query_gradient: Launch
  key_gradients: Launch


MeasuredTiles = Mapping[str, Mapping[int, TileSizes | None]]


@dataclasses.dataclass(frozen=True)
class Rule:
  """The choices of "auto" on a kind of device.

  Attributes:
    device_kind: The kind of device for which the rule is made.
    source: The origin of the rule, in words.
    masked: The bounds (N, M) of each family, N rising and M falling. The first bound whose N is at
      least the call's number of tokens decides: "masked" for at most M matrices (`None`: any
      number), otherwise "kernelized". A call with more tokens than all bounds is "kernelized".
    tiles: The measured tiles of a GPU's attention kernels by dtype and by width of a head; `None`
      where XLA was faster than the kernels.
  """

  device_kind: str
  source: str
  masked: Mapping[str, tuple[Bound, ...]]
  tiles: MeasuredTiles = dataclasses.field(default_factory=dict)

  def is_masked(self, family: str, length: int, matrices: int) -> bool:
    """Returns whether "auto" picks "masked", not "kernelized", for a call of an op.

    Args:
      family: A key of `FAMILIES`.
      length: The number of tokens N.
      matrices: The number B H of matrices, N rows each, that the masked path would compute.
    """
    for most_tokens, most_matrices in self.masked[family]:
      if length <= most_tokens:
        return most_matrices is None or matrices <= most_matrices
    return False

  def pick_tiles(self, dtype: str, width: int, default: TileSizes) -> TileSizes | None:
    """Returns the tiles of the attention kernels, or `None` if XLA must compute the attention.

    Args:
      dtype: The dtype of q, k and v, a key of `TILED`.
      width: The number of channels of a head. The tiles are those of the narrowest measured head
        that is at least as wide, since they fit any narrower head too.
      default: The tiles if there is no such measurement.
    """
    measured = self.tiles.get(TILED[dtype], {})
    return measured[min(wide)] if (wide := [w for w in measured if w >= width]) else default

  def scaled(self, factor: Fraction) -> "Rule":
    """Returns this rule with all limits on the number of matrices multiplied by a factor.

    For `factor` · M matrices, the new rule picks the implementation that this rule picks for M.
    """
    masked = {
      family: tuple((n, None if limit is None else limit * factor) for n, limit in bounds)
      for family, bounds in self.masked.items()
    }
    return dataclasses.replace(self, masked=masked)

  def to_json(self) -> dict[str, Any]:
    """Returns the rule in the form that a run records and `from_json` reads."""
    masked = {family: [list(pair) for pair in bounds] for family, bounds in self.masked.items()}
    stored = {"device_kind": self.device_kind, "source": self.source, "masked": masked}
    return stored | ({"tiles": tiles_to_json(self.tiles)} if self.tiles else {})

  @classmethod
  def from_json(cls, stored: Mapping[str, Any]) -> "Rule":
    """Returns the rule recorded by `to_json`, in which families and tiles may be missing."""
    families = stored["masked"].items()
    masked = {name: parse_bounds(bounds) for name, bounds in families if name in FAMILIES}
    return cls(stored["device_kind"], stored["source"], masked, parse_tiles(stored.get("tiles")))


def user_directory() -> Path:
  """Returns the directory of the user's own rule files.

  It is named by the environment variable `VITX_CHOICES`. Without this variable it is `vitx/choices`
  in the user's configuration directory (`XDG_CONFIG_HOME` or `~/.config`).
  """
  if os.environ.get(VARIABLE):
    return Path(os.environ[VARIABLE])
  base = os.environ.get("XDG_CONFIG_HOME")
  return (Path(base) if base else Path.home() / ".config") / "vitx" / "choices"


def file_name(device_kind: str) -> str:
  """Returns the name of a device kind's file: "NVIDIA H100 PCIe" has `nvidia_h100_pcie.json`."""
  return re.sub(r"[^a-z0-9]+", "_", device_kind.lower()).strip("_") + ".json"


def load_rule(device_kind: str) -> Rule:
  """Loads the rule for a kind of device: the user's file, else the shipped one, else the CPU's.

  The rule's `source` says which one it is.
  """
  return _load(device_kind, user_directory())


@functools.lru_cache(maxsize=64)
def _load(device_kind: str, directory: Path) -> Rule:
  path, source = _find(device_kind, directory)
  try:
    stored = _read(path)
    masked = {name: parse_bounds(stored["families"][name]["masked"]) for name in FAMILIES}
    tiles = parse_tiles(stored["tiles"]["sizes"] if "tiles" in stored else None)
    return Rule(device_kind, source, masked, tiles)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ConfigError(f"{path} is no rule of this version of vitx ({error!r}): {FIX}.") from error


def _find(device_kind: str, directory: Path) -> tuple[Path, str]:
  users, shipped = directory / file_name(device_kind), SHIPPED / file_name(device_kind)
  if users.exists():
    return users, str(users)
  if shipped.exists():
    return shipped, f"{shipped.name} of the package"
  path = SHIPPED / file_name(UNMEASURED)
  return path, (
    f"{path.name} of the package, since {device_kind!r} has not been measured"
    " (`vitx benchmark choose` measures it)"
  )


def read_stored(device_kind: str) -> dict[str, Any]:
  """Returns the content of the file that `load_rule` reads for this kind of device, as JSON.

  Its entry "families" has the bounds ("masked") and the measurements ("measured") of each family.
  The entry "tiles", which may be missing, has the tiles in the form of `tiles_to_json` ("sizes")
  and how they were measured ("measured").
  """
  return _read(_find(device_kind, user_directory())[0])


def _read(path: Path) -> dict[str, Any]:
  return json.loads(path.read_text(encoding="utf-8"))


def write_families(
  path: Path, device_kind: str, families: Mapping[str, Any], tiles: Mapping[str, Any] | None = None
) -> None:
  """Writes a rule file, which has the bounds and the measurements of each family of ops.

  The next call of `load_rule` in this process reads its file again, instead of a cached rule.

  Args:
    path: The file, `user_directory() / file_name(device_kind)` or another path.
    device_kind: The kind of device that was measured.
    families: The entries of all families in `FAMILIES`, in the format of `read_stored`.
    tiles: The tiles in the format of `read_stored`; `None` if none were measured.
  """
  content = {"device_kind": device_kind, "families": families} | ({"tiles": tiles} if tiles else {})
  text = json.dumps(content, indent=1)
  text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match.group().split()), text)
  replace_text(path, text + "\n")
  _load.cache_clear()


def parse_bounds(stored: Any) -> tuple[Bound, ...]:
  """Parses the bounds in a JSON list of pairs (N, M): numbers of tokens and of matrices."""
  return tuple((length, matrices) for length, matrices in stored)


def tiles_to_json(tiles: MeasuredTiles) -> dict[str, Any]:
  """Returns tiles as JSON: a `TileSizes` for each dtype and head width, or null for XLA."""
  return {dtype: {str(width): by[width] for width in sorted(by)} for dtype, by in tiles.items()}


def parse_tiles(stored: Any) -> dict[str, dict[int, TileSizes | None]]:
  """Parses the JSON of `tiles_to_json`; `None` gives no tiles."""
  return {
    dtype: {
      int(width): None if tile is None else TileSizes(tile[0], *(Launch(*x) for x in tile[1:]))
      for width, tile in entries.items()
    }
    for dtype, entries in (stored or {}).items()
  }
