"""Records further networks of timm: DINOv2's, with and without registers, MLP-Mixer, ConvMixer.

XCiT's attention is recorded alone.

DINOv2's networks have no head, so their normalized class token is recorded. The weights with
registers are recorded under DINOv2's own names and, as timm converts them, under timm's.
"""

import numpy as np
import torch
from record_timm import HERE, record
from safetensors.torch import load_file, save_file
from saving import HEADS, WIDTH, save, tokens
from timm.models.convmixer import ConvMixer
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from timm.models.xcit import XCA

# timm's vit_small_patch14_dinov2 with other sizes.
DINOV2 = dict(
  img_size=42, patch_size=14, num_classes=0, embed_dim=12, depth=2, num_heads=3, init_values=1e-5
)


def record_registers():
  """Draws weights under DINOv2's names; timm converts them into its own model."""
  model = VisionTransformer(**DINOV2, reg_tokens=4, no_embed_class=True)
  generator = torch.Generator().manual_seed(4)
  drawn = {
    name: 0.3 * torch.randn(tensor.shape, generator=generator)
    for name, tensor in model.state_dict().items()
  }
  drawn["register_tokens"] = drawn.pop("reg_token")
  first = 0.3 * torch.randn(1, 1, 12, generator=generator)
  drawn["pos_embed"] = torch.cat([first, drawn["pos_embed"]], dim=1)
  drawn["mask_token"] = torch.randn(1, 12, generator=generator)
  save_file(drawn, HERE / "dinov2_registers.safetensors")
  model.load_state_dict(checkpoint_filter_fn(dict(drawn), model))
  save_file(model.state_dict(), HERE / "timm_registers.safetensors")
  images = torch.randn(2, 3, 42, 42, generator=generator)
  with torch.no_grad():
    logits = model.eval()(images)
  np.savez_compressed(
    HERE / "registers.npz", images=images.permute(0, 2, 3, 1).numpy(), logits=logits.numpy()
  )


def record_xcit():
  module = XCA(WIDTH, HEADS, qkv_bias=True).eval()
  generator = torch.Generator().manual_seed(5)
  x = tokens(13)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save("xcit", module, x, module(x), fewer_out=module(x[:, :9]))


def main():
  record("timm_dinov2", VisionTransformer(**DINOV2), side=42)
  record_registers()
  record_xcit()
  sizes = dict(num_classes=5, patch_size=8)
  record("timm_mixer", MlpMixer(img_size=24, num_blocks=2, embed_dim=12, **sizes))
  record("timm_convmixer", ConvMixer(12, 2, kernel_size=3, **sizes))
  for path in sorted(HERE.glob("timm_*.safetensors")):
    print(path.name, len(load_file(path)), "arrays")


if __name__ == "__main__":
  main()
