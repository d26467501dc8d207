"""The table `BLOCKS`, which maps the names that configs use to classes of blocks."""

from vitx.config.registry import Table

# The model sets these fields, not the config entry of a block.
FROM_MODEL = ("token_mixer", "norm", "mlp_dim", "dropout", "stochastic_depth", "dtype", "name")

BLOCKS = Table(
  "vitx.blocks",
  normalized_stream="pre_norm:NormalizedStreamBlock",
  parallel="parallel:ParallelBlock",
  pre_norm="pre_norm:PreNormBlock",
  sas="simplified:SASBlock",
  sas_p="simplified:SASParallelBlock",
  simplified="simplified:SimplifiedBlock",
  sparse_transformer="sparse_transformer:SparseTransformerBlock",
  vanilla="vanilla:VanillaBlock",
)
