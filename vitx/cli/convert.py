"""Imports published weights into a workdir; exports or publishes the weights of a workdir.

    vitx convert --list
    vitx convert timm:deit_small_patch16_224.fb_in1k --out runs/deit_s
    vitx convert deit_small.pth --config configs/imagenet.py:deit_s --out runs/deit_s
    vitx convert runs/deit_s --out exported/deit_s.safetensors
    vitx convert runs/deit_s --out hf:OWNER/NAME

Import: a file of weights, `hf:OWNER/NAME` or `timm:NAME` becomes a workdir, which `vitx evaluate`,
`predict` and `visualize` and the config field `init_from` accept. `--config` must describe the
network; weights that `--list` shows need no config. Every weight must fit; only position embeddings
are resized. The config's data set is opened for its class names. With `--without_data` it is not
opened: then the config must give the number of classes and the image size, and the classes have
numbers as names.

Export: the weights are written to a `.safetensors` file, with timm's names of the parameters (for
LV-ViT, with the names of its authors' code). A model card beside the weights, `README.md`, shows
the call that builds the network in timm. A network that timm would compute differently is refused.

Publication: with `--out hf:OWNER/NAME`, or a folder without a suffix, the whole model becomes a
repository that `vitx.load` and `--workdir` accept. It has the weights, the config, the class names
and a model card. Any network can be published; if timm lacks the network, the parameters keep
vitx's names. Of each path in the config only the last part is published. A new repository on the
Hub is private; make it public on its page.
"""

import argparse
from pathlib import Path

from vitx.cli.flags import CHECKPOINT, add_trust
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  words = "A file of weights, hf:OWNER/NAME, timm:NAME or a workdir."
  add("source", metavar="SOURCE", nargs="?", default="", help=words)
  words = "The new workdir, or what to write: a .safetensors file, a folder or hf:OWNER/NAME."
  add("--out", default="", help=words)
  words = "The config of the network whose weights are in SOURCE; the default is that of --list."
  add("--config", default="", help=words)
  add("--without_data", action="store_true", help="Does not open the config's data set.")
  add("--checkpoint", default="best", help=CHECKPOINT)
  words = "Shows the published weights that vitx knows: configs, sizes, licenses and addresses."
  add("--list", dest="shows_list", action="store_true", help=words)
  add_trust(add)


def run(
  source: str, out: str, config: str, without_data: bool, checkpoint: str, shows_list: bool
) -> None:
  """Imports, exports or publishes weights, depending on `source` and `out`, and prints the path.

  With `shows_list`, prints the list of published weights and does nothing else.
  """
  from vitx.interop.published import WEIGHTS, look_up

  if shows_list:
    print("\n".join(map(str, WEIGHTS)))
    return
  if not source or not out:
    raise ConfigError("give SOURCE and --out, or --list alone.")
  from vitx.data.class_names import FILE
  from vitx.inference.convert import export_weights, import_weights
  from vitx.inference.model_card import CARD
  from vitx.inference.publish import publish
  from vitx.interop import hub
  from vitx.interop.repository import is_weights

  if is_weights(source):
    if not config:
      known = look_up(source)
      if known is None:
        reason = "is none of the weights of vitx convert --list; it needs --config FILE:ROW"
        raise ConfigError(f"{source!r} {reason}.")
      if not known.classes:
        reason = "has no head, and a workdir needs one. Train a head: vitx train --config"
        raise ConfigError(f"{source!r} {reason} {known.row},init_from={source}")
      config = known.config
    import_weights(source, load_config(config), out, without_data=without_data)
    print(f"{out}: a workdir; try vitx evaluate --workdir {out}")
    return
  if hub.is_name(out) or not Path(out).suffix:
    place = publish(source, out, checkpoint=checkpoint)
    print(f"{place}: a repository; try vitx.load({out!r}) or vitx evaluate --workdir {out}")
    return
  network = export_weights(source, out, checkpoint=checkpoint)
  print(f"{out}: weights under {network.family} names; {CARD} and {FILE} are beside it")
