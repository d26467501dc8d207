"""Makes a workdir from published weights, or a file of weights from a workdir."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from vitx.analysis.implementations import implementations
from vitx.checkpoints import tree
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_absent, check_folder
from vitx.checkpoints.store import CheckpointStore
from vitx.config.describe import complete
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.config.settings import change
from vitx.data.class_names import FILE, fit_lines, read_names
from vitx.data.dataset import DatasetInfo, Source
from vitx.inference.model_card import CARD, write_card
from vitx.inference.opening import open_model, read_variables
from vitx.interop.export import write_safetensors
from vitx.interop.foreign_names import to_theirs
from vitx.interop.timm_networks import ForeignNetwork, find_network
from vitx.runtime.environment import describe_data, describe_environment
from vitx.tasks import settle, task_class
from vitx.tasks.base import find_layout


def import_weights(
  source: str, config: Mapping[str, Any], workdir: str | Path, *, without_data: bool = False
) -> None:
  """Makes a workdir from published weights, and prints a report on each parameter.

  Args:
    source: The path of a file, `hf:OWNER/NAME` or `timm:NAME`.
    config: The config of the network. Parameters that match its `init_from_except` need not fit.
    workdir: A directory without checkpoints.
    without_data: Whether to leave the data set unopened. The config must then have the number of
      classes and the image size; the names of the classes come from `classes.txt` beside the file,
      or are numbers.

  Raises:
    ConfigError: The file cannot be read or does not fit the network (the head must fit too), or the
      workdir has a run already.
    MissingExtraError: A package that reads the file is not installed.
  """
  settings = settle.read(config)
  if wd.list_steps(workdir):
    raise ConfigError(f"out={str(workdir)!r} has a run already; name another directory.")
  settled, info, data = _settle(change(settings, {"init_from": source}), source, without_data)
  task = settled.task
  state = read_variables(settled.settings, info, task, new_head=False)
  params = state.pop("params")
  wd.check_writable(workdir)
  with CheckpointStore(wd.locate_checkpoints(workdir)) as store:
    store.save(0, {"params": params, "model_state": state}, {})
  wd.write_json(workdir, "config.json", wd.to_plain(settled.settings))
  picked = implementations(task.model, task.input_spec)
  wd.write_json(workdir, wd.ENVIRONMENT, describe_environment(data, picked))


def _settle(
  settings: RunSettings, source: str, without_data: bool
) -> tuple[settle.Settled, DatasetInfo, dict[str, Any]]:
  """Returns the settled run, the facts about its data set, and a JSON record of the data."""
  opened: Source | DatasetInfo
  if without_data:
    info = task_class(settings.task).state_info(settings)
    if info is None:
      raise ConfigError("without_data=True: set model.num_classes and data.image_size.")
    names = list(info.class_names or ())  # numbers
    listed = read_names(Path(source).parent / FILE) if Path(source).is_file() else None
    names = list(listed) if listed is not None and len(listed) == len(names) else names
    opened = info = dataclasses.replace(info, class_names=tuple(names))
    data = {"source": info.name, "fingerprint": "", "class_names": names, "vocabulary": None}
  else:
    opened = settle.open_data(settings)
    info, data = opened.info, describe_data(opened, settings.data)
  return settle.settle(settings, opened), info, data


def export_weights(
  workdir: str | Path, out: str | Path, *, checkpoint: str | int = "best"
) -> ForeignNetwork:
  """Writes the weights of a run to a `.safetensors` file that timm or LV-ViT's code can load.

  A model card and the names of the classes are written beside it.

  Args:
    workdir: The workdir of a run.
    out: The path of the file; its directory is created.
    checkpoint: "best", "latest" or a step.

  Returns:
    The network of timm or of LV-ViT's code that computes the same function.

  Raises:
    ConfigError: The run does not exist, a file exists already, or timm would compute the network
      differently; the message names the field.
  """
  path = Path(out)
  check_folder(path.parent, "out")
  written = (path, path.parent / CARD, path.parent / FILE)
  advice = "each export has its own folder: name another one, or remove the old export"
  check_absent(written, advice, f"out={str(out)!r}: ")
  with open_model(workdir, checkpoint) as loaded:
    network = describe(loaded)
  arrays = to_theirs(tree.name_arrays(loaded.variables), network.family)
  path.parent.mkdir(parents=True, exist_ok=True)
  write_safetensors(path, arrays, find_layout(loaded.task))
  (path.parent / CARD).write_text(write_card(loaded, network, path.name), encoding="utf-8")
  if loaded.class_names and fit_lines(loaded.class_names):
    lines = "".join(f"{name}\n" for name in loaded.class_names)
    (path.parent / FILE).write_text(lines, encoding="utf-8")
  elif loaded.class_names:
    logging.warning("%s is not written: the name of a class does not fit a line of it", FILE)
  return network


def describe(loaded: Loaded) -> ForeignNetwork:
  """Finds the network of timm or of LV-ViT's code that computes the same function as a model.

  Raises:
    ConfigError: No network is equivalent; the message names the field.
  """
  settings = loaded.settings
  if settings.task.name == "masked_autoencoder":
    raise ConfigError(
      "task.name='masked_autoencoder': the network has a decoder, which no network of timm has;"
      f" train a classifier with init_from={loaded.workdir} and export that one."
    )
  fields = wd.flatten(complete(settings)["model"])
  named = {
    key: {"name": value["name"] if hasattr(value, "keys") else value}
    for key, value in settings.model.items()
    if f"{key}.name" in fields
  }
  plain = change(settings, {"model": {"name": settings.model.name, **named}})
  defaults = wd.flatten(complete(plain)["model"])
  size = settings.data.image_size or 0  # A model without images has no network in timm.
  return find_network(fields, defaults, size, settings.data.channels)
