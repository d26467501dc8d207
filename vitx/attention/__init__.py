"""Token mixers: Flax modules called as `module(x, layout, *, mask=None, train)`, x (B, N, C).

To begin a variant of your own, copy `softmax.py`; name it in a config as
`token_mixer=dict(name="my_package.my_file:MyAttention", ...)`. The model sets the fields
`num_heads`, `dtype`, `layer` and `depth`; every other field is yours.
"""

from vitx.attention.registry import MIXERS

__all__ = ["FROM_MODEL", "MIXERS"]
# Set by the model, not by the config entry of a mixer.
FROM_MODEL = ("num_heads", "dtype", "layer", "depth", "name")
