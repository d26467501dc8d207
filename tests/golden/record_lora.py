"""Records attention with adapters of Hugging Face's peft, in lora.npz beside this file.

Needs PyTorch (recorded with 2.13.0) and peft (recorded with 0.21.2), which `requirements.txt` lacks
since nothing else needs it: `python tests/golden/record_lora.py`. The adapted projections are the
query, the value and the output; the loss is the sum of the outputs times fixed numbers.
"""

import math

import peft
import torch
from saving import DIM, HEADS, WIDTH, save, tokens

RANK, ALPHA = 3, 6
ADAPTED = ("query", "value", "out")


class Attention(torch.nn.Module):
  """Multi-head softmax attention, of tokens (B, N, C)."""

  def __init__(self):
    super().__init__()
    for name in ("query", "key", "value", "out"):
      self.add_module(name, torch.nn.Linear(WIDTH, WIDTH))

  def forward(self, x):
    q, k, v = (
      f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (self.query, self.key, self.value)
    )
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(DIM), -1)
    return self.out((weights @ v).transpose(1, 2).flatten(-2))


def main():
  torch.manual_seed(0)
  adapters = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(ADAPTED))
  module = peft.get_peft_model(Attention(), adapters)
  arrays = {}
  for name, parameter in module.named_parameters():
    if "lora_B" in name:  # peft begins with zeros
      torch.nn.init.normal_(parameter, std=0.3)
    name = name.removeprefix("base_model.model.").replace(".base_layer", "")
    arrays[name.replace(".default.weight", "")] = parameter
  x, loss = tokens(7), tokens(7, seed=1)
  out = module(x)
  (out * loss).sum().backward()
  grads = {f"grad.{name}": p.grad for name, p in arrays.items() if "lora" in name}
  save("lora", None, x, out, loss=loss, **arrays, **grads)


if __name__ == "__main__":
  main()
