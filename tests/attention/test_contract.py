"""Every registered token mixer keeps the contract of a token mixer."""

import dataclasses

import pytest

from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.attention.pattern import PatternAttention
from vitx.testing import LAYOUTS, check_token_mixer

ORDERED = {"permutation_equivariant": False, "masking_is_deletion": False}
# Fields that fit 16 and 17 tokens; {} means the defaults.
CASES = {
  "softmax": [{}, {"rotary": "axial"}, {"relative_bias": "axial"}],
  "performer": [
    {},
    {"kernel": "relu", "causal": True, "local_heads": 1, "local_window": 3, "rotary": "sequence"},
    {"local_heads": 2, "local_window": 5},
  ],
  "linear_transformer": [{}, {"causal": True, "rotary": "axial"}],
  "linformer": [{"slots": 4}, {"slots": 4, "share_kv": True, "one_kv_head": True}],
  "nystromformer": [{"landmarks": 4}, {"landmarks": 4, "padding": "front", "kernel_size": 0}],
  "shaped": [
    {},
    {"one_map": True, "values": "identity", "output": "identity"},
    {"one_map": True, "per_head": False, "center": False, "values": "kept", "start": "dynamic"},
    {"output": "kept", "head_dim": 4, "rotary": "sequence", "large_logits": True},
    {"one_map": True, "relative_bias": "axial"},
  ],
  "bigbird": [
    {"block": 4, "random": 1, "tile": 8},
    {"block": 5, "variant": "W+G", "tile": 4},
    {"block": 4, "random": 1, "tile": 4, "prefix_global": True, "relative_bias": "axial"},
  ],
  "strided": [
    {"tile": 8},
    {"arrangement": "layers", "layer": 1, "tile": 8},
    {"arrangement": "merged", "form": "paper", "tile": 8},
    {"form": "bidirectional", "stride": 3, "relative_bias": "axial"},
  ],
  "fixed": [{"tile": 8}, {"arrangement": "merged", "causal": True, "summary": 2, "tile": 8}],
  "pattern": [{"edges": "window_and_class", "tile": 8}],
  "longformer": [
    {"window": 2, "dilation": (1, 2), "tile": 8},
    {"window": 2, "tile": 8, "global_projections": "separate", "global_tokens": (-3,)},
  ],
  "locality": [
    {},
    {"relative_bias": "axial", "self_edge": True},
    {"edges": "neighborhood", "temperature": "fixed", "tile": 8, "relative_bias": "axial"},
  ],
  "axial": [{"tile": 8}, {"tile": 8, "rotary": "axial"}],
  "neighborhood": [{"size": 3, "tile": 8}],
  "shifted_window": [
    {"size": 2, "tile": 8},
    {"size": 2, "layer": 0, "tile": 8},
    {"size": 3, "tile": 8, "relative_bias": "window"},
  ],
  "erdos_renyi": [{"p": 0.3, "tile": 8}],
  "watts_strogatz": [{"neighbors": 4, "tile": 8}],
  "sparsifiner": [
    {"keep": 0.5},
    # With one coefficient many scores are nearly equal, and half precision ranks them differently.
    {"keep": 0.3, "coefficient_top": 1, "half_tolerance": 1.0},
    {"sparse": False},
    {"keep": 0.3, "granularity": "block", "block": 3, "half_tolerance": 1.0},
    {"keep": 0.5, "coefficient_top": 3, "predictor_implementation": "sparse"},
  ],
  "bilevel": [  # half precision ranks nearly equal regions differently
    {"regions": 2, "top": 2, "half_tolerance": 1.0},
    {"regions": 3, "top": 1, "local_kernel": 3, "relative_bias": "axial", "half_tolerance": 1.0},
    {"regions": 4, "top": 5, "local_kernel": 0, "scale_by": "width", "half_tolerance": 1.0},
  ],
  "fnet": [{}],
  "mlp_mixing": [{}, {"hidden": 7}],
  "xcit": [{}, {"use_bias": False}],
}
# `check_token_mixer` sets `causal` itself, for mixers that accept it.
ORDER_MATTERS = ("rotary", "relative_bias", "causal", "local_heads")


def check(name, fields, **options):
  module = MIXERS[name]
  properties = module.properties
  if any(field in fields for field in ORDER_MATTERS):
    properties = dataclasses.replace(properties, **ORDERED)
  if fields.get("global_projections") == "separate":  # global tokens attend all
    properties = dataclasses.replace(properties, accepts_causal=False)
  check_token_mixer(module, properties=properties, **options, **fields)


def test_every_mixer_is_tested():
  by_batch_statistics = {"cvt", "levit"}  # tests/layers/test_batch_norm.py
  assert set(CASES) | by_batch_statistics == set(MIXERS)


# Without jit, on two devices and with every check on both layouts: one mixer of each kind.
IN_FULL = ("performer", "linformer", "shaped", "fnet", "mlp_mixing", "pattern")
# `tests/attention/test_third_party.py` has the op of softmax attention in full.
NUMBERED = [f"{name}-{number}" for name in sorted(CASES) for number in range(len(CASES[name]))]


@pytest.mark.parametrize("case", all_but("softmax-0", "bigbird-0", of=NUMBERED))
def test_contract(case):
  name, number = case.split("-")
  first, fields = number == "0", CASES[name][int(number)]
  if first and name in IN_FULL:
    check(name, fields)
    return
  # Patterns on aligned tokens: tests/ops/test_pattern_attention.py.
  both = first and not issubclass(MIXERS[name], PatternAttention)
  for layout in LAYOUTS if both else LAYOUTS[-1:]:
    check(name, fields, pairwise=True, layouts=(layout,))
