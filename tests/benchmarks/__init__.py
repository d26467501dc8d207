"""Benchmarks of vitx, run in a clone of the repository: `python -m tests.benchmarks.NAME`."""
