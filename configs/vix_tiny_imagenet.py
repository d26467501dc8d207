"""Vision X-formers on Tiny ImageNet: Tables 2 and 4 of the paper, with their exact sizes.

vitx prepare tiny_imagenet --from DIRECTORY
python train.py --config configs/vix_tiny_imagenet.py:hybrid_vin --workdir runs/hybrid_vin_tiny

  @inproceedings{jeevan2022resource,
    title     = {Resource-efficient Hybrid X-formers for Vision},
    author    = {Jeevan, Pranav and Sethi, Amit},
    booktitle = {IEEE/CVF Winter Conference on Applications of Computer Vision (WACV)},
    year      = {2022},
    note      = {arXiv:2107.02239}
  }

The models are those of `vix_cifar10.py` (which describes the authors' experiments), for 64 x 64
pixels and 200 classes: patches of 2 x 2 pixels, or a first convolution of stride 2, so again 1,024
tokens. For this data set the paper has no PiT and no rotary row; ours are
`configs/vix_cifar10.py:pin,dataset=tiny_imagenet,stem.patch=2`, or here `vin,posemb=rope`.
"""

from ml_collections import ConfigDict

from vitx.config import parse_arg, take_override, with_overrides, with_source_facts
from vitx.configs.vix_cifar10 import COMPUTED, RECIPES, VIX_ROWS, list_published, make_config

__all__ = ["COMPUTED", "MISPRINTS", "PUBLISHED", "ROWS", "get_config"]

ROWS = VIX_ROWS

# The printed figures; `vix_cifar10.py` describes the columns.
PUBLISHED = list_published(
  {
    # Table 2
    "vit": (556_104, 209.59, 26.43, 51.82, 14.1),
    "vip": (557_640, 85.35, 28.17, 53.93, 4.4),
    "vil": (441_416, 77.90, 24.38, 49.31, 2.0),
    "vin": (556_632, 86.82, 30.17, 55.97, 3.6),
    "fnet": (293_448, 60.32, 22.75, 49.85, 1.5),
    "mlp_mixer": (8_558_664, 90.79, 18.47, 42.16, 1.2),
    "hybrid_vit": (647_688, 211.60, 34.48, 60.79, 14.1),
    "hybrid_vip": (649_224, 87.36, 34.13, 60.42, 4.4),
    "hybrid_vil": (533_000, 79.91, 26.90, 52.88, 2.2),
    "hybrid_vin": (648_216, 88.83, 34.05, 60.80, 3.6),
    "hybrid_fnet": (385_032, 62.33, 26.39, 51.86, 1.6),
    "hybrid_mlp_mixer": (8_650_248, 92.80, 22.76, 47.33, 1.2),
    # Table 4
    "levit": (649_480, 213.28, 38.29, 65.23, 14),
    "levip": (646_920, 77.27, 41.49, 68.39, 4.9),
    "levil": (530_696, 69.89, 26.52, 51.85, 3.3),
    "levin": (645_912, 77.26, 38.28, 64.94, 4.3),
    "cct": (930_057, 225.61, 39.05, 65.74, 14.2),
    "ccp": (931_593, 101.61, 40.11, 66.93, 4.1),
    "ccl": (815_369, 94.17, 37.24, 62.97, 2.3),
    "ccn": (930_585, 101.61, 40.80, 67.81, 3.9),
    "cvt": (1_124_296, 173.34, 40.69, 68.19, 12.3),
    "cvp": (852_424, 100.3, 45.26, 71.21, 4.4),
    "cvl": (736_200, 92.86, 33.95, 61.29, 2.3),
    "cvn": (851_416, 100.3, 45.47, 71.35, 4.0),
  }
)
MISPRINTS = {"levil": {"size_mb": 69.82}}


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,recipe=run|text,field=value,...`; the row defaults to "vit"."""
  row, overrides = parse_arg(arg, ROWS, default="vit")
  recipe, overrides = take_override(overrides, "recipe", RECIPES)
  config = make_config(row, recipe, stride=2)
  config.data.source = "tiny_imagenet"
  config.data.default_image_size = 64
  config = with_overrides(config, overrides)
  # The authors' statistics, of pixels in 0..255.
  mean, std = (122.4786, 114.2755, 101.3963), (70.4924, 68.5679, 71.8127)
  return with_source_facts(
    config,
    "tiny_imagenet",
    num_classes=200,
    image_size=64,
    mean=tuple(value / 255 for value in mean),
    std=tuple(value / 255 for value in std),
  )
