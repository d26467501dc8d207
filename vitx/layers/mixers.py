"""Every token mixer a model may name: those of `vitx.attention` and those with batch statistics."""

from vitx import attention
from vitx.attention import FROM_MODEL
from vitx.layers.conv_attention import CvTAttention, LeViTAttention

MIXERS = {**attention.MIXERS, "levit": LeViTAttention, "cvt": CvTAttention}

__all__ = ["FROM_MODEL", "MIXERS"]
