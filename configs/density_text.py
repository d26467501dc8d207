"""Shakespeare's plays, 1.1 MB of text, byte by byte: a density model for a small machine.

vitx prepare tiny_shakespeare
python train.py --config configs/density_text.py:dense --workdir runs/density_text

The test set is the last 10 % of the text, TFDS's validation and test together, as in nanoGPT, whose
model of 10.6 M parameters reaches 2.12 bits per byte (1.4697 nats). An n-gram model with 4
preceding bytes, counted in our training text, reaches 2.46. The checkpoint is chosen on only the
last 1 % of the training text, since training needs the end of this text: the test set continues its
last play, and without the last 5 % of the training text the n-gram model reaches only 2.91. Each
row puts a causal token mixer into one network of 1.9 M parameters. Muon updates the hidden
matrices, since AdamW (2e-3, as many steps) ends at 2.21 for `dense` and 2.23 for `strided`.

Ours, in runs that were not kept: docs/density.md. In them the parameters beside the matrices took
NAdam's steps, where they take Adam's now.
"""

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, with_overrides

PUBLISHED: dict[str, dict] = {"dense": dict(bits=2.12)}  # nanoGPT's figure
MIXERS: dict[str, dict] = {
  "dense": dict(name="softmax"),
  "strided": dict(name="strided", form="code", stride=16, arrangement="layers", local_layers=3),
  "fixed": dict(name="fixed", stride=32, summary=4, distinct=4, arrangement="merged"),
}
ROWS = tuple(MIXERS)


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "dense"."""
  row, overrides = parse_arg(arg, ROWS, default="dense")
  config = default_config()
  config.task = ConfigDict(dict(name="density", window=256))
  config.data.source = "tiny_shakespeare"
  config.data.validation = 0.01
  config.model = ConfigDict(
    dict(
      name="sparse_transformer",
      width=192,
      depth=4,
      num_heads=6,
      mlp_dim=768,
      posemb="rope",
      token_mixer=MIXERS[row],
      dropout=0.1,
      remat=False,
      dtype="float32",
    )
  )
  config.batch_size = 16
  config.duration = "3000 steps"
  config.learning_rate = 3e-3
  config.optimizer = ConfigDict(dict(name="muon", b2=0.98, weight_decay=0.1))
  config.grad_clip_norm = 1.0
  config.ema_decay = 0.998
  config.schedule = ConfigDict(dict(name="cosine", warmup="100 steps"))
  config.evaluation.every = "500 steps"
  config.checkpoint.every = "250 steps"
  config.log_every = "50 steps"
  config = with_overrides(config, overrides)
  if config.data.source == "tiny_shakespeare":  # A different text has different splits.
    config.data.splits.test = config.data.splits.test or "validation+test"
  return config
