"""Settings of mixers that would be ignored, or give wrong numbers, are refused."""

import jax
import numpy as np
import pytest

from vitx.attention import MIXERS
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout

LAYOUT, GATHERED = TokenLayout((3, 4)), TokenLayout((12,), has_places=False)
WITHOUT_LOGITS = [name for name, mixer in MIXERS.items() if mixer.no_logits_reason]
NOT_CAUSAL = [name for name, mixer in MIXERS.items() if not mixer.properties.accepts_causal]
REFUSED = [
  *((name, {"causal": True}, LAYOUT, "causal=True") for name in NOT_CAUSAL),
  *((name, {"relative_bias": "axial"}, LAYOUT, "has no logit") for name in WITHOUT_LOGITS),
  *((name, {"num_heads": 1}, LAYOUT, "num_heads=1") for name in ("axial", "strided", "fixed")),
  ("softmax", {"implementation": "kernelized", "dropout": 0.1}, LAYOUT, "dropout=0.1"),
  ("softmax", {"rotary": "axial", "head_dim": 6}, LAYOUT, "divisible by 4"),
  ("softmax", {"num_heads": 3}, LAYOUT, "num_heads=3 does not divide model.width=8"),
  ("softmax", {"rotary": "sequence"}, GATHERED, "needs the places"),
  ("softmax", {"relative_bias": "axial"}, GATHERED, "needs the places"),
  ("locality", {"edges": "window"}, GATHERED, "needs the places"),
  ("performer", {"local_heads": 1}, GATHERED, "needs the places"),
  ("performer", {"local_heads": 3}, LAYOUT, "local_heads=3 exceeds model.num_heads=2"),
  ("bigbird", {"random": 4}, LAYOUT, "random=4 exceeds the number of blocks"),
  ("bigbird", {"redraw": "step", "causal": True}, LAYOUT, "draws whole blocks"),
  ("longformer", {"causal": True, "global_projections": "separate"}, LAYOUT, "causal=True"),
  ("sparsifiner", {"channel_divisor": 5}, LAYOUT, "channel_divisor=5"),
  ("cvt", {"kv_stride": 2, "rotary": "sequence"}, LAYOUT, "coarser grid"),
]


@pytest.mark.parametrize(("name", "fields", "layout", "message"), REFUSED)
def test_a_setting_that_would_be_wrong_is_refused(name, fields, layout, message):
  with pytest.raises(ConfigError, match=message):
    mixer = MIXERS[name](**{"num_heads": 2, **fields})
    x, key = np.zeros((1, layout.length, 8), np.float32), jax.random.key(0)
    jax.eval_shape(lambda: mixer.init(key, x, layout, train=True))


@pytest.mark.parametrize("name", ["levit", "cvt"])
def test_a_mask_is_refused_beside_batch_statistics(name):
  x, key = np.zeros((1, 12, 8), np.float32), jax.random.key(0)
  with pytest.raises(ConfigError, match="count masked tokens"):
    jax.eval_shape(lambda: MIXERS[name](2).init(key, x, LAYOUT, mask=x[..., 0] == 0, train=False))
