"""Images: decoding and resizing on the host, statistics, augmentation on the device."""

from vitx.data.images.resizing import ResizeImages

__all__ = ["ResizeImages"]
