"""Tuning engines that ask this library for points: translations of the core, nothing more."""
