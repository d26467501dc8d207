"""The model card, a README beside exported weights that describes the network and its training."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vitx.analysis.markdown import code, shorten_paths, table, text
from vitx.analysis.tables import format_figure
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.metrics import read_metrics
from vitx.checkpoints.workdir import ENVIRONMENT, read_json, to_plain
from vitx.data.images.settings import sides
from vitx.interop.repository import WEIGHTS
from vitx.interop.timm_networks import ForeignNetwork

CARD = "README.md"


def write_card(loaded: Loaded, network: ForeignNetwork | None, file: str) -> str:
  """Returns the model card of a file of trained weights, as Markdown.

  Args:
    loaded: The model.
    network: The equivalent network of timm or of LV-ViT's code; `None` if the weights have vitx's
      own names.
    file: The name of the file of weights.
  """
  library = "library_name: timm\n" if network and network.code else ""
  parts = [
    f"---\n{library}{_tags(loaded)}---",
    f"# {text(file.removesuffix('.safetensors'))}",
    _summary(loaded, network),
    _usage(network, file),
    *_training(loaded, to_plain(loaded.settings), with_command=True),
  ]
  return "\n\n".join(part for part in parts if part) + "\n"


def write_repository_card(
  loaded: Loaded, network: ForeignNetwork | None, name: str, config: Mapping[str, Any]
) -> str:
  """Returns the model card of a repository of a trained model, as Markdown.

  The card does not show the command of the run. It states no license, which only the author can
  choose.

  Args:
    loaded: The model.
    network: The equivalent network of timm or of LV-ViT's code; `None` if the weights have vitx's
      own names.
    name: The repository, `hf:OWNER/NAME` or a folder's name.
    config: The config that the repository contains.
  """
  load = f"import vitx\n\nloaded = vitx.load({json.dumps(name)})\n"
  title = name.rpartition("/")[2]
  parts = [
    f"---\nlibrary_name: vitx\n{_tags(loaded)}# license: apache-2.0\n---",
    f"# {text(title)}",
    _summary(loaded, network),
    "The author has not stated a license. To state one, correct the line `# license:` at the top of"
    " this file and remove its `#`.",
    f'## Use in vitx\n\n```python\n{load}vitx.predict(loaded, ["image.png"])\n```\n\n'
    f"`vitx predict`, `vitx evaluate` and others take `--workdir {text(name)}`.",
    _usage(network, WEIGHTS),
    *_training(loaded, config, with_command=False),
  ]
  return "\n\n".join(part for part in parts if part) + "\n"


def _tags(loaded: Loaded) -> str:
  is_classifier = not {"label", "labels"}.isdisjoint(getattr(loaded.task, "targets", ()))
  return f"tags:\n{'- image-classification' + chr(10) if is_classifier else ''}- vitx\n"


def _summary(loaded: Loaded, network: ForeignNetwork | None) -> str:
  names = "vitx" if network is None else "timm" if network.code else network.family
  task = loaded.settings.task
  card = (
    f"Weights of {code(loaded.settings.model.name)} after {loaded.step} steps of training by vitx,"
    f" under the names of {names}. The task is {code(task.name)}."
  )
  if task.get("target_std"):
    card += f" A prediction is the output times {task.target_std} plus {task.target_mean}."
  return card


def _training(loaded: Loaded, config: Mapping[str, Any], *, with_command: bool) -> list[str]:
  """Returns the sections about the images, the data, the evaluations, the run and the config."""
  return [
    _images(loaded),
    _data(loaded, config["data"]["source"]),
    _figures(read_metrics(loaded.workdir), loaded.step),
    _run(read_json(loaded.workdir, ENVIRONMENT), with_command),
    "## Config\n\nPaths are cut to their last part.\n\n"
    f"```json\n{json.dumps(shorten_paths(config), indent=2)}\n```",
  ]


def _usage(network: ForeignNetwork | None, file: str) -> str:
  if network is None or not network.code:
    return ""
  return (
    "## Use in timm\n\n```python\nimport torch\nfrom safetensors.torch import load_file\n"
    f"{network.code}model.load_state_dict(load_file({json.dumps(file)}))\nmodel.eval()\n```"
  )


def _images(loaded: Loaded) -> str:
  data, evaluation = loaded.settings.data, loaded.settings.evaluation
  # A density model of bytes has no images.
  if data.mean is None or data.std is None or data.image_size is None:
    return ""
  (height, width), mean, std = sides(data.image_size), list(data.mean), list(data.std)
  return (
    f"Images are {height} x {width} of {data.channels} channels in 0..1, minus the mean {mean},"
    f" divided by {std}. Evaluation crops {evaluation.crop_ratio:g} of the side, after"
    f" {text(evaluation.interpolation)} resizing."
  )


def _data(loaded: Loaded, source: str) -> str:
  counts = ", ".join(
    f"{n:,} {text(role)}" for role, n in (loaded.data.get("examples") or {}).items()
  )
  lines = [
    f"- source: {code(shorten_paths(source))}" + f" ({counts})" * bool(counts),
    f"- fingerprint: {code(loaded.fingerprint or 'unknown: the data were not opened')}",
  ]
  if loaded.class_names:
    lines.append(f"- classes, in order: {', '.join(map(text, loaded.class_names))}")
  return "## Data\n\n" + "\n".join(lines)


def _figures(rows: Sequence[Mapping[str, Any]], step: int) -> str:
  """Returns a section with the table of the figures that the evaluations of a step reported."""
  kinds = ("test", "validation")
  reported = {x["kind"]: x for x in rows if x.get("step") == step and x["kind"] in kinds}
  if not reported:
    return "## Figures\n\nNo figures of this checkpoint are recorded."
  names = [key for key in next(iter(reported.values())) if key not in ("kind", "step", "time")]
  cells = [[kind, *(_show(row.get(name)) for name in names)] for kind, row in reported.items()]
  return "## Figures\n\n" + table([["split", *names], *cells])


def _show(value: Any) -> str:
  if isinstance(value, list):
    return ", ".join(map(_show, value))
  return format_figure(value) if isinstance(value, float) else str(value)


def _run(environment: Mapping[str, Any], with_command: bool) -> str:
  versions = environment.get("versions") or {}
  known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
  command = shorten_paths(environment.get("command") or ["unknown"])
  lines = [
    *[f"- command: {code(' '.join(map(str, command)))}"] * with_command,
    f"- commit of vitx: {text(environment.get('commit') or 'unknown')}",
    f"- devices: {', '.join(map(text, environment.get('devices') or ['unknown']))}",
    f"- versions: {text(known or 'unknown')}",
  ]
  return "## Run\n\n" + "\n".join(lines)
