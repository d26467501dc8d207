"""Records the masked autoencoder of Hugging Face's `transformers`: weights, noise, and losses.

Ran with transformers 5.24.0 and torch 2.14.1.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

SMALL = dict(
  hidden_size=12,
  num_hidden_layers=2,
  num_attention_heads=3,
  intermediate_size=48,
  layer_norm_eps=1e-6,
  image_size=24,
  patch_size=6,
  decoder_hidden_size=8,
  decoder_num_hidden_layers=2,
  decoder_num_attention_heads=2,
  decoder_intermediate_size=32,
)


def main():
  """Writes the losses with and without normalized pixels, and the decoder's fixed positions."""
  torch.manual_seed(0)
  model = ViTMAEForPreTraining(ViTMAEConfig(**SMALL)).eval()
  model.decoder.initialize_weights(16)  # the constructor leaves the positions at zero
  table = model.decoder.decoder_pos_embed.clone()
  images, noise = torch.randn(2, 3, 24, 24), torch.rand(2, 16)
  with torch.no_grad():
    for value in model.parameters():  # the positions too, so that a wrong place changes the loss
      value.copy_(0.3 * torch.randn_like(value))
    losses = {}
    for normalized in (False, True):
      model.config.norm_pix_loss = normalized
      out = model(images, noise=noise)
      losses[f"loss_{'normalized' if normalized else 'plain'}"] = out.loss
  np.savez_compressed(
    Path(__file__).parent / "mae.npz",
    images=images.permute(0, 2, 3, 1).numpy(),
    noise=noise.numpy(),
    masked=out.mask.numpy().astype(bool),
    predicted=out.logits.numpy(),
    decoder_positions=table.numpy(),
    **{name: value.numpy() for name, value in losses.items()},
    **{name: value.detach().numpy() for name, value in model.state_dict().items()},
  )


if __name__ == "__main__":
  main()
