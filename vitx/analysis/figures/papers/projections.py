"""Draws the products of a mixer's projections, W_Q W_K^T and W_V W_O, and their diagonals.

(Trockman and Kolter 2023, Figure 1; Diaz 2023, Figure 11.)
"""

from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from vitx.analysis.figures import style
from vitx.analysis.figures.subject import Subject
from vitx.config.errors import ConfigError
from vitx.models import names
from vitx.models.sown import collect

DRAWN_LAYERS, DRAWN_HEADS = 12, 4
KINDS = {"query_key": "W_Q W_Kᵀ", "value_out": "W_V W_O"}
Products = dict[str, np.ndarray]


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws W_Q W_K^T and W_V W_O by layer and head, and writes a table.

  The table has the share of each product's absolute values that is on its diagonal.
  """
  name, files, rows = f"projections_{subject.label}", [], []
  for kind, products in compute_products(subject).items():
    canvas = plot_products(products, KINDS[kind], subject.note)
    files.append(style.save(canvas, out, f"{name}_{kind}"))
    for layer, head in np.ndindex(products.shape[:2]):
      product = products[layer, head]
      rows.append(
        {"product": kind, "layer": layer, "head": head, "diagonal_mass": diagonal_mass(product)}
        | {"uniform": 1 / len(product), "diagonal_mean": float(np.diagonal(product).mean())}
      )
  return [*files, style.write_rows(out / f"{name}.csv", rows)]


def compute_products(subject: Subject) -> Products:
  """Multiplies the projection kernels of each layer and head of a network: W_Q W_K^T and W_V W_O.

  A single head of keys or values that all query heads share is multiplied with each of them. The
  kernel of a projection s I + r ΔW of shaped attention includes the identity and both gains. Layers
  without these projections, and the decoder of a masked autoencoder, are ignored.

  Returns:
    The products "query_key" and "value_out", (L, H, C, C) each.
  """
  params = {name: x for name, x in subject.variables()["params"].items() if name != names.DECODER}
  leaves = {path: (x,) for path, x in flatten_dict(params, sep="/").items()}

  def kernels(name: str) -> dict[str, np.ndarray]:
    arrays = collect(leaves, f"{names.TOKEN_MIXER}/{name}/{names.KERNEL}")
    whole = {path: np.asarray(x) for path, x in arrays.items() if np.ndim(x) == 3}
    skip, residual = (
      collect(leaves, f"{names.TOKEN_MIXER}/{name}_{part}_gain") for part in ("skip", "residual")
    )
    for path, gain in skip.items():
      shape = whole[path].shape
      identity = np.eye(shape[0] if name == names.VALUE else shape[-1]).reshape(shape)
      whole[path] = gain * identity + residual[path] * whole[path]
    return whole

  q, k, v, o = (kernels(name) for name in (names.QUERY, names.KEY, names.VALUE, names.OUT))
  pairs = {  # `einsum` repeats a single head for the heads of the other kernel.
    "query_key": [np.einsum("chd,ehd->hce", q[i], k[i]) for i in q if i in k],
    "value_out": [np.einsum("chd,hde->hce", v[i], o[i]) for i in v if i in o],
  }
  if not any(pairs.values()):
    raise ConfigError(f"projections: the mixers of {subject.label} have no query and key kernels.")
  return {kind: np.stack(products) for kind, products in pairs.items() if products}


def diagonal_mass(product: np.ndarray) -> float:
  """Returns the share of a product's absolute values that is on its diagonal.

  A (C, C) matrix of equal values has the share 1 / C.
  """
  total = np.abs(product).sum()
  return float(np.abs(np.diagonal(product)).sum() / total) if total else 0.0


def plot_products(products: np.ndarray, name: str, note: str) -> Any:
  """Returns a figure of products (L, H, C, C): a row for each head, a column for each layer."""
  layers = style.choose_some(products.shape[0], DRAWN_LAYERS)
  heads = style.choose_some(products.shape[1], DRAWN_HEADS)
  side = min(1.2, style.PAGE / len(layers))
  caption = f"{note}. {name} ({products.shape[-1]} x {products.shape[-1]}) by layer and head: red"
  caption += " is positive, blue negative, and each scale ends at three standard deviations; above,"
  caption += f" the absolute mass on the diagonal, {1 / products.shape[-1]:.1%} if uniform."
  width = max(style.COLUMN, side * len(layers))
  height = (side + 0.12) * len(heads) + 0.15
  canvas, panels = style.make_panels(len(heads), len(layers), width, height, caption)
  for row, head in zip(panels, heads, strict=True):
    for axes, layer in zip(row, layers, strict=True):
      product = products[layer, head]
      end = 3 * float(product.std()) or 1.0
      title = f"{diagonal_mass(product):.1%}"
      title = f"layer {layer}\n{title}" if head == heads[0] else title
      style.show_plane(axes, product, title, cmap=style.SIGNED, vmin=-end, vmax=end)
    row[0].set_ylabel(f"head {head}", fontsize=style.SMALL, labelpad=2)
  return canvas
