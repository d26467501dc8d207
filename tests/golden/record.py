"""Records the outputs of independent implementations of attention: inputs, weights, outputs.

Run in an environment of its own (`requirements.txt` beside this file):

    python tests/golden/record.py

The tests read the files and need none of these packages.
"""

import record_formulas
import record_transformers
import torch
from linformer.linformer import LinformerSelfAttention
from nystrom_attention.nystrom_attention import NystromAttention
from performer_pytorch.performer_pytorch import (
  SelfAttention,
  causal_linear_attention_noncuda,
  generalized_kernel,
  linear_attention,
  softmax_kernel,
)
from saving import DIM, HEADS, WIDTH, save, tokens


def softmax():
  module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
  torch.nn.init.normal_(module.in_proj_bias)
  x = tokens(9)
  mask = torch.ones(2, 9, dtype=torch.bool)
  mask[1, 5:] = False
  out, weights = module(x, x, x, average_attn_weights=False)
  hidden, _ = module(x, x, x, key_padding_mask=~mask)
  save("softmax", module, x, out, attention=weights, mask=mask, masked_out=hidden)


def performer():
  for name, generalized in (("softmax", False), ("relu", True)):
    module = SelfAttention(
      WIDTH, heads=HEADS, dim_head=DIM, generalized_attention=generalized, qkv_bias=True
    ).eval()
    x = 2 * tokens(11, 1)
    save(f"performer_{name}", module, x, module(x))


def features():
  """Records feature maps and linear attention without projections; heads are the second axis."""
  generator = torch.Generator().manual_seed(2)
  q, k, v = (torch.randn(2, HEADS, 10, DIM, generator=generator) for _ in range(3))
  w = torch.randn(7, DIM, generator=generator)
  phi_q = softmax_kernel(q, projection_matrix=w, is_query=True)
  phi_k = softmax_kernel(k, projection_matrix=w, is_query=False)
  save(
    "features",
    None,
    q,
    linear_attention(phi_q, phi_k, v),
    k=k,
    v=v,
    projection=w,
    phi_q=phi_q,
    phi_k=phi_k,
    relu=generalized_kernel(q, projection_matrix=w),
    causal=causal_linear_attention_noncuda(phi_q, phi_k, v, chunk_size=3, eps=0.0),
  )


def linformer():
  for name, options in {
    "separate": {},
    "shared": {"share_kv": True, "one_kv_head": True},
  }.items():
    module = LinformerSelfAttention(WIDTH, 9, k=5, heads=HEADS, **options).eval()
    x = tokens(9, 3)
    save(f"linformer_{name}", module, x, module(x))


def nystrom():
  """Records Nyström attention of 12 and of 13 tokens with 4 landmarks.

  13 tokens are padded in front. The scale of the inverse is that of the whole batch.
  """
  for name, n in (("aligned", 12), ("padded", 13)):
    module = NystromAttention(
      WIDTH, dim_head=DIM, heads=HEADS, num_landmarks=4, residual_conv_kernel=5
    ).eval()
    x = 3 * tokens(n, 4)
    x[1] *= 0.2
    # Every segment of 3 or 4 tokens (the first has 3 of padding) keeps at least one token: the
    # package gives an empty segment a uniform row, which changes the inverse.
    mask = torch.ones(2, n, dtype=torch.bool)
    mask[1, [2, 3, 7, n - 1]] = False
    save(f"nystrom_{name}", module, x, module(x), mask=mask, masked_out=module(x, mask=mask))


if __name__ == "__main__":
  torch.manual_seed(0)
  with torch.no_grad():
    for record in (softmax, performer, features, linformer, nystrom):
      record()
  record_transformers.record()
  record_formulas.record()
