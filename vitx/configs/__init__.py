"""The shipped config files: in a checkout they are in the top-level `configs/`.

An installation has them here, see `vitx/packaging.py`.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE / "digits.py").exists():
  __path__ = [str(_HERE.parents[1] / "configs")]
