"""Gaussian processes: kernels, posteriors, fits, sample paths, and the model for BoTorch.

A posterior is computed in one of three ways, which differ in how they are updated:

* ``posterior.Posterior``, at any points, from a Cholesky factor (``factor.Factor``) of the answered
  points. The next posterior takes over the part of the factor that has not changed.
* ``candidates.CandidatePosterior``, at N fixed candidates, where one answer costs O((N + m) m) for
  m answered points; with few candidates and many answers it costs O(N), from the candidates'
  covariance (``candidate_covariance.CandidateCovariance``, which greedy designs use as well).
* ``delayed_gp.DelayedGP``, a BoTorch model with transforms, batches and gradients, from a
  ``Factor`` that grows with each answer.

``averages.Averages`` has the first two for answers that come and go. ``surrogate.Surrogate`` maps
points and values to the units of a posterior.
"""
