"""The token mixers by name. Each class declares its guarantees as `properties`."""

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
from vitx.attention.longformer import LongformerAttention
from vitx.attention.mlp_mixing import MLPMixing
from vitx.attention.named_pattern import GivenPatternAttention
from vitx.attention.nystromformer import Nystromformer
from vitx.attention.performer import Performer
from vitx.attention.random_graph import ErdosRenyiAttention, WattsStrogatzAttention
from vitx.attention.shaped import ShapedAttention
from vitx.attention.softmax import SoftmaxAttention
from vitx.attention.sparse_transformer import FixedAttention, StridedAttention
from vitx.attention.sparsifiner import Sparsifiner

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
}
