"""ImageNet of 64 x 64 pixels as 12,288 bytes an image (Child et al. 2019, Tables 1 and 4).

vitx prepare downsampled_imagenet/64x64
python train.py --config configs/sparse_transformer_imagenet64.py --workdir runs/st_imagenet64

Row `strided`: 48 layers of width 512, 16 heads, stride 128, 151.6 M parameters; the paper has 3.44
bits per dim after 70 epochs, 7 days on 64 V100. Row `released`: the released code's recipe for 8
GPUs, 28 layers and 4 heads. Ours: not yet run. The batch size is not stated: 64 is our guess.

On 64 devices, each has one image, with `model.remat`; parameters, moments and average take 2.4 GB
on every device, and the kept activations 0.6 GB (48 x 12,288 x 512 values of 2 bytes). On 8 devices
add `grad_accum_steps=8` for equal losses. Run the command on each host (docs/hosts.md).
"""

from ml_collections import ConfigDict

from vitx.config import parse_arg, with_overrides
from vitx.configs.sparse_transformer_cifar10 import make_mixer, sparse_transformer

# Bits per dim of the validation set, which is the test set here, and parameters in millions.
PUBLISHED: dict[str, dict] = {"strided": dict(bits=3.44, parameters_m=152), "released": {}}
ROWS = tuple(PUBLISHED)


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "strided"."""
  row, overrides = parse_arg(arg, ROWS, default="strided")
  config = sparse_transformer()
  config.data.source = "downsampled_imagenet/64x64"
  config.data.validation = 0.01
  config.model.update(
    width=512,
    depth=48 if row == "strided" else 28,
    num_heads=16 if row == "strided" else 4,
    mlp_dim=2048,
    token_mixer=make_mixer("strided", stride=128),
    vocabulary=256,
    grid=(64, 64, 3),
    embedding_stddev=0.013,
    dropout=0.01,
    layer_cycle=4,
  )
  config.batch_size = 64
  config.duration = "70 epochs"
  config.learning_rate = 1.5e-4 if row == "strided" else 2.5e-4
  return with_overrides(config, overrides)
