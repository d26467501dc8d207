"""The published weights that vitx knows by name: `vitx convert --list`.

A new entry is a line of `WEIGHTS`. Tests compare its parameters with those of its config's network.
"""

import dataclasses
import hashlib
import re
from pathlib import Path

from vitx.config.errors import ConfigError
from vitx.interop import hub

_DEIT = "https://dl.fbaipublicfiles.com/deit/"
_DINOV2 = "https://dl.fbaipublicfiles.com/dinov2/"
_DINOV3 = "https://dl.fbaipublicfiles.com/dinov3/"
_AUGREG = "https://storage.googleapis.com/vit_models/augreg/"
_LV_VIT = "https://github.com/zihangJiang/TokenLabeling/releases/download/1.0/"
_TIMM = "https://github.com/rwightman/pytorch-image-models/releases/download/"
_CONVMIXER = "https://github.com/tmp-iclr/convmixer/releases/download/timm-v1.0/"
_HALF = "data.mean=(0.5,0.5,0.5),data.std=(0.5,0.5,0.5)"
# Writers of PyTorch's files end a name with the first digits of the file's SHA-256.
_DIGEST = re.compile(r"-([0-9a-f]{8})\.")


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
  """Weights that a project has published.

  Attributes:
    name: The source that `init_from` and `vitx convert` take: `timm:NAME`, or the name of the file
      if timm's repositories lack it.
    row: The config of the network, `FILE:ROW` or `FILE:ROW,field=value`.
    parameters: The number of parameters, including those of a published head.
    address: The address of the authors' file.
    classes: The number of classes of the head, or 0 for weights without a head.
    size: The side in pixels of the images for which the network's positions were trained.
    license: The license of the weights, as their authors state it.
  """

  name: str
  row: str
  parameters: int
  address: str
  classes: int = 1000
  size: int = 224
  license: str = "Apache-2.0"

  @property
  def file(self) -> str:
    """Returns the name of the authors' file."""
    return self.address.rpartition("/")[2]

  @property
  def digest(self) -> str:
    """Returns the first digits of the SHA-256 of the authors' file, or "" if it is not known."""
    match = _DIGEST.search(self.file)
    return match[1] if match else ""

  @property
  def config(self) -> str:
    """Returns `row`, followed by the override of the number of classes if there is a head."""
    return f"{self.row},model.num_classes={self.classes}" if self.classes else self.row

  def __str__(self) -> str:
    head = f"{self.classes:,} classes" if self.classes else "no head"
    digest = f"SHA-256 {self.digest}..." if self.digest else "SHA-256 not known"
    return (
      f"{self.name}\n  {self.parameters:,} parameters, {self.size} pixels, {head}, {self.license}\n"
      f"  config  {self.row}\n  file    {self.address} ({digest})"
    )


