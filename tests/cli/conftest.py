"""Fixtures of data sets, for the commands that prepare and read them."""

from tests.data.conftest import digits_dir, draw, make_data

__all__ = ["digits_dir", "draw", "make_data"]
