"""The table `BLOCKS`, which maps the names that configs use to classes of blocks."""

from vitx.blocks.parallel import ParallelBlock
from vitx.blocks.pre_norm import NormalizedStreamBlock, PreNormBlock
from vitx.blocks.simplified import SASBlock, SASParallelBlock, SimplifiedBlock
from vitx.blocks.sparse_transformer import SparseTransformerBlock
from vitx.blocks.vanilla import SkiplessBlock, VanillaBlock

# The model sets these fields, not the config entry of a block.
FROM_MODEL = ("token_mixer", "norm", "mlp_dim", "dropout", "stochastic_depth", "dtype", "name")

BLOCKS = {
  "normalized_stream": NormalizedStreamBlock,
  "parallel": ParallelBlock,
  "pre_norm": PreNormBlock,
  "sas": SASBlock,
  "sas_p": SASParallelBlock,
  "simplified": SimplifiedBlock,
  "skipless": SkiplessBlock,
  "sparse_transformer": SparseTransformerBlock,
  "vanilla": VanillaBlock,
}
