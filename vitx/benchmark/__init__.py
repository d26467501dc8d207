"""Time, memory and FLOPs of the token mixers side by side: `vitx benchmark mixers`."""
