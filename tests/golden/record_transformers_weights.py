"""Records small networks of Hugging Face's `transformers`: weights as it saves them, and outputs.

Ran with transformers 5.24.0 and torch 2.14.1, which save the names that files on the Hub have.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import (
  DeiTConfig,
  DeiTForImageClassificationWithTeacher,
  Dinov2WithRegistersConfig,
  Dinov2WithRegistersModel,
  DINOv3ViTConfig,
  DINOv3ViTModel,
  SiglipConfig,
  SiglipModel,
  ViTConfig,
  ViTForImageClassification,
)

HERE = Path(__file__).parent
BLOCKS = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, layer_norm_eps=1e-6)
SMALL = dict(**BLOCKS, intermediate_size=48, image_size=24, patch_size=8, num_labels=5)


def draw(model):
  """Draws all weights anew."""
  for value in model.parameters():
    value.copy_(0.3 * torch.randn_like(value))
  return model.eval()


def save(name, model, **arrays):
  """Writes the weights, and arrays beside them."""
  with TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    content = (Path(folder) / "model.safetensors").read_bytes()
  (HERE / f"{name}.safetensors").write_bytes(content)
  for key in [key for key in arrays if "images" in key]:
    arrays[key] = arrays[key].permute(0, 2, 3, 1)
  np.savez_compressed(HERE / f"{name}.npz", **{key: x.numpy() for key, x in arrays.items()})


@torch.no_grad()
def record(name, model, side, read):
  """Writes a network of drawn weights; `read` returns the logits or features of its output."""
  draw(model)
  images = torch.randn(2, 3, side, side)
  save(name, model, images=images, logits=read(model(images)))


@torch.no_grad()
def record_tower(name, model, tower, prefix, **options):
  """Writes the features of the patches, and pooled, for images of 24 x 24 and 24 x 40 pixels."""
  draw(model)
  arrays = {}
  for part, width in (("", 24), ("wide_", 40)):
    images = torch.randn(2, 3, 24, width)
    out = tower(images, **options)
    arrays |= {f"{part}images": images, f"{part}logits": out.pooler_output}
    arrays[f"{part}tokens"] = out.last_hidden_state[:, prefix:]
  if options:  # the positions, interpolated as the library does
    blank = torch.zeros(1, 15, out.pooler_output.shape[-1])
    arrays["wide_table"] = tower.embeddings.interpolate_pos_encoding(blank, 24, 40)
  save(name, model, **arrays)


def main():
  torch.manual_seed(0)
  vit = ViTForImageClassification(ViTConfig(**SMALL))
  record("transformers_vit", vit, 24, lambda out: out.logits)
  deit = DeiTForImageClassificationWithTeacher(DeiTConfig(**SMALL))
  record("transformers_deit", deit, 24, lambda out: out.logits)
  sizes = dict(**BLOCKS, mlp_ratio=4, image_size=42, patch_size=14, num_register_tokens=4)
  dinov2 = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes))
  record("transformers_dinov2", dinov2, 42, lambda out: out.pooler_output)
  sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96)
  dinov3 = DINOv3ViTModel(DINOv3ViTConfig(**sizes, patch_size=8, num_register_tokens=4))
  record_tower("transformers_dinov3", dinov3, dinov3, 5)
  text = dict(**sizes, vocab_size=7, max_position_embeddings=2)
  vision = dict(**sizes, image_size=24, patch_size=8)
  siglip = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
  record_tower("transformers_siglip", siglip, siglip.vision_model, 0, interpolate_pos_encoding=True)


if __name__ == "__main__":
  main()
