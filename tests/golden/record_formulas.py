"""Records attention that no package offers, computed from its formula by loops over numbers.

The code is NumPy in float64, token by token and head by head, and shares nothing with vitx.
"""

import numpy as np
from saving import DIM, HEADS, WIDTH, save

N = 7
MASK = np.array([[True] * N, [True, False, True, True, False, True, False]])


def draw(seed, **shapes):
  """Draws normal numbers that the file's float32 represents exactly."""
  random = np.random.default_rng(seed)
  return {n: random.normal(size=s).astype(np.float32).astype(float) for n, s in shapes.items()}


def projected(x, kernel, bias=0.0):
  """Projects tokens (N, C) by a kernel (C, H, D) to (N, H, D)."""
  return np.tensordot(x, kernel, axes=1) + bias


def elu_plus_one(x):
  return np.array([t + 1 if t > 0 else np.exp(t) for t in x])


def linear_attention(q, k, v, seen, causal):
  """Returns linear attention of one head, (N, D): Katharopoulos et al. 2020, equation 4.

  Causal attention follows equation 8.
  """
  out = np.zeros_like(v)
  for i in range(len(q)):
    above, below = np.zeros(v.shape[1]), 0.0
    for j in range(i + 1 if causal else len(k)):
      if seen[j]:
        weight = sum(elu_plus_one(q[i]) * elu_plus_one(k[j]))
        above, below = above + weight * v[j], below + weight
    out[i] = above / below if below else 0.0
  return out


def linear_transformer():
  names = ("query", "key", "value")
  shapes = {f"{n}.kernel": (WIDTH, HEADS, DIM) for n in names}
  shapes |= {f"{n}.bias": (HEADS, DIM) for n in names}
  shapes |= {"out.kernel": (HEADS, DIM, WIDTH), "out.bias": (WIDTH,)}
  inputs, w = draw(9, x=(2, N, WIDTH))["x"], draw(10, **shapes)

  def run(mask, causal):
    outs = []
    for x, seen in zip(inputs, mask, strict=True):
      q, k, v = (projected(x, w[f"{n}.kernel"], w[f"{n}.bias"]) for n in names)
      heads = [
        linear_attention(q[:, h], k[:, h], v[:, h], seen, causal) @ w["out.kernel"][h]
        for h in range(HEADS)
      ]
      outs.append(sum(heads) + w["out.bias"])
    return np.stack(outs)

  everything = np.ones_like(MASK)
  save(
    "linear_transformer",
    None,
    inputs,
    run(everything, False),
    causal=run(everything, True),
    masked_out=run(MASK, False),
    masked_causal=run(MASK, True),
    mask=MASK,
    **w,
  )


def shaped_head(q, k, v, alpha, beta, gamma, seen, scale):
  """Returns shaped attention of one head, (α I + β A - γ C) v (He and Hofmann 2024, section 4).

  C is A at equal logits. The shapes are (N, D) of q and k, and (N, E) of v.
  """
  keys = [j for j in range(len(k)) if seen[j]]
  out = np.zeros_like(v)
  for i in range(len(q)):
    weights = [np.exp(scale * sum(q[i] * k[j])) for j in keys]
    if seen[i]:
      out[i] = alpha * v[i]
    for weight, j in zip(weights, keys, strict=True):
      out[i] += beta * weight / sum(weights) * v[j] - gamma / len(keys) * v[j]
  return out


def shaped(name, *, one_map, per_head, center, values, output, large_logits=False):
  """Records shaped attention.

  Args:
    name: The name of the file.
    one_map: Whether all heads share one attention matrix.
    per_head: Whether each head has its own α, β and γ.
    center: Whether there is a γ.
    values, output: The linear map of the values and that of the output: "dropped", "kept" (a plain
      map) or "identity" (skip I + residual ΔW).
    large_logits: Whether the logits are scaled by √D and not by 1 / √D.
  """
  maps, scalars = 1 if one_map else HEADS, HEADS if per_head else 1
  shapes = {"query.kernel": (WIDTH, maps, DIM), "key.kernel": (WIDTH, maps, DIM)}
  shapes |= {"query.bias": (maps, DIM), "key.bias": (maps, DIM)}
  shapes |= {n: (scalars,) for n in ("alpha", "beta", *["gamma"] * center)}
  for part, kind in (("value", values), ("out", output)):
    if kind != "dropped":
      shapes |= {f"{part}.kernel": (WIDTH, WIDTH), f"{part}.bias": (WIDTH,)}
    if kind == "identity":
      shapes |= {f"{part}_skip_gain": (), f"{part}_residual_gain": ()}
  inputs, w = draw(9, x=(2, N, WIDTH))["x"], draw(11, **shapes)
  scale = DIM**0.5 if large_logits else DIM**-0.5
  w["query.kernel"] /= 8  # so that the softmax is not all on one key
  w["key.kernel"] /= 8

  def mapped(x, part, kind):
    if kind == "dropped":
      return x
    y = x @ w[f"{part}.kernel"] + w[f"{part}.bias"]
    if kind == "identity":
      y = w[f"{part}_skip_gain"] * x + w[f"{part}_residual_gain"] * y
    return y

  def run(mask):
    outs = []
    for x, seen in zip(inputs, mask, strict=True):
      q, k = (projected(x, w[f"{n}.kernel"], w[f"{n}.bias"]) for n in ("query", "key"))
      v = mapped(x, "value", values)
      heads = []
      for h in range(HEADS):
        one = 0 if one_map else h
        three = [w[n][h if per_head else 0] if n in w else 0.0 for n in ("alpha", "beta", "gamma")]
        columns = v[:, h * DIM : (h + 1) * DIM]
        heads.append(shaped_head(q[:, one], k[:, one], columns, *three, seen, scale))
      outs.append(mapped(np.concatenate(heads, axis=1), "out", output))
    return np.stack(outs)

  out, hidden = run(np.ones_like(MASK)), run(MASK)
  save(f"shaped_{name}", None, inputs, out, masked_out=hidden, mask=MASK, **w)


def record():
  linear_transformer()
  plain = {"values": "dropped", "output": "dropped"}
  shaped("per_head", one_map=False, per_head=True, center=True, **plain)
  shaped("one_map", one_map=True, per_head=False, center=True, large_logits=True, **plain)
  shaped("identity", one_map=True, per_head=True, center=True, values="identity", output="identity")
  shaped("kept", one_map=False, per_head=False, center=False, values="kept", output="kept")


if __name__ == "__main__":
  record()
