"""Time, memory and FLOPs of the token mixers side by side: `python -m vitx.benchmark mixers`."""
