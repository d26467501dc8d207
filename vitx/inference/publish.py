"""Writes a trained model as a repository: a folder, or `hf:OWNER/NAME` on the Hub."""

import contextlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitx.analysis.markdown import shorten_paths
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_absent, check_folder, write_json
from vitx.checkpoints.workdir import PATH_FIELDS, PHASES, REPOSITORY, to_plain
from vitx.config.errors import ConfigError
from vitx.data.sources import SOURCES
from vitx.inference.convert import describe
from vitx.inference.model_card import CARD, write_repository_card
from vitx.inference.opening import open_model
from vitx.interop import hub
from vitx.interop.export import write_safetensors
from vitx.interop.repository import OWN, WEIGHTS, to_stored
from vitx.interop.timm_networks import ForeignNetwork
from vitx.tasks.base import find_layout

FILES = (WEIGHTS, REPOSITORY, CARD)
_PUBLIC_DATA = ("fingerprint", "examples", "class_names", "vocabulary")


def publish(workdir: str | Path | Loaded, out: str, *, checkpoint: str | int = "best") -> str:
  """Writes a run's model as a repository that `vitx.load` reads.

  Paths in the repository's config are cut to their last part. The repository contains neither the
  command of the run nor its tracker, nor the names of the data's files.

  Args:
    workdir: The workdir of a run, or a model that `vitx.load` returned.
    out: A new folder, or `hf:OWNER/NAME`. A repository of the Hub that does not exist is created as
      a private one; a model card that exists there is kept.
    checkpoint: "best", "latest" or a step.

  Returns:
    The path of the folder, or the address of the repository.

  Raises:
    ConfigError: The run does not exist, the folder has one of the files already, or the repository
      cannot be written.
    MissingExtraError: A package that writes the repository is not installed.
  """
  if hub.is_name(out):
    hub.check_target(out)
  else:
    check_folder(out, "out")
    if any(Path(out, name).exists() for name in ("config.json", PHASES)):
      raise ConfigError(f"out={out!r} is a workdir; a repository has its own folder. Name another.")
    advice = "a repository has its own folder: name another one, or remove the old repository"
    check_absent([Path(out) / name for name in FILES], advice, f"out={out!r}: ")
  with open_model(workdir, checkpoint) as loaded:
    network = None
    with contextlib.suppress(ConfigError):  # No network of timm or LV-ViT's code is equivalent.
      network = describe(loaded)
  if not hub.is_name(out):
    _write(loaded, network, Path(out), Path(out).name)
    return out
  with tempfile.TemporaryDirectory() as folder:
    _write(loaded, network, Path(folder), out)
    return hub.upload(folder, out, CARD)


def _write(loaded: Loaded, network: ForeignNetwork | None, folder: Path, name: str) -> None:
  """Writes the files of a repository into a folder, which is created."""
  names = OWN if network is None else network.family
  config = hide_paths(to_plain(loaded.settings))
  card = write_repository_card(loaded, network, name, config)
  data = {"source": config["data"]["source"], **{key: loaded.data.get(key) for key in _PUBLIC_DATA}}
  folder.mkdir(parents=True, exist_ok=True)
  arrays = to_stored(loaded.variables, names)
  write_safetensors(folder / WEIGHTS, arrays, find_layout(loaded.task))
  record = {"config": config, "data": data, "step": loaded.step, "names": names}
  write_json(folder / REPOSITORY, record)
  (folder / CARD).write_text(card, encoding="utf-8")


def hide_paths(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a config as plain JSON in which paths keep only their last part.

  `data.data_dir` becomes `None`, which means the default directory on any machine, and the tracker
  becomes "none".
  """

  def hide(value: Any, field: str) -> Any:
    if field.endswith(".tracking"):
      return {"name": "none"}
    if isinstance(value, Mapping):
      return {key: hide(entry, f"{field}.{key}") for key, entry in value.items()}
    if field.endswith(".data.data_dir"):
      return None
    if isinstance(value, str) and field.endswith(PATH_FIELDS) and not hub.is_name(value):
      return _last_part(value)
    return value

  return hide(shorten_paths(config), "")


def _last_part(value: str) -> str:
  """Returns the last part of a path; the kind of a source before it, such as `folder:`, is kept."""
  kind, colon, path = value.partition(":")
  front, path = (kind + colon, path) if kind in SOURCES else ("", value)
  return front + re.split(r"[/\\]", path.rstrip("/\\"))[-1]
