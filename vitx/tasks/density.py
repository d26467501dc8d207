"""Density modeling of bytes: each token is predicted from the earlier tokens.

The metric is the mean code length of a token in bits.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.checks import Range
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.data.dataset import ArraySpec, DatasetInfo, Examples
from vitx.data.images.settings import image_spec
from vitx.data.reference_codes import reference_figures
from vitx.data.transform import Identity
from vitx.data.windows import CropWindow, Windows
from vitx.models import model_from_config
from vitx.tasks.base import Task, run_model
from vitx.tasks.density_images import Pixels
from vitx.tasks.density_resolve import BYTES, resolve
from vitx.tasks.figures import Figure


@dataclasses.dataclass(frozen=True)
class Density(Task):
  """The prediction of the next token of images, text or sound, all of them sequences of bytes.

  Attributes:
    model: The network, called as `model.apply(variables, tokens, train=...)`. It returns logits
      (B, N, V); the logits of place t depend on the tokens before t.
    window: The number of tokens N of a window; None means whole images.
    levels: The number of gray levels V of images.
    min_context: The number of tokens at the beginning of a window that an evaluation reads but does
      not score; the first window scores all its tokens.
  """

  model: nn.Module
  window: int | None
  levels: int
  min_context: int

  targets: ClassVar[tuple[str, ...]] = ("first",)
  input_suffixes: ClassVar[tuple[str, ...]] = ()  # `read_input` refuses every input

  @property
  def figures(self):
    """Returns the bits per value of an image or per byte, and those of codes that learn nothing."""
    unit = "dim" if self.window is None else "byte"
    return Figure("bits", "min", "{:.4f}", f"bits/{unit}"), *CODES

  @property
  def length(self) -> int:
    """Returns N, the number of tokens of a sequence."""
    return math.prod(self.model.grid)  # type: ignore[attr-defined]

  @classmethod
  def resolve(cls, config, source):
    """Sets the model's vocabulary and grid from the data."""
    resolve(config, getattr(source, "info", source))

  @classmethod
  def state_info(cls, config):
    """Returns the description of the data that follows from the model's grid and vocabulary."""
    grid, vocabulary = config.model.get("grid"), config.model.get("vocabulary")
    if grid is None or vocabulary is None:
      return None
    if config.task.get("window") is None:
      return DatasetInfo(config.data.source, image_spec(grid[-1], tuple(grid[:2])))
    spec = {"tokens": ArraySpec((None,), "uint8")}
    return DatasetInfo(config.data.source, spec, vocabulary=vocabulary)

  @classmethod
  def from_config(
    cls,
    config: RunSettings,
    *,
    window: Annotated[int, Range("[1, 16777216]")] | None = None,
    levels: Annotated[int, Range("[2, 256]")] = BYTES,
    min_context: Annotated[int, Range("[0, 16777216]")] = 0,
  ) -> "Density":
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings.
      window: The number N of tokens of text or sound that the model reads at a time; None for
        images.
      levels: The number of gray levels V of images: V values of 0 ... 255 at equal distances.
      min_context: The number of tokens of a window that are read but not scored in evaluation
        (Child et al. 2019, Table 3). Windows then overlap by as many tokens; the first window
        scores all its tokens.
    """
    if min_context and (window is None or min_context >= window):
      raise ConfigError(
        f"task.min_context={min_context} must be less than task.window={window}, and 0 for images."
      )
    return cls(model_from_config(config.model), window, levels, min_context)

  @property
  def element_spec(self):
    """Returns the shapes and dtypes of `tokens`, uint8 (N,), and `first`, int32 ().

    `first` is the place of the first token that an evaluation scores.
    """
    return {
      "tokens": jax.ShapeDtypeStruct((self.length,), np.uint8),
      "first": jax.ShapeDtypeStruct((), np.int32),
    }

  def examples(self, examples, *, train):
    """Returns images unchanged, and sequences cut into windows."""
    if self.window is None:
      return examples
    hop = None if train else self.window - self.min_context
    return Windows(examples, self.window, hop=hop, stretch=train)

  def transform(self, *, train):
    """Returns the transform that makes an example's tokens.

    It reads an image as tokens. In training it crops a window at a random place from a sequence; in
    evaluation it keeps the window.
    """
    if self.window is None:
      return Pixels(self.levels, tuple(self.model.grid))  # type: ignore[attr-defined]
    return CropWindow(self.window) if train else Identity()

  def loss(self, params, state, constants, batch, key, step):
    """Computes the mean cross-entropy of all tokens: the loss in nats and the metric in bits."""
    tokens = self.model_inputs(batch)
    logits, new_state, sown = run_model(self.model, params, state, tokens, batch, key)
    loss = jnp.mean(cross_entropy(logits, tokens))
    return loss + sown, (new_state, {"bits": loss / math.log(2)})

  def model_inputs(self, batch):
    """Returns the tokens of a batch, int32 (B, N)."""
    return batch["tokens"].astype(jnp.int32)

  def evaluate(self, params, state, constants, batch):
    """Returns the sums for `summarize`, and the mean bits (B,) of each example's scored tokens."""
    tokens = self.model_inputs(batch)
    logits: Any = self.model.apply({"params": params, **state}, tokens, train=False)
    scored = jnp.arange(self.length)[None] >= batch["first"][:, None]
    scored = scored & batch["mask"][:, None]
    nats = jnp.sum(jnp.where(scored, cross_entropy(logits, tokens), 0.0), axis=1)
    number = jnp.sum(scored, axis=1, dtype=jnp.float32)
    sums = {
      "count": jnp.sum(batch["mask"], dtype=jnp.float32),
      "tokens": jnp.sum(number),
      "nats": jnp.sum(nats),
    }
    bits = nats / (jnp.maximum(number, 1.0) * math.log(2))
    return {"sums": sums, "rows": {"bits": bits}}

  def respond(self, params, state, inputs):
    """Returns logits (B, N, V), and the log-probability in nats of each token (B, N)."""
    tokens = self.model_inputs(inputs)
    logits: Any = self.model.apply({"params": params, **state}, tokens, train=False)
    return {"logits": logits, "log_probabilities": -cross_entropy(logits, tokens)}

  def summarize(self, sums):
    """Returns the numbers of `examples` and `tokens`, and `bits`, the mean length of a code."""
    return {
      "examples": int(sums["count"]),
      "tokens": int(sums["tokens"]),
      "bits": float(sums["nats"]) / float(sums["tokens"]) / math.log(2),
    }

  def predictions(self, class_names, batch, rows):
    """Returns the column bits, the mean of each example's scored tokens."""
    return {"bits": rows["bits"].tolist()}

  def references(self, train, examples):
    """Returns the bits per token of methods that learn nothing: counts of tokens, and compressors.

    For images, one of these methods counts the values at each place.
    """
    images = self.window is None
    read = self.transform(train=False) if images else Identity()

    def sequences(role: Examples) -> Iterator[np.ndarray]:
      return (read(role[i])["tokens"] for i in range(len(role)))

    return reference_figures(
      sequences(train),
      sequences(examples),
      vocabulary=self.model.vocabulary,  # type: ignore[attr-defined]
      kind="images" if images else "documents",
    )

  def read_input(self, entry, number):
    """Refuses every input, since a density model has no answer to predict."""
    raise ConfigError(
      "a density model (task.name='density') predicts no answer for an input; use vitx sample, vitx"
      " compress, or vitx evaluate --predictions FILE for the bits of each example."
    )


CODES = (
  Figure("tokens", None, "{:,}", "tokens scored", place="table"),
  Figure("reference_bytes", None, "{:,.0f}", place="table"),
  Figure("per_position", "min", label="each place alone", place="reference"),
  *(Figure(f"count_{k}", "min", label=f"order-{k} counts", place="reference") for k in range(6)),
  *(Figure(name, "min", place="reference") for name in ("gzip", "bz2", "xz")),
)


def cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
  """Returns -log p of tokens (B, N) in nats, for logits (B, N, V)."""
  logit = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits, axis=-1) - logit
