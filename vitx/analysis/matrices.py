"""Makes token mixers compute their attention matrices, and measures the entropy of attention."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from vitx.attention import MIXERS
from vitx.config import registry
from vitx.models import find_mixer, names
from vitx.models.sown import collect


def expose_matrices(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the entry `model` of a config whose mixers compute their attention matrices.

  The mixers get implementation="masked"; rematerialization and the loop over layers are turned off.
  The network keeps its parameters. A mixer that has no matrix is unchanged.

  Args:
    model: The entry `model`.
  """
  changed, mixer = dict(model), find_mixer(model)
  if model.get("layer_cycle"):
    changed["layer_cycle"] = 0  # Nothing can be sown inside the loop over layers.
  if model.get("remat"):
    changed["remat"] = False  # Sown matrices cannot leave a rematerialized block.
  if not mixer:
    return changed
  mixer_class = registry.lookup(MIXERS, mixer["name"], "model.token_mixer")
  several = getattr(getattr(mixer_class, "properties", None), "implementations", ("masked",))
  if "masked" in several and "implementation" in registry.options(mixer_class):
    changed["token_mixer"] = {**mixer, "implementation": "masked"}
  return changed


def sow(model: nn.Module, variables: Mapping[str, Any], inputs: Any) -> Mapping[str, Any]:
  """Runs a model and returns the intermediate values that its modules expose with `sow`."""
  sown = model.apply(variables, inputs, train=False, mutable=["intermediates"])[1]
  return sown.get("intermediates", {})


def attention_entropies(
  model: nn.Module, variables: Mapping[str, Any], inputs: Any
) -> dict[str, jax.Array]:
  """Returns the entropy of each token mixer's attention, averaged over heads and queries.

  Args:
    model: A model of a config from `expose_matrices`.
    variables: The model's variable collections.
    inputs: The inputs, (B, ...), prepared by the task.

  Returns:
    The entropies in nats, float32 (B,), by names such as "attention_entropy/block_00". An entropy
    is 0 if every query attends to one key, and at most the logarithm of the number of keys. The
    dict is {} if no mixer has softmax probabilities.
  """
  matrices = collect(sow(model, variables, inputs), "probabilities")
  return {
    names.name_figure(f"{path}/attention_entropy"): jnp.mean(jnp.sum(entr(x), axis=-1), axis=(1, 2))
    for path, x in matrices.items()
  }
