"""Converts published weights into a workdir, and a workdir's weights to names that others know.

    vitx convert deit_small.pth --config configs/imagenet.py:deit_s --out runs/deit_s
    vitx convert hf:timm/deit_small_patch16_224.fb_in1k --config imagenet:deit_s --out runs/deit_s
    vitx convert runs/deit_s --out exported/deit_s.safetensors

In: a file, or `hf:NAME`, becomes a workdir that `vitx evaluate`, `predict`, `visualize` and
`init_from` read. Its config is the row that names the network; every weight must fit, positions
alone are resized. The data set of the config is opened for its classes, unless `--without_data`:
then the config must say classes and image size, and classes are called by their numbers.

Out: `.safetensors` under timm's names (for LV-ViT under its own code's), and beside it `README.md`,
a model card with the call that makes the network in timm. A network that timm would compute
otherwise is refused.
"""

import argparse

from vitx.cli.flags import CHECKPOINT, TRUST_RUN, add_trust
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("source", metavar="SOURCE", help="a file of weights, hf:NAME, or the workdir of a run")
  add("--out", required=True, help="the workdir to make, or the .safetensors file to write")
  add("--config", default="", help="of a file's network: FILE:ROW,field=value or a config.json")
  add("--without_data", action="store_true", help="do not open the data set of the config")
  add("--checkpoint", default="best", help=f"of a workdir: {CHECKPOINT}")
  add_trust(add, TRUST_RUN)


def run(source: str, out: str, config: str, without_data: bool, checkpoint: str) -> None:
  """Converts in the direction that the source asks for, and says what was written."""
  from vitx.data.class_names import FILE
  from vitx.inference.convert import export_weights, import_weights
  from vitx.inference.model_card import CARD
  from vitx.interop import foreign

  if foreign.is_file(source):
    if not config:
      raise ConfigError(f"{source!r} needs --config FILE:ROW, which says what network it is of")
    import_weights(source, load_config(config), out, without_data=without_data)
    print(f"{out}: a workdir; try vitx evaluate --workdir {out}")
    return
  if config or without_data:
    raise ConfigError(f"{source!r} is a workdir, which has its config; leave --config out")
  network = export_weights(source, out, checkpoint=checkpoint)
  print(f"{out}: {network.family} names, with {CARD} and {FILE} beside it")
