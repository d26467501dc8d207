"""DeiT's distilled vision transformer, in which a second token and head learn from a teacher."""

from typing import ClassVar

import jax

from vitx.config.errors import ConfigError
from vitx.models import names
from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT


class DistilledViT(ViT, kw_only=True):
  """Vision transformer with a distillation token beside the class token (Touvron et al. 2021).

  Each of the two tokens has a head. The network's logits are the mean of both heads' logits, as in
  DeiT's evaluation. For a task with a teacher, the network sows the logits of each head into
  "intermediates", as `class_logits` and `distillation_logits`. `pool` must be
  "class_and_distillation".
  """

  PARTS: ClassVar[Parts] = with_defaults(ViT.PARTS, pool="class_and_distillation")

  def apply_head(self, vector: jax.Array) -> jax.Array:
    """Maps both tokens (B, 2, C) to float32 logits (B, num_classes)."""
    if vector.ndim != 3:
      raise ConfigError("model.name='distilled_vit' needs model.pool='class_and_distillation'.")
    logits = super().apply_head(vector[:, 0])
    from_teacher = self.classify(vector[:, 1], names.HEAD_DISTILLATION)
    self.sow("intermediates", "class_logits", logits)
    self.sow("intermediates", "distillation_logits", from_teacher)
    return (logits + from_teacher) / 2
