"""The default job: 1,797 scans of handwritten digits, 8 x 8 pixels, included in scikit-learn.

python train.py --config configs/digits.py --workdir runs/digits
vitx train --config configs/digits.py:performer --workdir runs/performer

Each row puts a token mixer into one network, or attention that is limited to a named pattern of
(query, key) pairs (`vitx.ops.patterns`). The network has three small convolutions, 64 tokens, 4
blocks of width 64 and 0.2 M parameters. The split is our own, so there is no published figure.
Ours: `bigbird` and `softmax` after 40 epochs in results/digits/default/table.md, and the mixers of
2026-11-25 after 10 epochs in results/digits/mixers_10_epochs/table.md.

The last bits of a run depend on the processor's kernels and on the number of threads and devices,
and these differences grow during training: seed 0 of `bigbird` ended at 97.77 on one core and at
99.44 on two cores of another machine (docs/papers.md). `bigbird` is the default row, since it is
sparse, no row was measurably better on *validation*, and its run takes two minutes.
"""

from ml_collections import ConfigDict

from vitx.config import Names, default_config, parse_arg, with_overrides

# The fields of each mixer for a grid of 8 x 8 tokens.
MIXERS: dict[str, dict] = {
  "axial": {},
  "bigbird": dict(block=8, random=1, global_blocks=(0,), tile=16),
  "bilevel": dict(regions=4, top=2),
  "cvt": {},
  "erdos_renyi": dict(p=0.2),
  "fixed": {},
  "fnet": {},
  "levit": {},
  "linear_transformer": {},
  "linformer": dict(slots=16),
  "locality": {},
  "longformer": dict(window=4, dilation=(1, 1, 2, 2)),
  "mlp_mixing": {},
  "neighborhood": dict(size=3),
  "nystromformer": dict(landmarks=16, kernel_size=9),
  "performer": {},
  "shaped": {},
  "shifted_window": dict(size=4),
  "softmax": {},
  "sparsifiner": dict(slots=16),  # This recipe leaves its predictor at its initial values.
  "strided": {},
  "watts_strogatz": dict(neighbors=8),
  "xcit": {},
}
# The mixers, then the named patterns that have no mixer of their name.
ROWS = Names(MIXERS, "model.token_mixer.edges")


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "bigbird"."""
  row, overrides = parse_arg(arg, ROWS, default="bigbird")
  config = default_config()
  config.model = ConfigDict(
    dict(
      name="vit",
      width=64,
      depth=4,
      num_heads=4,
      mlp_dim=128,
      stem=dict(name="conv", channels=(32, 64, 64), strides=(1, 1, 1)),
      posemb="learned",
      pool="mean",
      token_mixer=_token_mixer(row),
      dropout=0.0,
      stochastic_depth=0.0,
      remat=False,
      dtype="float32",
    )
  )
  config.augment.rotate = 15.0
  config.augment.pad_crop = 1
  config.batch_size = 64
  config.duration = "40 epochs"
  config.ema_decay = 0.998
  config.learning_rate = 2e-3
  config.schedule = ConfigDict({"name": "cosine", "warmup": "2 epochs"})
  config.task.label_smoothing = 0.1
  config.evaluation.every = "10 epochs"
  config.checkpoint.every = "10 epochs"
  config.log_every = "100 steps"
  return with_overrides(config, overrides)


def _token_mixer(row: str) -> dict:
  if row in MIXERS:
    return dict(name=row, **MIXERS[row])
  return dict(name="pattern", edges=row, tile=16)
