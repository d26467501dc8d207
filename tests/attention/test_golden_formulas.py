"""Modules give the values of their formulas, which were computed by loops (tests/golden)."""

import pytest

from tests.attention.golden import BOTH, HEADS, close, load, run
from vitx.attention.linear_transformer import LinearTransformer
from vitx.attention.shaped import ShapedAttention


def nested(g, skip=()):
  """Returns recorded arrays, such as `query.kernel`, as nested parameters; `skip` omits some."""
  params = {}
  for name, value in g.items():
    if name not in ("x", "out", "mask", "masked_out", *skip):
      module, _, leaf = name.partition(".")
      if leaf:
        params.setdefault(module, {})[leaf] = value
      else:
        params[name] = value
  return {"params": params}


@BOTH
@pytest.mark.parametrize("causal", [False, True])
def test_the_linear_transformer_equals_its_formula(causal, implementation):
  g = load("linear_transformer")
  variables = nested(g, skip=("causal", "masked_causal"))
  module = LinearTransformer(HEADS, causal=causal, implementation=implementation)
  close(run(module, variables, g["x"]), g["causal" if causal else "out"])
  masked = run(module, variables, g["x"], g["mask"])
  close(masked, g["masked_causal" if causal else "masked_out"])


SHAPED = {
  "per_head": {},
  "one_map": {"one_map": True, "per_head": False, "large_logits": True},
  "identity": {"one_map": True, "values": "identity", "output": "identity"},
  "kept": {"per_head": False, "center": False, "values": "kept", "output": "kept"},
}


@BOTH
@pytest.mark.parametrize("name", SHAPED)
def test_shaped_attention_equals_its_formula(name, implementation):
  g = load(f"shaped_{name}")
  variables = nested(g)
  params, width = variables["params"], g["x"].shape[-1]
  for part, shape in {"value": (width, HEADS, -1), "out": (HEADS, -1, width)}.items():
    if part in params:
      params[part]["kernel"] = params[part]["kernel"].reshape(shape)
  if "value" in params:
    params["value"]["bias"] = params["value"]["bias"].reshape(HEADS, -1)
  module = ShapedAttention(HEADS, head_dim=4, implementation=implementation, **SHAPED[name])
  close(run(module, variables, g["x"]), g["out"])
  close(run(module, variables, g["x"], g["mask"]), g["masked_out"])
