"""A rule that follows the upper bound of a certificate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.anytime import PLAYED_RIDGES, group_count, noise_energy
from botorch_delay.confidence.bounds import DEFAULT_DELTA, Confidence, RKHSConfidence
from botorch_delay.exceptions import InputError
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.optimizers.pending import Pending
from botorch_delay.optimizers.rule_model import RuleModel, View
from botorch_delay.optimizers.rules import Rule, Score


@dataclass(frozen=True)
class CertifyingUCB(Rule):
    """A UCB close to the upper bound that a certificate rests on, so that asks tighten it.

    It is the smaller, over two ridges a in place of the noise variance, of ``mu + b sigma`` with

        b^2 = C^2 + (rho_n s^2 + w) / a - y' (K + a I)^-1 y

    as in :mod:`botorch_delay.confidence.anytime`, but with all answers at a point averaged. In
    place of rho_n the noise of these means counts with its expectation, plus half of what bounds
    with groups and with single asks each add to theirs. (With groups alone exploration stops before
    the certificate is small.) So it bounds f in most runs, without a proof; the certificate bounds
    the regret whatever was asked. A rule with a fixed factor settles on one point, whose gap is
    then charged to every further ask; this one explores until its bound elsewhere has fallen.

    Args:
        norm_bound: C, a bound on the RKHS norm of f, above 0.
        noise_std: s, the sub-Gaussian scale of the noise, above 0.
        delta: failure probability of the certificate, in (0, 1); within a
            :class:`BPEDelayOptimizer` half of its delta, as :meth:`~BPEDelayOptimizer.guaranteed`
            passes.
    """

    norm_bound: float
    noise_std: float
    delta: float = DEFAULT_DELTA
    scores_are_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("norm_bound", "noise_std"):
            object.__setattr__(self, name, validation.positive(getattr(self, name), name))
        object.__setattr__(self, "delta", validation.probability(self.delta, "delta"))

    @property
    def interval_confidence(self) -> tuple[Confidence, float]:
        return RKHSConfidence(self.norm_bound, self.noise_std), self.delta

    def check_pending(self, pending: Pending) -> None:
        """Refuse drawn answers: bounds rest on observed values."""
        super().check_pending(pending)
        if pending.draws:
            raise InputError(f"{self!r} rests on observed values: use pending=Hallucinate().")

    def surrogates(self, surrogate: Surrogate) -> Sequence[Surrogate]:
        if surrogate.learned:
            raise InputError(f"{self!r} needs a given kernel; pass covar_module and noise_var.")
        least = surrogate.noise_var
        ridges = [max((ridge * self.noise_std) ** 2, least) for ridge in PLAYED_RIDGES]
        return [replace(surrogate, noise_var=ridge) for ridge in dict.fromkeys(ridges)]

    def score(self, model: RuleModel) -> Tensor:
        bounds = [view.mean + b * view.deviation for view, b in self._views(model)]
        return torch.stack(bounds).amin(dim=0)

    def function(self, model: RuleModel, starts: Tensor) -> Score:
        views = list(self._views(model))

        def bound(X: Tensor) -> Tensor:
            bounds = [view.mean_at(X) + b * view.deviation_at(X) for view, b in views]
            return torch.stack(bounds).amin(dim=0)

        return bound

    def _views(self, model: RuleModel) -> Iterator[tuple[View, Tensor]]:
        """Every view with its b; where the answers contradict the norm bound, the b of norm 0."""
        counts = model.feasibility.ask_counts()
        energy = float(len(counts))
        for number in (sum(counts), sum(map(group_count, counts))):
            energy += 0.5 * (noise_energy(number, self.delta / 2.0) - number)
        for view in model.views:
            share = self.noise_std**2 / view.answers.surrogate.noise_var
            square = self.norm_bound**2 + energy * share
            least = noise_energy(0, self.delta) * share
            explained = view.answers.at_candidates.explained
            yield view, (square - explained).clamp_min(least).sqrt()
