"""Token mixers: Flax modules that exchange information between tokens, such as attention.

    from vitx.attention import AttentionModule, Properties, from_heads

A mixer is called as `module(x, layout, *, mask=None, train)` on tokens x (B, N, C); `layout` is
their `TokenLayout`. To write your own mixer, start from a copy of `softmax.py`, and name your class
in a config as `token_mixer=dict(name="my_package.my_file:MyAttention", ...)`. The model sets the
fields `num_heads`, `dtype`, `layer` and `depth`; every other field is yours. `MIXERS` maps the
names that configs use to classes; the attribute `properties` of a class lists its guarantees.
"""

from vitx.attention.base import AttentionModule, Properties, TokenMixer
from vitx.attention.pattern import PatternAttention
from vitx.config.registry import Table
from vitx.layers.projections import from_heads, to_heads

# The model sets these fields, not the config entry of a mixer.
FROM_MODEL = ("num_heads", "dtype", "layer", "depth", "name")
MIXERS = Table(
  "vitx.attention",
  axial="grid:AxialAttention",
  bigbird="bigbird:BigBirdAttention",
  bilevel="bilevel:BilevelAttention",
  cvt="conv_attention:CvTAttention",
  erdos_renyi="random_graph:ErdosRenyiAttention",
  fixed="sparse_transformer:FixedAttention",
  fnet="fnet:FNet",
  levit="conv_attention:LeViTAttention",
  linear_transformer="linear_transformer:LinearTransformer",
  linformer="linformer:Linformer",
  locality="locality:LocalityAttention",
  longformer="longformer:LongformerAttention",
  mlp_mixing="mlp_mixing:MLPMixing",
  neighborhood="grid:NeighborhoodAttention",
  nystromformer="nystromformer:Nystromformer",
  pattern="named_pattern:GivenPatternAttention",
  performer="performer:Performer",
  shaped="shaped:ShapedAttention",
  shifted_window="grid:ShiftedWindowAttention",
  softmax="softmax:SoftmaxAttention",
  sparsifiner="sparsifiner:Sparsifiner",
  strided="sparse_transformer:StridedAttention",
  watts_strogatz="random_graph:WattsStrogatzAttention",
  xcit="xcit:CrossCovarianceAttention",
)
__getattr__ = MIXERS.attribute

__all__ = ["FROM_MODEL", "MIXERS", "AttentionModule", "PatternAttention", "Properties"]
__all__ += ["TokenMixer", "from_heads", "to_heads"]
__all__ += sorted(place.partition(":")[2] for place in MIXERS.data.values())


def __dir__() -> list[str]:
  return sorted(__all__)
