"""Measures mixers, models, training steps, data: `vitx benchmark mixers | density | ...`.

Mixers: every token mixer as a module in both implementations, forward and backward, side by side
with dense softmax in the same run: time, compiled temporary memory and FLOPs as ratios; then the
named cases with the figures they are to reach. Density: the Sparse Transformer's patterns beside
causal flash, whole training steps beside the article's Table 2, and a sampled token from the cache
beside computing all anew. Sparsifiner: its attention by keys and by blocks with the figures to
reach, and its multiply-adds as published and as made. Models: parameters, operations and memory of
a config's rows, with `--time` their rates, and the Pareto front of two of those figures; or whole
training steps beside PyTorch's of the same sizes, or beside what a product of matrices reaches. On
a CPU no absolute time is shown but the rates of rows: its cores are shared. Data: the batches of a
config's training, streamed, beside one thread of Pillow that decodes and resizes the same images,
in examples a second, and their memory.
"""

import argparse

from vitx.cli.flags import OutFile, add_trust, names, positive, positives

DENSITY_PARTS = ("attention", "steps", "sampling")
SPARSIFINER_PARTS = ("attention", "flops")


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
  add = what.add_parser("mixers", help="token mixers side by side with dense softmax").add_argument
  add("--tokens", type=positives, default="256,1024,4096", help="N, separated by commas")
  add(
    "--mixers",
    type=names,
    help="names separated by commas, or your own as module:Name; else all",
  )
  add("--batch", type=positive, default=1, help="B")
  add("--heads", type=positive, default=4, help="H")
  add("--head_dim", type=positive, default=64, help="D; the width is H D")
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  add("--repeats", type=positive, default=3, help="rounds; the median counts")
  add("--seconds", type=float, default=10.0, help="one program may take per N; then fewer rounds")
  add("--runs", type=int, default=3, help="of the named cases; 0: leave them out")
  add("--csv", action=OutFile, metavar="FILE", help="write a row per N, mixer and implementation")
  add("--plot", action=OutFile, metavar="FILE", help="write a picture of time and memory against N")
  add = what.add_parser(
    "density", help="attention, steps and samples of density models"
  ).add_argument
  add(
    "--parts",
    type=names,
    default=list(DENSITY_PARTS),
    help=f"of {', '.join(DENSITY_PARTS)}, separated by commas; else all",
  )
  add("--tokens", type=positives, default="3072,12288", help="N of attention, separated by commas")
  add("--stride", type=positive, default=128, help="l of the patterns of attention")
  add("--summary", type=positive, default=32, help="c of the fixed one")
  add("--setups", type=names, help="of models, separated by commas; else all")
  add("--depth", type=positive, default=4, help="layers of the models")
  add("--runs", type=positive, default=3, help="each gives a ratio; their median is shown")
  add("--repeats", type=positive, default=3, help="rounds in a run; the median counts")
  add("--seconds", type=float, default=60.0, help="one program may take per run; then fewer rounds")
  add = what.add_parser("sparsifiner", help="attention to predicted keys and blocks").add_argument
  add(
    "--parts",
    type=names,
    default=list(SPARSIFINER_PARTS),
    help=f"of {', '.join(SPARSIFINER_PARTS)}, separated by commas; else all",
  )
  add("--block", type=positive, help="tokens in a block; else as the named cases have them")
  add("--runs", type=positive, default=3, help="each gives a ratio")
  add("--repeats", type=positive, default=3, help="rounds in a run; the median counts")
  add("--seconds", type=float, default=60.0, help="one program may take per run; then fewer rounds")
  help_text = "measure what auto should pick on this kind of device, and store it"
  add = what.add_parser("choose", help=help_text).add_argument
  add("--out", metavar="FILE", help="write here; else where auto looks, for this user")
  add("--ops", type=names, help="families of operations; else all. The others stay as they are")
  add("--minutes", type=float, default=20.0, help="of all timing; compiling comes on top")
  add("--tokens", type=positives, help="N, separated by commas; else 64 to 512")
  add("--batches", type=positives, help="B, separated by commas; else 1 to 64")
  add("--heads", type=positive, default=4, help="H")
  add("--head_dim", type=positive, default=64, help="D; the width is H D")
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  add("--repeats", type=positive, default=5, help="rounds; the median counts")
  help_text = "what a config's rows cost, or training steps, also beside PyTorch's"
  add = what.add_parser("models", help=help_text).add_argument
  add("--config", metavar="FILE", help="tell what its rows cost; FILE:field=value for all of them")
  add_trust(add)
  add("--time", action="store_true", help="of the config's rows: also rates and the peak of memory")
  add("--pareto", type=names, metavar="X,Y", help="of the config's rows: draw two columns")
  add("--out", metavar="DIR", help="folder of that plot")
  add("--csv", action=OutFile, metavar="FILE", help="write the config's rows as CSV")
  add("--json", action=OutFile, metavar="FILE", help="write the config's rows as JSON")
  add("--peers", action="store_true", help="beside PyTorch's networks; needs the extra peers")
  add("--memory", action="store_true", help="of the peers: also the peak of a process of its own")
  add("--rows", type=names, help="of the config, or shares; else all")
  add("--runs", type=positive, default=3, help="each gives a ratio")
  add("--repeats", type=positive, default=5, help="rounds in a run; the median counts")
  add("--seconds", type=float, default=60.0, help="one step may take per run; then fewer rounds")
  add = what.add_parser("data", help="batches that are read as they are needed").add_argument
  add("--config", metavar="FILE:ROW,...", required=True, help="whose data; takes overrides")
  add_trust(add)
  add("--examples", type=positive, default=4096, help="read in a run")
  add("--runs", type=positive, default=5, help="each reads the same examples")
