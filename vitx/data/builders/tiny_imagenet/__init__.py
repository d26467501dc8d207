"""Tiny ImageNet-200 as a TFDS set, from the user's copy of the official archive."""
