"""Yardsticks of vitx itself: `python -m tests.benchmarks.NAME`, from a clone; they do not ship."""
