"""Whole runs on the digits, in this process or in others."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from configs.digits import get_config
from vitx.config.overrides import split
from vitx.config.settings import change

ROOT = Path(__file__).resolve().parents[1]
# Small, and yet with augmentation, mixing and dropout. One layer has no stochastic depth, whose
# randomness `tests/training/test_step.py` checks.
TINY = (
  "softmax,stem=linear,stem.patch=4,model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=32,"
  "model.dropout=0.1,model.stochastic_depth=0.1,augment.mixup=0.2,batch_size=32,"
  "evaluation.every=10 steps,checkpoint.every=8 steps,log_every=5 steps,duration=40 steps,"
  "schedule.warmup=5 steps,ema_decay=0.9"
)

# Without randomness in a step, which takes half of the time to compile it.
PLAIN = ("augment.rotate=0.0", "augment.pad_crop=0", "augment.mixup=0.0", "model.dropout=0.0")


def tiny(*overrides: str):
  """The config of a run of seconds."""
  return get_config(replace(TINY, *overrides))


def change_settings(loaded, changes: Mapping):
  """Returns a loaded model with other values of some settings, given by their paths."""
  return dataclasses.replace(loaded, settings=change(loaded.settings, changes))


def replace(text: str, *overrides: str) -> str:
  """Returns overrides in one string, of which a later one replaces an earlier one of its field."""
  items: dict[str, str] = {}
  for item in split(",".join((text, *overrides))):
    field = item.partition("=")[0]
    items = {k: v for k, v in items.items() if k != field and not k.startswith(f"{field}.")}
    items[field] = item
  return ",".join(items.values())


def start(
  workdir,
  *overrides: str,
  devices: int = 1,
  flags=(),
  before: str = "",
  environment: Mapping[str, str] | None = None,
) -> subprocess.Popen:
  """Starts `train.py` on the tiny config as a user would, after code that sets a trap for it."""
  config = f"configs/digits.py:{replace(TINY, *overrides)}"
  trapped = f"{before}\nimport runpy\nrunpy.run_path('train.py', run_name='__main__')"
  program = ["-c", trapped] if before else ["train.py"]
  command = [sys.executable, *program, "--config", config, "--workdir", str(workdir), *flags]
  base = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  return subprocess.Popen(command, cwd=ROOT, env=base | dict(environment or {}), **pipes)


def at_step(step: int, action: str) -> str:
  """Returns code for `start`: an action of that process when it has dispatched a step."""
  return f"""
import os, signal
from vitx.training.in_flight import InFlight
add = InFlight.add
def add_and_act(self, steps, *more):
  add(self, steps, *more)
  if {step} in steps:
    {action}
InFlight.add = add_and_act
"""


def finish(process: subprocess.Popen, code: int = 0, timeout: float = 300) -> str:
  """Waits, checks the exit status and returns what was printed."""
  output, _ = process.communicate(timeout=timeout)
  assert process.returncode == code, output[-4000:]
  return output


def rows(workdir) -> list[dict]:
  """The metrics without their times."""
  lines = (Path(workdir) / "metrics.jsonl").read_text().splitlines()
  return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def contents(directory: Path) -> dict:
  """All files, as bytes."""
  return {p: p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def snapshot(directory: Path) -> dict:
  """Everything that a write would change: times, and the content of files."""
  paths = [directory, *sorted(directory.rglob("*"))]
  return {p: (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


def final_state(workdir) -> dict:
  """The newest checkpoint as nested dicts."""
  from vitx.checkpoints.store import CheckpointStore

  with CheckpointStore(Path(workdir) / "checkpoints", read_only=True) as store:
    return store.restore(store.latest()).state
