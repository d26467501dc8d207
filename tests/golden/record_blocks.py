"""Records simplified blocks and networks of them, computed from their formulas.

The code is NumPy in float64, token by token, and shares nothing with vitx. Run it by
`python record_blocks.py`.
"""

from math import erf

import numpy as np
from record_formulas import draw, projected, shaped_head
from saving import save

WIDTH, HEADS, MLP, N = 8, 2, 12, 5
PATCH, SIDE, CLASSES, DEPTH = 2, 4, 3, 2


def normed(x, w, name):
  """Returns tokens (N, C) after layer normalization with an epsilon of 1e-5."""
  out = []
  for token in x:
    mean = sum(token) / len(token)
    var = sum((token - mean) ** 2) / len(token)
    out.append((token - mean) / np.sqrt(var + 1e-5))
  return np.array(out) * w[f"{name}.scale"] + w[f"{name}.bias"]


def linear(x, w, name):
  return x @ w[f"{name}.kernel"] + w[f"{name}.bias"]


def gelu(x):
  return np.vectorize(lambda t: t * (1 + erf(t / np.sqrt(2))) / 2)(x)


def mlp(x, w, name):
  return linear(gelu(linear(x, w, f"{name}.up")), w, f"{name}.down")


def attended(x, w, name, maps, alpha, beta, gamma, values):
  """Applies α I + β A - γ C to the columns of each head, where C is A at equal logits.

  The head dimension is `WIDTH` / `HEADS`.
  """
  dim = WIDTH // HEADS
  q, k = (projected(x, w[f"{name}.{n}.kernel"], w[f"{name}.{n}.bias"]) for n in ("query", "key"))
  seen = [True] * len(x)
  heads = []
  for h in range(HEADS):
    one, columns = min(h, maps - 1), values[:, h * dim : (h + 1) * dim]
    three = (alpha[h], beta[h], gamma[h])
    heads.append(shaped_head(q[:, one], k[:, one], columns, *three, seen, dim**-0.5))
  return np.concatenate(heads, axis=1)


def one_map(x, w, name):
  """Applies the mixer of the blog's simplified block: one matrix, one α and one β."""
  alpha, beta = (np.repeat(w[f"{name}.{n}"], HEADS) for n in ("alpha", "beta"))
  return attended(x, w, name, 1, alpha, beta, np.zeros(HEADS), x)


def simplified(x, w, name):
  y = normed(x, w, f"{name}.norm")
  return one_map(y, w, f"{name}.token_mixer") + mlp(y, w, f"{name}.mlp")


def vanilla(x, w, name):
  """Applies the vanilla block: one norm for both branches, one softmax matrix for all channels."""
  mixer = f"{name}.token_mixer"
  y = normed(x, w, f"{name}.norm")
  values = linear(y, w, f"{mixer}.value")
  mixed = attended(y, w, mixer, 1, np.zeros(HEADS), np.ones(HEADS), np.zeros(HEADS), values)
  x = x + linear(mixed, w, f"{mixer}.out")
  return x + mlp(normed(x, w, f"{name}.norm"), w, f"{name}.mlp")


def sas_mixer(y, w, name):
  """Applies SAS's mixer: each head has a matrix, α, β and γ.

  The values are those of the first layer, s y + r y ΔW.
  """
  mixer = f"{name}.token_mixer"
  values = w[f"{mixer}.value_skip_gain"] * y
  values = values + w[f"{mixer}.value_residual_gain"] * (y @ w[f"{mixer}.value.kernel"])
  three = (w[f"{mixer}.{n}"] for n in ("alpha", "beta", "gamma"))
  return attended(y, w, mixer, HEADS, *three, values)


def sas_p(x, w, name):
  y = normed(x, w, f"{name}.norm")
  mixed, hidden = sas_mixer(y, w, name), mlp(y, w, f"{name}.mlp")
  return w[f"{name}.mixer_gain"] * mixed + w[f"{name}.mlp_gain"] * hidden


def sas(x, w, name):
  y = sas_mixer(normed(x, w, f"{name}.mixer_norm"), w, name)
  y = w[f"{name}.mixer_gain"] * y
  hidden = mlp(normed(y, w, f"{name}.mlp_norm"), w, f"{name}.mlp")
  return w[f"{name}.skip_gain"] * y + w[f"{name}.mlp_gain"] * hidden


