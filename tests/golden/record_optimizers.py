"""Records trajectories of torch.optim, in optimizers.npz beside this file.

Needs PyTorch (recorded with 2.13.0) and NumPy: `python tests/golden/record_optimizers.py`. Each
case has ten steps with a learning rate that changes, on a (4, 3) kernel and a (3,) bias.
"""

import json
from pathlib import Path

import numpy as np
import torch

STEPS = 10
# name: (class, PyTorch's settings, our settings, whether the bias decays, norm to clip to)
CASES = {
  "adam": (torch.optim.Adam, dict(), dict(name="adam"), True, None),
  "adam_coupled": (
    torch.optim.Adam,
    dict(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    dict(name="adam", b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.1),
    True,
    None,
  ),
  "adamw_default": (torch.optim.AdamW, dict(), dict(name="adamw"), True, None),
  "adamw_matrices": (
    torch.optim.AdamW,
    dict(weight_decay=0.3),
    dict(name="adamw", weight_decay=0.3),
    False,
    None,
  ),
  "adamw_clipped": (
    torch.optim.AdamW,
    dict(weight_decay=0.3),
    dict(name="adamw", weight_decay=0.3),
    True,
    0.7,
  ),
  "sgd": (torch.optim.SGD, dict(), dict(name="sgd", momentum=0.0), True, None),
  "sgd_momentum": (
    torch.optim.SGD,
    dict(momentum=0.9, weight_decay=0.1),
    dict(name="sgd", momentum=0.9, weight_decay=0.1),
    False,
    None,
  ),
  "sgd_nesterov": (
    torch.optim.SGD,
    dict(momentum=0.8, nesterov=True, weight_decay=0.05),
    dict(name="sgd", momentum=0.8, nesterov=True, weight_decay=0.05),
    True,
    2.0,
  ),
}


def record(case: tuple, start: dict, grads: dict, rates: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the parameters after each step, (STEPS, ...) each."""
  optimizer_class, settings, _, bias_decays, clip = case
  params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
  bias = {"params": [params["bias"]]} | ({} if bias_decays else {"weight_decay": 0.0})
  optimizer = optimizer_class([{"params": [params["kernel"]]}, bias], lr=1.0, **settings)
  history: dict[str, list] = {name: [] for name in params}
  for i in range(STEPS):
    for name, param in params.items():
      param.grad = torch.tensor(grads[name][i])
    if clip is not None:
      torch.nn.utils.clip_grad_norm_(params.values(), clip)
    for group in optimizer.param_groups:
      group["lr"] = float(rates[i])
    optimizer.step()
    for name, param in params.items():
      history[name].append(param.detach().numpy().copy())
  return {name: np.stack(values) for name, values in history.items()}


def main() -> None:
  rng = np.random.default_rng(0)
  shapes = {"kernel": (4, 3), "bias": (3,)}
  start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
  grads = {
    name: rng.normal(size=(STEPS, *shape)).astype(np.float32) for name, shape in shapes.items()
  }
  rates = (0.1 * 0.8 ** np.arange(STEPS)).astype(np.float32)
  arrays: dict[str, np.ndarray] = {"rates": rates}
  arrays |= {f"start/{name}": value for name, value in start.items()}
  arrays |= {f"grads/{name}": value for name, value in grads.items()}
  ours = {}
  for case_name, case in CASES.items():
    _, _, optimizer, bias_decays, clip = case
    ours[case_name] = {
      "optimizer": optimizer,
      "decay": "all" if bias_decays else "matrices",
      "clip_norm": clip,
    }
    recorded = record(case, start, grads, rates)
    arrays |= {f"params/{case_name}/{name}": value for name, value in recorded.items()}
  arrays["cases"] = np.array(json.dumps(ours))
  np.savez_compressed(Path(__file__).with_name("optimizers.npz"), **arrays)


if __name__ == "__main__":
  main()
