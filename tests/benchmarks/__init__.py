"""Benchmarks of vitx itself, for a clone: `python -m tests.benchmarks.NAME`."""
