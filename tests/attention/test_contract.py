"""Every registered token mixer keeps the contract of a token mixer."""

import dataclasses

import pytest

from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.testing import LAYOUTS, check_token_mixer

ORDERED = {"permutation_equivariant": False, "masking_is_deletion": False}
# Fields that fit 16 and 17 tokens; {} means the defaults.
CASES = {
  "softmax": [{}, {"rotary": "axial", "relative_bias": "axial"}],
  "performer": [
    {},
    {"kernel": "relu", "causal": True, "local_heads": 1, "local_window": 3, "rotary": "sequence"},
  ],
  "linear_transformer": [{}, {"causal": True, "rotary": "axial"}],
  "linformer": [{"slots": 4}, {"slots": 4, "share_kv": True, "one_kv_head": True}],
  "nystromformer": [{"landmarks": 4}, {"landmarks": 4, "padding": "front", "kernel_size": 0}],
  "shaped": [
    {},
    {"one_map": True, "values": "identity", "output": "identity", "relative_bias": "axial"},
    {"output": "kept", "head_dim": 4, "rotary": "sequence", "large_logits": True},
  ],
  "bigbird": [
    {"block": 4, "random": 1, "tile": 8},
    {"block": 5, "random": 1, "tile": 4, "prefix_global": True, "relative_bias": "axial"},
  ],
  "strided": [{"tile": 8}],
  "fixed": [{"tile": 8}],
  "pattern": [{"edges": "window_and_class", "tile": 8}],
  "longformer": [
    {"window": 2, "dilation": (1, 2), "tile": 8},
    {"window": 2, "tile": 8, "global_projections": "separate", "global_tokens": (-3,)},
  ],
  "locality": [
    {},
    {"edges": "neighborhood", "temperature": "fixed", "tile": 8, "relative_bias": "axial"},
  ],
  "axial": [{"tile": 8}],
  "neighborhood": [{"size": 3, "tile": 8, "rotary": "axial"}],
  "shifted_window": [{"size": 3, "tile": 8, "relative_bias": "window"}],
  "erdos_renyi": [{"p": 0.3, "tile": 8}],
  "watts_strogatz": [{"neighbors": 4, "tile": 8}],
  "sparsifiner": [
    {"keep": 0.5},
    {"keep": 0.3, "granularity": "block", "block": 3, "half_tolerance": 1.0},
  ],
  "bilevel": [  # half precision ranks nearly equal regions differently
    {"regions": 2, "top": 2, "half_tolerance": 1.0},
    {"regions": 3, "top": 1, "local_kernel": 3, "relative_bias": "axial", "half_tolerance": 1.0},
  ],
  "fnet": [{}],
  "mlp_mixing": [{"hidden": 7}],
  "xcit": [{}],
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


# Without jit, on two devices and with every check: one mixer of each kind. The op of softmax
# attention, also on aligned tokens: test_third_party.py. Patterns: tests/ops/test_block_sparse.py.
IN_FULL = ("performer", "linformer", "shaped", "fnet", "mlp_mixing")
NUMBERED = [f"{name}-{number}" for name in sorted(CASES) for number in range(len(CASES[name]))]


@pytest.mark.parametrize("case", all_but("softmax-0", of=NUMBERED))
def test_every_mixer_keeps_the_contract(case):
  name, number = case.split("-")
  whole = number == "0" and name in IN_FULL
  check(name, CASES[name][int(number)], pairwise=not whole, layouts=LAYOUTS[-1:])
