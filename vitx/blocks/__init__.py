"""Blocks, which arrange a token mixer and a channel MLP; also stems, pooling and downsampling."""
