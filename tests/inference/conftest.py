"""The digits' statistics are read once."""

from tests.cli.conftest import read_pixels_once

__all__ = ["read_pixels_once"]
