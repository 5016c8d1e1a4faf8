"""Bounds, and what is claimed with them."""
