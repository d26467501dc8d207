"""Records the outputs of the attention modules of Hugging Face's `transformers`."""

import numpy as np
import torch
from saving import HEADS, WIDTH, save, tokens
from transformers import (
  BigBirdConfig,
  FNetConfig,
  LongformerConfig,
  NystromformerConfig,
  SwinConfig,
)
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel
from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.swin.modeling_swin import SwinLayer

COMMON = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "attention_probs_dropout_prob": 0.0}
BLOCK, RANDOM, DRAWS = 4, 2, 400


def randomized(module):
  """Draws the biases and tables of a module, since their initial zeros would test nothing."""
  for name, value in module.named_parameters():
    if value.ndim == 1 or "table" in name:
      torch.nn.init.normal_(value)
  return module


def big_bird():
  """Records BigBird's block-sparse attention, with gradients and the blocks that it drew.

  The module is in training mode: in evaluation it would gather block 0 in place of every random
  block.
  """
  config = BigBirdConfig(**COMMON, block_size=BLOCK, num_random_blocks=RANDOM)
  module = randomized(BigBirdBlockSparseAttention(config, seed=3)).train()
  draw, drawn = module._bigbird_block_rand_mask_with_head, []
  module._bigbird_block_rand_mask_with_head = lambda **k: drawn.append(draw(**k)) or drawn[-1]
  x = tokens(56, 5).requires_grad_()
  mask = torch.ones(2, 56)
  mask[1, 47:] = 0

  def run(mask):
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(mask, BLOCK)
    return module(x, band, rows, columns, blocked, blocked, output_attentions=True)

  out, attention = run(torch.ones(2, 56))
  cotangent = torch.randn(out.shape)
  leaves = dict(module.named_parameters()) | {"x": x}
  grads = torch.autograd.grad(out, list(leaves.values()), cotangent)
  save(
    "big_bird",
    module,
    x,
    out,
    mask=mask.bool(),
    masked_out=run(mask)[0],
    drawn=np.stack(drawn[0]),  # (H, m - 2, r)
    edges=np.packbits(attention[0].detach().numpy() > 0),  # (H, N, N)
    cotangent=cotangent,
    **{f"grad.{name}": grad for name, grad in zip(leaves, grads, strict=True)},
  )


def big_bird_plans():
  """Records the blocks that a row of blocks ever draws in many draws, bool (m, m)."""
  module = BigBirdBlockSparseAttention(BigBirdConfig(**COMMON)).train()
  plans = {}
  for n, block, r in ((56, 4, 2), (530, 10, 3), (1024, 64, 3), (3072, 64, 3), (4096, 64, 3)):
    m = n // block
    plans[f"{n},{block},{r}"] = support = np.zeros((m, m), bool)
    np.random.seed(0)
    if n in (1024, 3072, 4096):
      layouts = (
        module._bigbird_block_rand_mask(4096, 4096, block, block, r, last_idx=1024)[: m - 2]
        for _ in range(DRAWS)
      )
    else:
      ends, counts = module._get_rand_attn_plan(n, block, r)
      layouts = module._bigbird_block_rand_mask_with_head(n, n, block, block, DRAWS, ends, counts)
    for layout in layouts:
      support[np.arange(1, m - 1)[:, None], layout] = True
  save("big_bird_plans", None, np.zeros(0), np.zeros(0), **plans)


def longformer():
  """Records Longformer's attention: two keys on each side of 16 tokens, the first one global."""
  config = LongformerConfig(**COMMON, attention_window=[4])
  module = randomized(LongformerSelfAttention(config, 0)).eval()
  x = 2 * tokens(16, 6)

  def run(seen):
    kind = torch.where(seen, 0.0, -10000.0)
    kind[:, 0] = 10000.0
    return module(
      x.clone(),
      attention_mask=kind,
      is_index_masked=kind < 0,
      is_index_global_attn=kind > 0,
      is_global_attn=True,
    )[0]

  mask = torch.ones(2, 16, dtype=torch.bool)
  mask[1, 11:] = False
  save("longformer", module, x, run(torch.ones_like(mask)), mask=mask, masked_out=run(mask))
  for name in ("query", "key", "value"):
    getattr(module, f"{name}_global").load_state_dict(getattr(module, name).state_dict())
  save("longformer_shared", module, x, run(torch.ones_like(mask)), mask=mask, masked_out=run(mask))


def swin():
  """Records Swin's attention in windows of 3 x 3 on a grid of 6 x 9, plain and shifted by one."""
  config = SwinConfig(embed_dim=WIDTH, window_size=3, num_heads=[HEADS])
  for name, shift in (("plain", 0), ("shifted", 1)):
    layer = randomized(SwinLayer(config, WIDTH, (6, 9), HEADS, shift_size=shift)).eval()
    layer.layernorm_before = torch.nn.Identity()
    layer.intermediate = torch.nn.Identity()
    layer.output = torch.nn.Module()
    layer.output.forward = torch.zeros_like
    x = tokens(54, 7)
    out = layer(x, (6, 9))[0] - x  # the skip connection is no part of the mixer
    save(f"swin_{name}", layer.attention, x, out)


def fnet():
  x = tokens(9, 8)
  save("fnet", None, x, FNetBasicFourierTransform(FNetConfig())(x)[0])


def nystromformer():
  """Records Nyströmformer's attention, which has biases and no output projection.

  Its code is not that of the package `nystrom-attention`.
  """
  fields = {"num_landmarks": 4, "segment_means_seq_len": 12, "conv_kernel_size": 5}
  config = NystromformerConfig(**COMMON, **fields, inv_coeff_init_option=False)
  module = randomized(NystromformerSelfAttention(config)).eval()
  x = tokens(12, 9)
  save("nystromformer", module, x, module(x)[0])


def record():
  torch.manual_seed(1)
  big_bird()
  big_bird_plans()
  with torch.no_grad():
    for one in (longformer, swin, fnet, nystromformer):
      one()


if __name__ == "__main__":
  record()
