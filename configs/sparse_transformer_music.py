"""Classical music at 12 kHz as 8-bit mu-law bytes (Child et al. 2019, section 7.4 and Table 4).

python train.py --config configs/sparse_transformer_music.py:n65536,dataset=audio:FOLDER \\
  --workdir runs/st_music

FOLDER has WAV files of any rate. The paper trained on the music of Dieleman et al. 2018, which is
not available, and prints bits per byte at three lengths: 1.97 at 65,536 bytes (5 s; 152 M
parameters), 2.17 at 262,144 (25 M) and 2.99 at 1,048,576 (3 M). Ours: not yet run.

Depth and width are unpublished: **the values below are our guess**, chosen to come near the
published numbers of parameters. Batch size, learning rate and dropout are guesses too.
"""

from ml_collections import ConfigDict

from vitx.config import parse_arg, with_overrides
from vitx.configs.sparse_transformer_cifar10 import make_mixer, sparse_transformer

# Bits per byte, and parameters in millions, as printed in the paper.
PUBLISHED = {
  "n65536": dict(bits=1.97, parameters_m=152),
  "n262144": dict(bits=2.17, parameters_m=25),
  "n1048576": dict(bits=2.99, parameters_m=3),
}
ROWS = tuple(PUBLISHED)
# The stride, width, depth and heads: our guess.
GUESSED = {
  "n65536": (256, 512, 48, 16),
  "n262144": (512, 256, 32, 8),
  "n1048576": (1024, 128, 16, 4),
}


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "n65536"."""
  row, overrides = parse_arg(arg, ROWS, default="n65536")
  stride, width, depth, heads = GUESSED[row]
  config = sparse_transformer()
  config.data.source = "audio:music"
  config.task.window = stride * stride
  config.model.update(
    width=width,
    depth=depth,
    num_heads=heads,
    mlp_dim=4 * width,
    token_mixer=make_mixer("strided", stride=stride),
    vocabulary=256,
    grid=(stride, stride),
    embedding_stddev=0.013,
    dropout=0.01,
    layer_cycle=4,
  )
  config.batch_size = 8
  config.duration = "100 epochs"
  config.learning_rate = 1.5e-4
  return with_overrides(config, overrides)
