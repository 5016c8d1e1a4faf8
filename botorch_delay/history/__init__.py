"""Trials, answers, and the file that keeps them."""
