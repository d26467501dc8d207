"""BBViT on Tiny ImageNet, which the paper names as future work.

vitx prepare tiny_imagenet --from DIRECTORY
python train.py --config configs/bbvit_tiny_imagenet.py:tiny_bbvit --workdir runs/tiny_bbvit_200

  @unpublished{shivasankaran2022sufficient,
    title  = {"Sufficient" Attention Is All You Need},
    author = {Shivasankaran V P},
    note   = {IIT Gandhinagar},
    year   = {2022}
  }

The rows are those of `bbvit_imagenette.py` (which describes the paper's claims and experiments)
without `tiny_cvt` and `tiny_swin`, for 200 classes. Images of 64 pixels are resized to 69, in
patches of 3: again 23 x 23 + 1 tokens in 53 blocks of 10, so every row has the attention graph of
that row on Imagenette. There are no published figures.
"""

from ml_collections import ConfigDict

from vitx.config import parse_arg, take_override, with_overrides, with_source_facts
from vitx.configs.bbvit_imagenette import FLAT_ROWS, RECIPES, make_config

ROWS = FLAT_ROWS


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,recipe=run|text,field=value,...`; the row defaults to tiny_vit."""
  row, overrides = parse_arg(arg, ROWS, default="tiny_vit")
  recipe, overrides = take_override(overrides, "recipe", RECIPES)
  config = make_config(row, recipe, image_size=69, patch=3)
  config.data.source = "tiny_imagenet"
  config = with_overrides(config, overrides)
  return with_source_facts(config, "tiny_imagenet", num_classes=200)
