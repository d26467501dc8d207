"""Figures that one paper alone needs."""
