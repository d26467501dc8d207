"""Runs a model and returns the attention matrices, queries and keys of its token mixers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis.matrices import sow
from vitx.attention.base import TokenMixer
from vitx.attention.shaped import ShapedAttention
from vitx.models.names import DECODER, TOKEN_MIXER
from vitx.models.sown import collect
from vitx.ops.kernels.softmax import masked_softmax
from vitx.ops.layout import TokenLayout


@dataclasses.dataclass(frozen=True)
class MixerCapture:
  """The arrays of one token mixer for B examples.

  Attributes:
    path: The path of the module, such as "block_0/token_mixer".
    mixer: The name of the mixer's class.
    layout: The layout of the mixer's tokens.
    matrix: The matrix that the mixer sowed, (B, H, N, N) float32 for most mixers, or `None`.
    q, k: The queries and keys with positions applied, (B, N, H, D), or `None` if the mixer has
      none.
    scale: The scale of the logits.
  """

  path: str
  mixer: str
  layout: TokenLayout
  matrix: np.ndarray | None
  q: np.ndarray | None = None
  k: np.ndarray | None = None
  scale: float = 1.0

  @property
  def map(self) -> np.ndarray | None:
    """Returns `matrix` or, for shaped attention, only the softmax attention that it contains."""
    if self.mixer != ShapedAttention.__name__ or self.q is None or self.k is None:
      return self.matrix
    return softmax_map(self.q, self.k, self.scale)


def softmax_map(q: Any, k: Any, scale: float) -> np.ndarray:
  """Returns the softmax attention (B, H, N, M) of queries (B, N, H, D) to keys (B, M, H, D)."""
  logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, precision="highest") * scale
  return np.asarray(masked_softmax(logits, None))


def capture(model: nn.Module, variables: Mapping[str, Any], inputs: Any) -> list[MixerCapture]:
  """Runs a model and returns the arrays of each token mixer, in the order of the blocks.

  The decoder of a masked autoencoder is left out.

  Args:
    model: A model with mixers that compute their matrices (implementation="masked"), without
      rematerialization.
    variables: The model's variable collections.
    inputs: The inputs, (B, ...), prepared by the task.
  """
  known: dict[str, dict[str, Any]] = {}

  def look(variables, inputs):
    projected: dict[str, dict[str, Any]] = {}

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
      module, method = context.module, context.method_name
      is_mixer = isinstance(module, TokenMixer) or module.name == TOKEN_MIXER
      if not is_mixer or DECODER in module.path or method not in ("__call__", "apply_positions"):
        return call(*args, **kwargs)
      mixer = known.setdefault("/".join(module.path), {"mixer": type(module).__name__})
      if method == "__call__":
        mixer["layout"] = args[1] if len(args) > 1 else kwargs["layout"]
        return call(*args, **kwargs)
      q, k = call(*args, **kwargs)
      scale = args[3] if len(args) > 3 else kwargs.get("scale")
      mixer["scale"] = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
      projected["/".join(module.path)] = {"q": q, "k": k}
      return q, k

    with nn.intercept_methods(note):
      return collect(sow(model, variables, inputs), "attention"), projected

  sown, projected = jax.device_get(jax.jit(look)(variables, inputs))
  # JAX sorts the keys of dicts, block_10 before block_2; `known` has the order of the calls.
  return [
    MixerCapture(path, matrix=sown.get(path), **mixer, **projected.get(path, {}))
    for path, mixer in known.items()
  ]
