"""Blocks: how a token mixer and a channel MLP are arranged; stems, pooling and downsampling."""
