"""Images: decoding and resizing on the host, statistics, augmentation on the device."""
