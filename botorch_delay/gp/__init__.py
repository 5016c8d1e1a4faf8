"""Gaussian processes: kernels, posteriors, fits, sample paths, and the model for BoTorch.

A posterior is computed in one of three ways, which differ in how they are updated:

* ``posterior.Posterior``, at any points, from a Cholesky factor (``factor.Factor``) of the answered
  points. The next posterior takes over the part of the factor that has not changed.
* ``candidates.CandidatePosterior``, at N fixed candidates, where one answer costs O((N + m) m) for
  m answered points. With few candidates and many answers it costs O(N), from the candidates'
  covariance (``candidate_covariance.CandidateCovariance``, also used by greedy designs).
* ``delayed_gp.DelayedGP``, a BoTorch model with transforms, batches and gradients, from a
  ``Factor`` that grows with each answer.

``averages.Averages`` keeps the first two up to date while answers are added and removed.
``surrogate.Surrogate`` maps points and values to the units of a posterior.
"""
