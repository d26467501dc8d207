"""Records files in both formats of `torch.save`, and the arrays in them."""

import argparse
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


def main():
  torch.manual_seed(0)
  base = torch.randn(6, 4)
  model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
  tensors = OrderedDict(
    matrix=base,
    turned=base.T,
    row=base[2],
    every_other=base[1::2, ::3],
    half=base.half(),
    bfloat16=base.bfloat16(),
    double=base.double(),
    integers=torch.arange(5),
    bytes=torch.arange(5, dtype=torch.uint8),
    boolean=base > 0,
    scalar=torch.tensor(2.5),
    empty=torch.zeros(0, 3),
    parameter=torch.nn.Parameter(base[:2].clone()),
  )
  content = {
    "model": model.state_dict(),
    "tensors": tensors,
    "epoch": 3,
    "args": argparse.Namespace(lr=0.5, name="small"),
  }
  torch.save(content, HERE / "torch_archive.pth")
  torch.save(content, HERE / "torch_stream.pth", _use_new_zipfile_serialization=False)
  arrays = {f"tensors/{name}": x for name, x in tensors.items()}
  arrays |= {f"model/{name}": x for name, x in model.state_dict().items()}
  # NumPy has no bfloat16; float32 holds all of its values.
  plain = {
    name: (x.float() if x.dtype == torch.bfloat16 else x).detach().numpy()
    for name, x in arrays.items()
  }
  np.savez_compressed(HERE / "torch_files.npz", **plain)


if __name__ == "__main__":
  main()
