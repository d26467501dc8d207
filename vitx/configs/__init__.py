"""The shipped config files: in a checkout they lie in the top-level `configs/`.

An installation has those files here, and not this one (`package-dir` in pyproject.toml).
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "configs")]
