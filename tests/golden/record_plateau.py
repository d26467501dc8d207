"""Records how ReduceLROnPlateau of PyTorch moves the rate, in plateau.json beside this file.

Needs PyTorch (recorded with 2.13.0): `python tests/golden/record_plateau.py`.
"""

import json
import random
from pathlib import Path

import torch

# Settings in PyTorch's words.
SETTINGS = [
  dict(),
  dict(patience=0),
  dict(patience=2, factor=0.5),
  dict(patience=1, factor=0.5, cooldown=3),
  dict(patience=1, factor=0.3, min_lr=0.05),
  dict(patience=0, factor=0.5, min_lr=0.2, cooldown=1),
  dict(patience=0, factor=0.5, eps=0.1),
  dict(patience=2, factor=0.5, threshold=0.1),
  dict(patience=2, factor=0.5, threshold=0.05, threshold_mode="abs"),
  dict(mode="max", patience=2, factor=0.5, threshold=0.02),
  dict(mode="max", patience=1, factor=0.7, threshold=0.05, threshold_mode="abs", cooldown=2),
]


def metrics(name: str, rng: random.Random) -> list[float]:
  """Returns 40 evaluations of a loss that falls, stalls, rises, or only gets worse."""
  if name == "falls":
    return [2.0 * 0.95**i for i in range(40)]
  if name == "stalls":
    return [max(1.0, 2.0 - 0.2 * i) for i in range(40)]
  if name == "noisy":
    return [1.0 / (1 + 0.2 * i) + 0.3 * rng.random() for i in range(40)]
  return [0.5 + 0.01 * i for i in range(40)]


def record(settings: dict, values: list[float]) -> list[float]:
  """Returns the learning rate after each evaluation; it starts at 1."""
  optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
  scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **settings)
  rates = []
  for value in values:
    scheduler.step(value)
    rates.append(optimizer.param_groups[0]["lr"])
  return rates


def main() -> None:
  rng = random.Random(0)
  cases = []
  for settings in SETTINGS:
    for name in ("falls", "stalls", "noisy", "rises"):
      values = [round(value, 4) for value in metrics(name, rng)]
      cases.append({"settings": settings, "metrics": values, "rates": record(settings, values)})
  lines = ",\n".join(json.dumps(case) for case in cases)
  Path(__file__).with_name("plateau.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
  main()