def norm_shapes(name):
  return {f"{name}.scale": (WIDTH,), f"{name}.bias": (WIDTH,)}


def linear_shapes(name, inputs, outputs):
  return {f"{name}.kernel": (inputs, outputs), f"{name}.bias": (outputs,)}


def block_shapes(kind, name):
  mixer = f"{name}.token_mixer"
  shapes = linear_shapes(f"{name}.mlp.up", WIDTH, MLP) | linear_shapes(
    f"{name}.mlp.down", MLP, WIDTH
  )
  maps, dim = (HEADS if kind.startswith("sas") else 1), WIDTH // HEADS
  for n in ("query", "key"):
    shapes |= {f"{mixer}.{n}.kernel": (WIDTH, maps, dim), f"{mixer}.{n}.bias": (maps, dim)}
  for n in ("mixer_norm", "mlp_norm") if kind == "sas" else ("norm",):
    shapes |= norm_shapes(f"{name}.{n}")
  if kind == "vanilla":
    shapes |= linear_shapes(f"{mixer}.value", WIDTH, WIDTH)
    return shapes | linear_shapes(f"{mixer}.out", WIDTH, WIDTH)
  if kind == "simplified":
    return shapes | {f"{mixer}.alpha": (1,), f"{mixer}.beta": (1,)}
  shapes |= {f"{mixer}.{n}": (HEADS,) for n in ("alpha", "beta", "gamma")}
  shapes |= {f"{mixer}.value.kernel": (WIDTH, WIDTH)}
  shapes |= {f"{mixer}.value_{n}_gain": () for n in ("skip", "residual")}
  gains = ("mixer_gain", "mlp_gain", *["skip_gain"] * (kind == "sas"))
  return shapes | {f"{name}.{n}": () for n in gains}


def drawn(seed, shapes):
  """Draws parameters so small that neither softmax nor GELU saturates."""
  w = draw(seed, **shapes)
  return {n: (v / 2).astype(np.float32).astype(float) for n, v in w.items()}


def block(kind, run, seed):
  w = drawn(seed, block_shapes(kind, "block"))
  x = draw(seed + 1, x=(2, N, WIDTH))["x"]
  save(f"block_{kind}", None, x, np.stack([run(tokens, w, "block") for tokens in x]), **w)


def network(kind, run, seed):
  """Records a network: patches with positions, a class token in front, blocks, and the head.

  The class token has no position; the head has two layers.
  """
  tokens = (SIDE // PATCH) ** 2
  shapes = {
    "stem.embed.kernel": (PATCH, PATCH, 3, WIDTH),
    "stem.embed.bias": (WIDTH,),
    "posemb.table": (1, tokens, WIDTH),
    "cls": (1, 1, WIDTH),
  }
  for layer in range(DEPTH):
    shapes |= block_shapes(kind, f"block_{layer}")
  shapes |= norm_shapes("norm") | linear_shapes("head_hidden", WIDTH, WIDTH)
  w = drawn(seed, shapes | linear_shapes("head", WIDTH, CLASSES))
  images = draw(seed + 1, x=(2, SIDE, SIDE, 3))["x"]
  logits = []
  for image in images:
    x = [w["cls"][0, 0]]
    for place in range(tokens):
      row, column = (PATCH * i for i in divmod(place, SIDE // PATCH))
      patch = image[row : row + PATCH, column : column + PATCH]
      embedded = np.tensordot(patch, w["stem.embed.kernel"], axes=3) + w["stem.embed.bias"]
      x.append(embedded + w["posemb.table"][0, place])
    x = np.stack(x)
    for layer in range(DEPTH):
      x = run(x, w, f"block_{layer}")
    first = normed(x, w, "norm")[0]
    logits.append(linear(gelu(linear(first, w, "head_hidden")), w, "head"))
  save(f"network_{kind}", None, images, np.stack(logits), **w)


if __name__ == "__main__":
  block("simplified", simplified, 20)
  block("vanilla", vanilla, 22)
  block("sas_p", sas_p, 24)
  block("sas", sas, 26)
  network("simplified", simplified, 30)
  network("vanilla", vanilla, 32)
