"""Trials, answers, and the file that stores them."""
