"""A model just large enough to hold a token mixer."""

import vitx


def vit(token_mixer, **fields):
  """Makes a ViT of two blocks of width 8 with a token for each pixel, for three classes.

  The `fields` replace these settings.
  """
  settings = {"num_classes": 3, "width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 8}
  settings["stem"] = {"name": "linear", "patch": 1}
  return vitx.create_model("vit", token_mixer=token_mixer, **(settings | fields))
