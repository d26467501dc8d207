"""The model card beside exported weights: a description of the weights and their training."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vitx.analysis.markdown import code, table, text, without_places
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.workdir import read_json, to_plain
from vitx.data.images.settings import sides
from vitx.interop.timm_networks import ForeignNetwork
from vitx.training.record.log import read_metrics

CARD = "README.md"
_FIGURES = ("test", "validation")


def write_card(loaded: Loaded, network: ForeignNetwork, file: str) -> str:
  """Returns the model card of a file of trained weights, as Markdown.

  Args:
    loaded: The model.
    network: The equivalent network of timm or of LV-ViT's code.
    file: The name of the file of weights.
  """
  environment = read_json(loaded.workdir, "environment.json")
  library = "library_name: timm\n" if network.code else ""
  parts = [
    f"---\n{library}tags:\n- image-classification\n- vitx\n---",
    f"# {text(file.removesuffix('.safetensors'))}",
    f"Weights of {code(loaded.config.model.name)}, step {loaded.step} of a run of vitx, under the"
    f" names of {'timm' if network.code else network.family}.",
    _usage(network, file),
    _images(loaded),
    _data(loaded),
    _figures(read_metrics(loaded.workdir), loaded.step),
    _run(environment),
    "## Config\n\nPaths are cut to their last part.\n\n"
    f"```json\n{json.dumps(without_places(to_plain(loaded.config)), indent=2)}\n```",
  ]
  return "\n\n".join(part for part in parts if part) + "\n"


def _usage(network: ForeignNetwork, file: str) -> str:
  if not network.code:
    return ""
  return (
    "## Use\n\n```python\nimport torch\nfrom safetensors.torch import load_file\n"
    f"{network.code}model.load_state_dict(load_file({json.dumps(file)}))\nmodel.eval()\n```"
  )


def _images(loaded: Loaded) -> str:
  data, evaluation = loaded.config.data, loaded.config.evaluation
  (height, width), mean, std = sides(data.image_size), list(data.mean), list(data.std)
  return (
    f"Images are {height} x {width} of {data.channels} channels in 0..1, minus the mean {mean},"
    f" divided by {std}. Evaluation crops {evaluation.crop_ratio:g} of the side, after"
    f" {text(evaluation.interpolation)} resizing."
  )


def _data(loaded: Loaded) -> str:
  counts = ", ".join(
    f"{n:,} {text(role)}" for role, n in (loaded.data.get("examples") or {}).items()
  )
  lines = [
    f"- source: {code(without_places(loaded.config.data.source))}" + f" ({counts})" * bool(counts),
    f"- fingerprint: {code(loaded.fingerprint or 'unknown: the data were not opened')}",
    f"- classes, in order: {', '.join(map(text, loaded.class_names))}",
  ]
  return "## Data\n\n" + "\n".join(lines)


def _figures(rows: Sequence[Mapping[str, Any]], step: int) -> str:
  """Returns a Markdown table of the figures of the checkpoint that was saved at a step."""
  found = {row["kind"]: row for row in rows if row.get("step") == step and row["kind"] in _FIGURES}
  if not found:
    return "## Figures\n\nThis checkpoint was not evaluated."
  names = [key for key in next(iter(found.values())) if key not in ("kind", "step", "time")]
  cells = [[kind, *(_show(row.get(name)) for name in names)] for kind, row in found.items()]
  return "## Figures\n\n" + table([["split", *names], *cells])


def _show(value: Any) -> str:
  if isinstance(value, list):
    return ", ".join(map(_show, value))
  return f"{value:.4f}" if isinstance(value, float) else str(value)


def _run(environment: Mapping[str, Any]) -> str:
  versions = environment.get("versions") or {}
  known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
  command = without_places(environment.get("command") or ["unknown"])
  lines = [
    f"- command: {code(' '.join(map(str, command)))}",
    f"- commit of vitx: {text(environment.get('commit') or 'unknown')}",
    f"- devices: {', '.join(map(text, environment.get('devices') or ['unknown']))}",
    f"- versions: {text(known or 'unknown')}",
  ]
  return "## Run\n\n" + "\n".join(lines)
