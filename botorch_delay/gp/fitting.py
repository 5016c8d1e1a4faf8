"""Fitting kernel and noise to the answers, and choosing a warping."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.domains.devices import sent
from botorch_delay.domains.domain import Domain
from botorch_delay.exceptions import FitWarning, warn
from botorch_delay.gp.hyperparameters import LENGTHSCALES, Fit, LogNormal, Objective, fit
from botorch_delay.gp.kernels import matern_sum
from botorch_delay.gp.surrogate import (
    MANY_ANSWERS,
    MIN_ANSWERS_TO_FIT,
    Hyperparameters,
    Surrogate,
    exact_noise,
    standardization,
)
from botorch_delay.gp.warping import WARPINGS, Candidates, Warping, better_half, spread_weights
from botorch_delay.history.answers import Answers

logger = logging.getLogger(__name__)

# Standard deviations of log-lengthscales in their priors: a factor of 1.8. BoTorch's prior has the
# same mode but a factor of 5.6, under which lengthscales fitted to a few answers in many columns
# jump from fit to fit. For the one-hot columns of options that factor is kept, since some options
# differ and others do not (benchmarks/CHOICES.md, "The prior of lengthscales").
LENGTHSCALE_SPREAD, OPTION_SPREAD = 0.6, math.sqrt(3.0)
# Prior mode of the options' lengthscales, as a multiple of BoTorch's. Under BoTorch's an untried
# option is predicted at the mean of all values, and is not asked once the best is far above that.
OPTION_FACTOR = 4.0
# BoTorch's prior grows with the number of columns, since distances do. With the options of a choice
# they do not: of any two points at most two options differ.
MOST_COUNTED = 8  # options of a choice that count as columns
NOISE_SPREAD = 1.0  # noise learned by another study (``warm_start``): a factor of 2.7
# Log-normal prior of the noise variance of standardised values. It reaches from exact evaluations,
# which BoTorch's own prior and floor of 1e-4 would not trust, to noise as large as the values.
NOISE_LOC, NOISE_SCALE = -8.0, 3.0
# Noise variances that fits start from; the better optimum is kept. Few answers are explained by
# short lengthscales without noise as well as by long ones with it.
START_NOISES = (1e-6, 0.1)
# Lower bound of learned noise, as a share of the noise variance of exact evaluations.
LEAST_NOISE = 0.1
# Log-normal prior of the odds of main effects in the variance: a share of a half, or so.
ODDS_PRIOR = LogNormal.around(np.array([1.0]), 1.5)
MIN_FOR_MAIN_EFFECTS = 12  # with fewer answers main effects are not fitted
# By how much a fit with main effects may be less likely (in the log density) where there is noise,
# on boxes. On lists this has no use (benchmarks/CHOICES.md, "Main effects").
MOST_LOSS_WITH_NOISE = 1.0
# By how much the leave-one-out log density must exceed that of the first warping for another one to
# be chosen; for logarithms of values that seem exact, whose densities differ more.
LEAST_GAIN, LEAST_GAIN_IF_EXACT = 2.0, 6.0
MOST_ITERATIONS = 200  # of L-BFGS-B in one fit
FEW_ITERATIONS = 30  # the same with more than ``MANY_ANSWERS`` answers


def fit_surrogate(
    domain: Domain,
    answers: Answers,
    *,
    seed: int,
    previous: Surrogate | None = None,
    warm_start: Hyperparameters | None = None,
    exact: bool = False,
    warp: str = "none",
) -> Surrogate:
    """Fit a Matern 5/2 kernel and noise by maximum a posteriori.

    BoTorch's default is the RBF kernel, which had more regret on the tuning tables used for
    development (benchmarks/CHOICES.md, "The kernel"). Where it is likelier (on boxes with noise,
    not much less likely), main effects of each parameter are added
    (:class:`~botorch_delay.gp.kernels.MaternSum`). Inputs are normalised by the bounding box of the
    domain; values are warped, then standardised. With fewer than three answers, or if all are
    equal, the priors' modes are used and the scale of the values counts as unknown. ``warm_start``
    replaces the usual prior modes. The noise of ``exact`` evaluations is a fixed jitter, not
    learned. If the fit fails, ``previous`` (or the modes) is used, with a :class:`FitWarning`.
    """
    # On the CPU: a fit takes a hundred steps on a few hundred answers, and each would have to wait
    # for a device.
    told = answers.y.double()
    jitter = exact_noise(domain.like)
    own = warm_start.noise_var if warm_start else math.exp(NOISE_LOC)
    X = domain.encoding(sent(answers.X, domain.like)).cpu().double()
    modes = priors(domain, warm_start)
    noise = jitter if exact else max(own, LEAST_NOISE * jitter)
    search = _Search(
        domain,
        X,
        told,
        noise_var=answers.noise_var,
        weight=spread_weights(X),
        priors=modes,
        plain=Surrogate(
            _kernel(modes[0].mode, domain), noise, domain.like, domain.encoding, learned=True
        ),
        start_noises=START_NOISES if warm_start is None else (own,),
        exact=exact,
    )
    warpings = WARPINGS[warp](told, search.weight)
    prior = search.unfitted(warpings.first)
    if len(told) < MIN_ANSWERS_TO_FIT or not prior.scaled:
        return replace(prior, warping=Warping(), scaled=False)
    fitted = search.best(warpings, seed)
    if fitted is None:
        kept = "the previous ones stay" if previous is not None else "the priors' modes are used"
        warn(f"Hyperparameters could not be fitted to {len(told)} answers; {kept}.", FitWarning)
        return previous or prior
    logger.info("fitted to %d answers: %s", len(told), fitted.hyperparameters())
    return fitted


@dataclass(frozen=True)
class _Search:
    """Fits to the answers under each warping, and the choice between them."""

    domain: Domain
    X: Tensor  # normalised inputs, ``n x d``
    told: Tensor  # values to be maximised, ``n``
    noise_var: Tensor  # known noise variances, NaN where unknown, ``n``
    weight: Tensor  # of each answer in the distribution of values (``spread_weights``), ``n``
    priors: tuple[LogNormal, LogNormal]  # of lengthscales and noise
    plain: Surrogate  # the priors' modes, without warping or standardisation
    start_noises: Sequence[float]  # noise variances that fits start from
    exact: bool

    def unfitted(self, warping: Warping) -> Surrogate:
        """The surrogate before a fit: the priors' modes, and the warped values' mean and scale."""
        offset, scale = standardization(warping(self.told), self.weight, self.domain.like)
        units: dict[str, Any] = {"offset": offset, "scale": scale or 1.0, "warping": warping}
        return replace(self.plain, scaled=scale is not None, **units)

    def best(self, warpings: Candidates, seed: int) -> Surrogate | None:
        """The best fit among the warpings; None if all fail.

        The first one is taken unless another has a much higher leave-one-out density of the better
        half of the values. Worse values may be mere ranks, whose densities cannot be compared. Of
        many answers a random subset is used.
        """
        rows, steps = torch.arange(len(self.told)), MOST_ITERATIONS
        if is_subset := len(rows) > MANY_ANSWERS:
            generator = torch.Generator().manual_seed(seed)
            every = torch.randperm(len(rows), generator=generator)[:MANY_ANSWERS].sort().values
            rows, steps = every[::2], FEW_ITERATIONS  # half of them suffice to choose a warping
        good = better_half(self.told, self.weight)[rows]
        model = self.unfitted(warpings.first)
        best = found = self._fit(model, rows, steps)
        highest = self._predicted(model, rows, good, found)
        exact = found is None or not self._has_noise(model, found)
        compared = [(warping, LEAST_GAIN) for warping in warpings.if_exact if exact]
        gain = LEAST_GAIN_IF_EXACT if exact else LEAST_GAIN
        compared += [(warping, gain) for warping in warpings.others]
        for warping, gain in compared:
            own = self.unfitted(warping)
            found = self._fit(own, rows, steps, found)  # from the optimum of the one before
            score = self._predicted(own, rows, good, found) - gain
            if score > highest:
                best, model, highest = found, own, score
        if is_subset:
            rows, best = every, self._fit(model, every, steps, best)
        if best is None:
            return None
        if len(self.told) >= MIN_FOR_MAIN_EFFECTS and len(self.domain.encoding.groups) > 1:
            found = self._fit(model, rows, steps, best, ODDS_PRIOR)
            may_lose = self.domain.count is None and self._has_noise(model, best)
            most = best.loss + MOST_LOSS_WITH_NOISE * may_lose
            if found is not None and found.loss < most:
                best = found
        return replace(
            model,
            covar_module=_kernel(best.lengthscale, self.domain, best.share),
            noise_var=best.noise_var or self.plain.noise_var,
            offset=model.offset + model.scale * best.mean,
        )

    def _predicted(self, model: Surrogate, rows: Tensor, good: Tensor, found: Fit | None) -> float:
        """The leave-one-out log density of the values in ``rows`` that are ``good``, under a fit.

        -inf without one.
        """
        if found is None:
            return -math.inf
        slope = model.warping.slope(self.told[rows]) / model.scale
        return float((torch.from_numpy(found.left_out) + slope.log())[good].sum())

    def _has_noise(self, model: Surrogate, found: Fit) -> bool:
        """Whether some known or learned noise exceeds that of exact evaluations."""
        _, known = model.in_own_units(self.told, self.noise_var)
        own = self.plain.noise_var if found.noise_var is None else found.noise_var
        return float(known.nan_to_num(own).max()) > exact_noise(self.domain.like)

    def _fit(
        self,
        model: Surrogate,
        rows: Tensor,
        steps: int,
        begin: Fit | None = None,
        odds: LogNormal | None = None,
    ) -> Fit | None:
        """The best fit from several starts; noise is learned unless all variances are known.

        With main effects if their ``odds``, a prior, are given.
        """
        y, noise_var = model.in_own_units(self.told, self.noise_var)
        if self.exact:
            noise_var = torch.full_like(y, self.plain.noise_var)
        known = None if bool(noise_var.isnan().any()) else noise_var[rows].numpy()
        scales, noises = self.priors[0].mode, self.start_noises
        if begin is not None:
            scales, noises = begin.lengthscale, (begin.noise_var or self.plain.noise_var,)
        least = LEAST_NOISE * exact_noise(self.domain.like)
        starts = [np.log(scales)]
        if known is None:
            starts = [np.append(starts[0], np.log(max(noise, least))) for noise in noises]
        if odds is not None:
            starts = [np.append(start, np.log(odds.mode)) for start in starts]
        options = [len(values) for values in self.domain.encoding.categories.values()]
        parts = self.X[rows].numpy(), y[rows].numpy(), known, *self.priors, options, odds
        objective = Objective(*parts)
        return fit(objective, starts, least, steps)


def priors(domain: Domain, warm_start: Hyperparameters | None) -> tuple[LogNormal, LogNormal]:
    """Priors of lengthscales and noise; their modes are those of ``warm_start`` if given."""
    options = slice(domain.dim - len(domain.encoding.categories), None)  # the last encoded columns
    if warm_start is None:
        columns = sum(min(len(group), MOST_COUNTED) for group in domain.encoding.groups)
        # The mode of BoTorch's prior, LogNormal(sqrt(2) + log(columns) / 2, sqrt(3)).
        scale = math.exp(math.sqrt(2.0) - 3.0) * math.sqrt(columns)
        scales = np.full(len(domain.encoding.width), scale)
        noises = LogNormal(np.array([NOISE_LOC]), NOISE_SCALE)
        scales[options] *= OPTION_FACTOR
    else:
        scales = np.maximum(warm_start.lengthscale, LENGTHSCALES[0])
        noises = LogNormal.around(
            np.array([max(warm_start.noise_var, LEAST_NOISE * exact_noise(domain.like))]),
            NOISE_SPREAD,
        )
    spread = np.full(len(scales), LENGTHSCALE_SPREAD)
    spread[options] = OPTION_SPREAD
    return LogNormal.around(scales, spread), noises


def _kernel(lengthscale: np.ndarray, domain: Domain, share: float = 0.0) -> Kernel:
    return matern_sum(sent(lengthscale, domain.like), share, domain.encoding.groups)
