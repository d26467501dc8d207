"""The published weights that vitx knows by name: `vitx convert --list`.

A new entry is a line of `published.csv`. Tests compare its parameters with those of the network of
its config.
"""

import csv
import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

from vitx.config import registry
from vitx.config.errors import ConfigError, naming
from vitx.config.loader import is_text, load_config
from vitx.config.settings import to_config
from vitx.interop import hub

# Writers of PyTorch's files end a name with the first digits of the file's SHA-256.
_DIGEST = re.compile(r"-([0-9a-f]{8})\.")


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
  """Weights that a project has published.

  Attributes:
    name: The source that `init_from` and `vitx convert` take: `timm:NAME`, or the name of the file
      if timm's repositories lack it.
    row: The config of the network, `FILE:ROW` or `FILE:ROW,field=value`.
    parameters: The number of parameters, including those of a published head.
    address: The address of the authors' file.
    classes: The number of classes of the head, or 0 for weights without a head.
    size: The side in pixels of the images for which the network's positions were trained.
    license: The license of the weights, as their authors state it.
  """

  name: str
  row: str
  parameters: int
  address: str
  classes: int
  size: int
  license: str

  @property
  def file(self) -> str:
    """Returns the name of the authors' file."""
    return self.address.rpartition("/")[2]

  @property
  def digest(self) -> str:
    """Returns the first digits of the SHA-256 of the authors' file, or "" if it is not known."""
    match = _DIGEST.search(self.file)
    return match[1] if match else ""

  @property
  def config(self) -> str:
    """Returns `row`, followed by the override of the number of classes if there is a head."""
    return f"{self.row},model.num_classes={self.classes}" if self.classes else self.row

  def __str__(self) -> str:
    head = f"{self.classes:,} classes" if self.classes else "no head"
    digest = f"SHA-256 {self.digest}..." if self.digest else "SHA-256 not known"
    return (
      f"{self.name}\n  {self.parameters:,} parameters, {self.size} pixels, {head}, {self.license}\n"
      f"  config  {self.row}\n  file    {self.address} ({digest})"
    )


def _read() -> tuple[PublishedWeights, ...]:
  with Path(__file__).with_name("published.csv").open(newline="") as file:
    rows = [
      {**row, **{name: int(row[name]) for name in ("parameters", "classes", "size")}}
      for row in csv.DictReader(file)
    ]
  return tuple(PublishedWeights(**row) for row in rows)  # type: ignore[arg-type]


WEIGHTS = _read()


def look_up(source: str) -> PublishedWeights | None:
  """Returns the published weights that a source names, or `None` if vitx does not know them.

  Args:
    source: The path of a file, `timm:NAME` or `hf:timm/NAME`. A revision is ignored.
  """
  if hub.is_name(source):
    name = f"timm:{hub.split(source)[0].removeprefix('timm/')}"
    return next((x for x in WEIGHTS if x.name == name), None)
  return next((x for x in WEIGHTS if Path(source).name == x.file), None)


def find_config(source: str) -> Any:
  """Returns the config of the network with given weights.

  Args:
    source: Weights of `WEIGHTS`, a workdir, or a repository that vitx wrote.

  Raises:
    ConfigError: The source is none of these.
  """
  known = look_up(source)
  if known is not None:
    return load_config(known.row)
  from vitx.interop.repository import is_weights, read_run_settings
  from vitx.models import find_mixer

  if is_weights(source):
    raise ConfigError(
      f"init_from={source!r} does not describe its network; take the row of its backbone, such as"
      " deit_s, in place of swap."
    )
  with naming(f"init_from={source!r}"):
    config = to_config(read_run_settings(source))
    if not registry.is_trusted():
      registry.refuse_names_of_code(config, "", is_text)
  if mixer := find_mixer(config.model):
    config.model.token_mixer = mixer  # a run need not name it
  return config


def check_digest(path: str) -> None:
  """Checks the SHA-256 of a file that has the name of a published file."""
  known = look_up(path)
  if known is None or not known.digest:
    return
  with open(path, "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  if not digest.startswith(known.digest):
    raise ConfigError(
      f"init_from={path!r} has the SHA-256 {digest[:8]}..., but the published file of this name has"
      f" {known.digest}...: it is damaged or another file. Download {known.address} again, or give"
      " your own weights another name."
    )
