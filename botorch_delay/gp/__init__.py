"""Gaussian processes: kernels, posteriors, fits, sample paths, and the model for BoTorch."""
