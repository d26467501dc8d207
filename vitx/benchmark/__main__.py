"""Refuses `python -m vitx.benchmark`, which is now a command of `vitx`."""

raise SystemExit("python -m vitx.benchmark is now: vitx benchmark")
