"""Records the outputs of a whole Swin of Hugging Face's `transformers`: images, weights, logits.

    python tests/golden/record_swin.py

in the environment of `requirements.txt` beside this file.
"""

import torch
from saving import save
from transformers import SwinConfig, SwinForImageClassification


def record():
  """Records a Swin of two stages, 6 x 6 and 3 x 3 tokens, with windows of 3 x 3.

  The second stage is one window, which is not shifted.
  """
  torch.manual_seed(0)
  config = SwinConfig(
    image_size=12,
    patch_size=2,
    embed_dim=8,
    depths=[2, 2],
    num_heads=[2, 4],
    window_size=3,
    mlp_ratio=2.0,
    num_labels=5,
  )
  module = SwinForImageClassification(config).eval()
  for name, value in module.named_parameters():
    if value.ndim == 1 or "table" in name:
      torch.nn.init.normal_(value)
    else:  # from 0.02, so that attention is far from uniform
      value.mul_(10)
  images = torch.randn(2, 3, 12, 12)
  save("model_swin", module, images, module(images).logits)


if __name__ == "__main__":
  with torch.no_grad():
    record()
