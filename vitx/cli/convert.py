"""Converts published weights into a workdir, and a workdir's weights to other projects' names.

    vitx convert deit_small.pth --config configs/imagenet.py:deit_s --out runs/deit_s
    vitx convert hf:timm/deit_small_patch16_224.fb_in1k --config imagenet:deit_s --out runs/deit_s
    vitx convert runs/deit_s --out exported/deit_s.safetensors

Import: a file or `hf:NAME` becomes a workdir for `vitx evaluate`, `predict`, `visualize` and
`init_from`. The config must be the row that describes the network. Every weight must fit; only
position embeddings are resized. The config's data set is opened for its class names. With
`--without_data` it is not opened: the config must give the number of classes and the image size,
and the classes are named by numbers.

Export: the weights are written as `.safetensors` under timm's names (for LV-ViT under the names of
its own code). A model card beside the weights, `README.md`, shows the call that builds the network
in timm. A network that timm would compute differently is refused.
"""

import argparse

from vitx.cli.flags import CHECKPOINT, add_trust
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("source", metavar="SOURCE", help="A file of weights, hf:NAME or a workdir.")
  add("--out", required=True, help="The new workdir, or the .safetensors file to write.")
  words = "The config of the network whose weights are in the file SOURCE."
  add("--config", default="", help=words)
  add("--without_data", action="store_true", help="Does not open the config's data set.")
  add("--checkpoint", default="best", help=CHECKPOINT)
  add_trust(add)


def run(source: str, out: str, config: str, without_data: bool, checkpoint: str) -> None:
  """Imports or exports weights, depending on the source, and prints the path of the result."""
  from vitx.data.class_names import FILE
  from vitx.inference.convert import export_weights, import_weights
  from vitx.inference.model_card import CARD
  from vitx.interop import foreign

  if foreign.is_file(source):
    if not config:
      raise ConfigError(f"{source!r} needs --config FILE:ROW, the config of its network.")
    import_weights(source, load_config(config), out, without_data=without_data)
    print(f"{out}: a workdir; try vitx evaluate --workdir {out}")
    return
  if config or without_data:
    message = f"{source!r} is a workdir and has a config; leave --config and --without_data out"
    raise ConfigError(message)
  network = export_weights(source, out, checkpoint=checkpoint)
  print(f"{out}: weights under {network.family} names; {CARD} and {FILE} are beside it")
