"""Images: decoding and resizing on the host, statistics, augmentation on the device."""

from vitx.data.images.square import SquareImages

__all__ = ["SquareImages"]
