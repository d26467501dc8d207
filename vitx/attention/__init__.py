"""Token mixers: Flax modules that exchange information between tokens, such as attention.

    from vitx.attention import AttentionModule, Properties, from_heads

A mixer is called as `module(x, layout, *, mask=None, train)` on tokens x (B, N, C); `layout` is
their `TokenLayout`. To write your own mixer, start from a copy of `softmax.py`, and name your class
in a config as `token_mixer=dict(name="my_package.my_file:MyAttention", ...)`. The model sets the
fields `num_heads`, `dtype`, `layer` and `depth`; every other field is yours. `MIXERS` maps the
names that configs use to classes; the attribute `properties` of a class lists its guarantees.
"""

from vitx.attention.base import AttentionModule, Properties, TokenMixer
from vitx.attention.bigbird import BigBirdAttention
from vitx.attention.bilevel import BilevelAttention
from vitx.attention.conv_attention import CvTAttention, LeViTAttention
from vitx.attention.fnet import FNet
from vitx.attention.grid import (
  AxialAttention,
  NeighborhoodAttention,
  ShiftedWindowAttention,
)
from vitx.attention.linear_transformer import LinearTransformer
from vitx.attention.linformer import Linformer
from vitx.attention.locality import LocalityAttention
from vitx.attention.longformer import LongformerAttention
from vitx.attention.mlp_mixing import MLPMixing
from vitx.attention.named_pattern import GivenPatternAttention
from vitx.attention.nystromformer import Nystromformer
from vitx.attention.pattern import PatternAttention
from vitx.attention.performer import Performer
from vitx.attention.random_graph import ErdosRenyiAttention, WattsStrogatzAttention
from vitx.attention.shaped import ShapedAttention
from vitx.attention.softmax import SoftmaxAttention
from vitx.attention.sparse_transformer import FixedAttention, StridedAttention
from vitx.attention.sparsifiner import Sparsifiner
from vitx.attention.xcit import CrossCovarianceAttention
from vitx.layers.projections import from_heads, to_heads

# The model sets these fields, not the config entry of a mixer.
FROM_MODEL = ("num_heads", "dtype", "layer", "depth", "name")
MIXERS = {
  "axial": AxialAttention,
  "bigbird": BigBirdAttention,
  "bilevel": BilevelAttention,
  "cvt": CvTAttention,
  "erdos_renyi": ErdosRenyiAttention,
  "fixed": FixedAttention,
  "fnet": FNet,
  "levit": LeViTAttention,
  "linear_transformer": LinearTransformer,
  "linformer": Linformer,
  "locality": LocalityAttention,
  "longformer": LongformerAttention,
  "mlp_mixing": MLPMixing,
  "neighborhood": NeighborhoodAttention,
  "nystromformer": Nystromformer,
  "pattern": GivenPatternAttention,
  "performer": Performer,
  "shaped": ShapedAttention,
  "shifted_window": ShiftedWindowAttention,
  "softmax": SoftmaxAttention,
  "sparsifiner": Sparsifiner,
  "strided": StridedAttention,
  "watts_strogatz": WattsStrogatzAttention,
  "xcit": CrossCovarianceAttention,
}

__all__ = [
  "FROM_MODEL",
  "MIXERS",
  "AttentionModule",
  "PatternAttention",
  "Properties",
  "TokenMixer",
  "from_heads",
  "to_heads",
]
__all__ += sorted(mixer.__name__ for mixer in MIXERS.values())
