"""Loads weights that vitx exported into timm, by the calls that vitx wrote; records the logits.

First write the weights, in vitx's own environment: `python -m tests.interop.exported`.
"""

import json

import numpy as np
import record_timm  # replaces torchvision
import torch
from safetensors.torch import load_file

HERE = record_timm.HERE
SIDE, CHANNELS = 8, 1


def main():
  images = np.random.default_rng(1).normal(size=(2, SIDE, SIDE, CHANNELS)).astype(np.float32)
  logits = {}
  for name, code in json.loads((HERE / "exported.json").read_text()).items():
    namespace = {"torch": torch}
    exec(code, namespace)
    model = namespace["model"]
    model.load_state_dict(load_file(HERE / f"exported_{name}.safetensors"))  # strict
    with torch.no_grad():
      logits[name] = model.eval()(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
  np.savez_compressed(HERE / "exported.npz", images=images, **logits)


if __name__ == "__main__":
  main()