_META = "DINOv3 License (Meta gives access on request)"
WEIGHTS = (
  PublishedWeights(
    "timm:deit_tiny_patch16_224.fb_in1k",
    "imagenet:deit_ti",
    5_717_416,
    f"{_DEIT}deit_tiny_patch16_224-a1311bcf.pth",
  ),
  PublishedWeights(
    "timm:deit_small_patch16_224.fb_in1k",
    "imagenet:deit_s",
    22_050_664,
    f"{_DEIT}deit_small_patch16_224-cd65a155.pth",
  ),
  PublishedWeights(
    "timm:deit_base_patch16_224.fb_in1k",
    "imagenet:deit_b",
    86_567_656,
    f"{_DEIT}deit_base_patch16_224-b5f2ef4d.pth",
  ),
  PublishedWeights(
    "timm:deit_tiny_distilled_patch16_224.fb_in1k",
    "imagenet:deit_ti_distilled",
    5_910_800,
    f"{_DEIT}deit_tiny_distilled_patch16_224-b40b3cf7.pth",
  ),
  PublishedWeights(
    "timm:deit_small_distilled_patch16_224.fb_in1k",
    "imagenet:deit_s_distilled",
    22_436_432,
    f"{_DEIT}deit_small_distilled_patch16_224-649709d9.pth",
  ),
  PublishedWeights(
    "timm:deit_base_distilled_patch16_224.fb_in1k",
    "imagenet:deit_b_distilled",
    87_338_192,
    f"{_DEIT}deit_base_distilled_patch16_224-df68dfff.pth",
  ),
  PublishedWeights(
    "lvvit_s-26M-224-83.3.pth.tar",
    "imagenet:lv_vit_s",
    26_151_824,
    f"{_LV_VIT}lvvit_s-26M-224-83.3.pth.tar",
  ),
  PublishedWeights(
    "lvvit_m-56M-224-84.0.pth.tar",
    "imagenet:lv_vit_m",
    55_830_544,
    f"{_LV_VIT}lvvit_m-56M-224-84.0.pth.tar",
  ),
  PublishedWeights(
    "timm:vit_tiny_patch16_224.augreg_in21k",
    "finetune:augreg_ti",
    9_740_115,
    f"{_AUGREG}Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0.npz",
    classes=21_843,
  ),
  PublishedWeights(
    "timm:vit_small_patch16_224.augreg_in21k",
    "finetune:augreg_s",
    30_075_219,
    f"{_AUGREG}S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0.npz",
    classes=21_843,
  ),
  PublishedWeights(
    "timm:vit_base_patch16_224.augreg_in21k",
    "finetune:augreg_b",
    102_595_923,
    f"{_AUGREG}B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz",
    classes=21_843,
  ),
  PublishedWeights(
    "timm:vit_small_patch14_dinov2.lvd142m",
    "finetune:dinov2_s",
    22_056_192,
    f"{_DINOV2}dinov2_vits14/dinov2_vits14_pretrain.pth",
    classes=0,
    size=518,
  ),
  PublishedWeights(
    "timm:vit_base_patch14_dinov2.lvd142m",
    "finetune:dinov2_b",
    86_579_712,
    f"{_DINOV2}dinov2_vitb14/dinov2_vitb14_pretrain.pth",
    classes=0,
    size=518,
  ),
  PublishedWeights(
    "timm:vit_small_patch14_reg4_dinov2.lvd142m",
    "finetune:dinov2_reg_s",
    22_057_344,
    f"{_DINOV2}dinov2_vits14/dinov2_vits14_reg4_pretrain.pth",
    classes=0,
    size=518,
  ),
  PublishedWeights(
    "timm:vit_base_patch14_reg4_dinov2.lvd142m",
    "finetune:dinov2_reg_b",
    86_582_016,
    f"{_DINOV2}dinov2_vitb14/dinov2_vitb14_reg4_pretrain.pth",
    classes=0,
    size=518,
  ),
  PublishedWeights(
    "timm:vit_small_patch16_dinov3.lvd1689m",
    "finetune:dinov3_s",
    21_596_160,
    f"{_DINOV3}dinov3_vits16/dinov3_vits16_pretrain_lvd1689m-08c60483.pth",
    classes=0,
    license=_META,
  ),
  PublishedWeights(
    "timm:vit_base_patch16_dinov3.lvd1689m",
    "finetune:dinov3_b",
    85_659_648,
    f"{_DINOV3}dinov3_vitb16/dinov3_vitb16_pretrain_lvd1689m-73cec8be.pth",
    classes=0,
    license=_META,
  ),
  PublishedWeights(
    "timm:vit_base_patch16_siglip_224.v2_webli",
    "finetune:siglip2_b",
    92_884_224,
    "https://huggingface.co/google/siglip2-base-patch16-224",
    classes=0,
  ),
  PublishedWeights(
    "timm:mixer_b16_224.goog_in21k_ft_in1k",
    "imagenet:deit_b,pool=mean,posemb=none,token_mixer=mlp_mixing,"
    f"model.token_mixer.hidden=384,{_HALF}",
    59_880_472,
    f"{_TIMM}v0.1-vitjx/jx_mixer_b16_224-76587d61.pth",
  ),
  PublishedWeights(
    "timm:convmixer_1024_20_ks9_p14.in1k",
    "imagenet:deit_b,model=convmixer,model.width=1024,model.depth=20,model.patch=14,"
    "model.kernel=9,evaluation.crop_ratio=0.96",
    24_383_464,
    f"{_CONVMIXER}convmixer_1024_20_ks9_p14.pth.tar",
    license="MIT",
  ),
)


def look_up(source: str) -> PublishedWeights | None:
  """Returns the published weights that a source names, or `None` if vitx does not know them.

  Args:
    source: The path of a file, `timm:NAME` or `hf:timm/NAME`. A revision is ignored. A name of timm
      without its tag, the part after the dot, means the first entry of `WEIGHTS` with that
      architecture.
  """
  if hub.is_name(source):
    name = f"timm:{hub.split(source)[0].removeprefix('timm/')}"
    return next((x for x in WEIGHTS if name in (x.name, x.name.partition(".")[0])), None)
  return next((x for x in WEIGHTS if Path(source).name == x.file), None)


def check_digest(path: str) -> None:
  """Checks the SHA-256 of a file that has the name of a published file.

  Raises:
    ConfigError: The SHA-256 differs from that of the published file.
  """
  known = look_up(path)
  if known is None or not known.digest:
    return
  with open(path, "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  if not digest.startswith(known.digest):
    raise ConfigError(
      f"init_from={path!r} has the SHA-256 {digest[:8]}..., but the published file of this name has"
      f" {known.digest}...: it is damaged or another file. Download {known.address} again, or give"
      " your own weights another name."
    )
