"""LV-ViT: a vision transformer that classifies every patch as well as the class token."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.models import names
from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT
from vitx.ops.inputs import hide_tokens


class LVViT(ViT, kw_only=True):
  """LV-ViT (Jiang et al. 2021), with its convolutional stem and branches divided by a constant.

  The class token and every patch have logits for K classes. The network's logit of a class is the
  logit of the class token plus half the largest logit among the patches, as in the released code's
  evaluation. Patches that the argument `mask` hides do not count. For a task that uses them
  separately, the network sows `class_logits` (B, K) and `patch_logits` (B, N - prefix, K) into
  "intermediates".
  """

  PARTS: ClassVar[Parts] = with_defaults(
    ViT.PARTS, stem="normalized", block={"name": "pre_norm", "branch_divisor": 2.0}
  )

  def __post_init__(self):
    """Refuses `pool_first`, since the patches are classified after the normalization."""
    super().__post_init__()
    if self.pool_first:
      raise ConfigError("model.pool_first=True does not suit model.name='lv_vit'.")

  @nn.compact
  def __call__(
    self, images: jax.Array, *, mask: jax.Array | None = None, train: bool = False
  ) -> jax.Array:
    """Returns float32 logits (B, num_classes); `ViT` describes the arguments."""
    x, layout, pool = self.encode(images, mask=mask, train=train)
    x = self.apply_norm(x)
    logits = self.apply_head(pool(x, layout))
    shown = None if mask is None else mask[:, layout.prefix :]
    tokens = hide_tokens(x[:, layout.prefix :], shown)
    patches = self.classify(tokens, names.HEAD_PATCHES)
    self.sow("intermediates", "class_logits", logits)
    self.sow("intermediates", "patch_logits", patches)
    if shown is None:
      return logits + 0.5 * jnp.max(patches, axis=1)
    largest = jnp.max(patches, axis=1, where=shown[..., None], initial=-jnp.inf)
    return logits + 0.5 * jnp.where(jnp.any(shown, axis=1, keepdims=True), largest, 0)
