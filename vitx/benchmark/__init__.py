"""Comparison of the token mixers in time, memory and FLOPs: `vitx benchmark mixers`."""
