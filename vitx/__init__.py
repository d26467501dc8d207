"""vitx: vision transformers whose attention is efficient, in JAX and Flax.

    import vitx
    model = vitx.create_model("vit", num_classes=10, depth=4)
    loaded = vitx.load("runs/digits")
    vitx.predict(loaded, ["digit.png"])
    vitx.evaluate("runs/digits")
    vitx.export(loaded, "digits.jaxprogram")

`dir(vitx)` lists the names. Each is imported at its first use, so `import vitx` touches no device.
To write a mixer of your own, begin with `from vitx.attention import AttentionModule`; for
operations on arrays, begin with `from vitx import ops`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
  "create_model": "vitx.models",
  "evaluate": "vitx.inference.evaluate",
  "export": "vitx.inference.export",
  "initialize": "vitx.models",
  "list_models": "vitx.models",
  "load": "vitx.interop.repository",
  "load_config": "vitx.config.loader",
  "predict": "vitx.inference.predict",
  "probe": "vitx.inference.probe",
  "read_metrics": "vitx.checkpoints.metrics",
  "sample": "vitx.inference.sample",
  "to_nnx": "vitx.interop.nnx",
  "train": "vitx.training.phases",
}
__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
  from vitx.checkpoints.metrics import read_metrics as read_metrics
  from vitx.config.loader import load_config as load_config
  from vitx.inference.evaluate import evaluate as evaluate
  from vitx.inference.export import export as export
  from vitx.inference.predict import predict as predict
  from vitx.inference.probe import probe as probe
  from vitx.inference.sample import sample as sample
  from vitx.interop.nnx import to_nnx as to_nnx
  from vitx.interop.repository import load as load
  from vitx.models import create_model as create_model
  from vitx.models import initialize as initialize
  from vitx.models import list_models as list_models
  from vitx.training.phases import train as train


def __getattr__(name: str) -> Any:
  if name not in _PUBLIC:
    raise AttributeError(f"module 'vitx' has no attribute {name!r}")
  return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
  return sorted(__all__)
