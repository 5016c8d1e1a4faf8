"""Optimizers: ask and tell."""
