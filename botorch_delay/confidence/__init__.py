"""Confidence bounds, and the guarantees that rest on them."""
