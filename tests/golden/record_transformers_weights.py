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
  ViTConfig,
  ViTForImageClassification,
)

HERE = Path(__file__).parent
BLOCKS = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, layer_norm_eps=1e-6)
SMALL = dict(**BLOCKS, intermediate_size=48, image_size=24, patch_size=8, num_labels=5)


def record(name, model, side, read):
  """Writes a network of drawn weights; `read` takes its logits or features."""
  with torch.no_grad():
    for value in model.parameters():
      value.copy_(0.3 * torch.randn_like(value))
    images = torch.randn(2, 3, side, side)
    logits = read(model.eval()(images))
  with TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    content = (Path(folder) / "model.safetensors").read_bytes()
  (HERE / f"{name}.safetensors").write_bytes(content)
  images = images.permute(0, 2, 3, 1).numpy()
  np.savez_compressed(HERE / f"{name}.npz", images=images, logits=logits.numpy())


def main():
  torch.manual_seed(0)
  vit = ViTForImageClassification(ViTConfig(**SMALL))
  record("transformers_vit", vit, 24, lambda out: out.logits)
  deit = DeiTForImageClassificationWithTeacher(DeiTConfig(**SMALL))
  record("transformers_deit", deit, 24, lambda out: out.logits)
  sizes = dict(**BLOCKS, mlp_ratio=4, image_size=42, patch_size=14, num_register_tokens=4)
  dinov2 = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes))
  record("transformers_dinov2", dinov2, 42, lambda out: out.pooler_output)


if __name__ == "__main__":
  main()
