"""The digits as 64 pixels with 17 gray levels: density models that train in minutes on a laptop.

python train.py --config configs/density_digits.py:strided --workdir runs/density_digits

The data are 1,797 scans of 8 x 8 pixels that scikit-learn includes; 359 of them are the test set.
Each row puts a causal token mixer into one network, a Sparse Transformer of 6 blocks of width 96
with 0.7 M parameters. The split is our own, so there is no published figure.

Ours: results/density_digits/patterns/table.md, and samples and compression in docs/density.md.

Baselines without a network, on these pixels: counts of the values at each place 2.406; n-gram
models with 0 to 5 preceding pixels 2.971, 2.688, 2.521, 2.567, 2.650, 2.783; gzip 3.177, bz2 2.817,
xz 2.869.
"""

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, with_overrides

# The fields of each mixer; a row of the image is eight tokens.
MIXERS: dict[str, dict] = {
  "dense": dict(name="softmax"),
  "strided": dict(
    name="strided", form="code", stride=8, arrangement="layers", local_layers=1, tile=16
  ),
  "strided_merged": dict(name="strided", form="code", stride=8, arrangement="merged", tile=16),
  "fixed": dict(name="fixed", stride=8, summary=2, distinct=4, arrangement="merged", tile=16),
  "window": dict(name="longformer", window=16),
  "performer": dict(name="performer"),
  "linear_transformer": dict(name="linear_transformer"),
}
ROWS = tuple(MIXERS)


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "strided"."""
  row, overrides = parse_arg(arg, ROWS, default="strided")
  config = default_config()
  config.task = ConfigDict(dict(name="density", levels=17))
  config.data.source = "digits"
  config.model = ConfigDict(
    dict(
      name="sparse_transformer",
      width=96,
      depth=6,
      num_heads=4,
      mlp_dim=384,
      token_mixer=MIXERS[row],
      dropout=0.2,
      remat=False,
      dtype="float32",
    )
  )
  config.batch_size = 64
  config.duration = "60 epochs"
  config.learning_rate = 2e-3
  config.optimizer = ConfigDict(dict(name="adamw", weight_decay=0.05))
  config.weight_decay_mask = "tensors"
  config.grad_clip_norm = 1.0
  config.ema_decay = 0.99
  config.schedule = ConfigDict(dict(name="cosine", warmup="50 steps"))
  config.evaluation.every = "2 epochs"
  config.checkpoint.every = "10 epochs"
  return with_overrides(config, overrides)
