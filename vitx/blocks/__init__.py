"""Blocks of a token mixer and a channel MLP; also stems, pooling, downsampling, token reduction."""
