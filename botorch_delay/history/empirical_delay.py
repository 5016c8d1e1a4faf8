"""The law of delays, estimated from the answers so far.

Running trials have no delay yet, only an age: their delays are at least that. The product-limit
estimate (Kaplan & Meier 1958) uses both. With d_u answers that took u steps, and n_u trials that
were answered after at least u steps, or have no answer and are older than u,

    P(tau > u) = product over v <= u of (1 - d_v / n_v).

It assumes independent delays with the same law, and that being censored (running, failed,
abandoned, answered after the last ask) tells nothing about a delay beyond the age. Beyond the
longest delay or age the estimate is constant, above 0 if the oldest trial is still running. No
guarantee rests on it: fewer than T delays cannot tell where a tail of delta / (2 T) begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.delays import check_delays
from botorch_delay.exceptions import InputError, InputTypeError, NoAnswerError, NotSupportedError
from botorch_delay.history.trials import Trial, TrialState

# Tolerance for probabilities of the estimate, which are products of rounded shares.
_ROUNDING = 1e-12


class EmpiricalDelay:
    """A law of delays estimated from answers and from trials that are still running.

    ``opt.delays()`` makes one from an optimizer's trials.

    Args:
        delays: the delay of each answer, in steps, a whole number of at least 0; one at least.
        ages: for each trial without an answer, the number of asks made after its own while it had
            none, in steps: its delay is at least that.

    Attributes:
        mean: the restricted mean E[min(tau, L)], in steps, with L = ``limit``, the longest delay or
            age. Less than the mean where P(tau > L) is above 0.

    Example:
        >>> law = EmpiricalDelay([2, 3, 3, 7], ages=[5, 1])
        >>> law.quantile(0.5), law.quantile(0.5, age=4)
        (3.0, 7.0)
        >>> round(law.mean, 6)
        4.4
    """

    def __init__(self, delays: Sequence[int] | Tensor, ages: Sequence[int] | Tensor = ()) -> None:
        from scipy.stats import CensoredData, ecdf  # not above: slow to import

        known, least = _whole(delays, "delays"), _whole(ages, "ages")
        if not len(known):
            raise NoAnswerError("There is no answer yet to estimate delays from.")
        self.answers, self.out = len(known), len(least)
        # ``right`` takes values that are exceeded: a delay of at least a exceeds a - 1.
        censored = CensoredData(uncensored=known, right=least[least > 0] - 1)
        self._estimate = ecdf(censored).sf  # P(tau > u)
        self.limit = int(max(known.max(), least.max(initial=0)))
        self.mean = float(self.survival(np.arange(self.limit)).sum())

    @classmethod
    def from_trials(cls, trials: Iterable[Trial], *, ended: bool = False) -> EmpiricalDelay:
        """The estimate from the trials of one optimizer.

        A trial with an answer has a delay; one that is running, has failed or is abandoned has an
        age.

        Args:
            trials: all trials, as in ``opt.trials``.
            ended: whether no further ask is planned: for answers after the last ask, only a lower
                bound on the delay is known.
        """
        trials = list(trials)
        asks = max((trial.id for trial in trials), default=-1) + 1
        delays: list[int] = []
        ages: list[int] = []
        for trial in trials:
            step = trial.known_step or trial.told_step or asks
            answered = trial.state is TrialState.COMPLETED and not (ended and step == asks)
            (delays if answered else ages).append(step - 1 - trial.id)
        return cls(delays, ages)

    def survival(self, steps: Any, age: int = 0) -> Any:
        """``P(tau > u | tau >= age)``, for a trial that has been out for ``age`` asks.

        Args:
            steps: u, one number or an array of them, counted from the ask of the trial.
            age: in steps; 0 for a trial just asked.

        Returns:
            A float, or an array of the shape of ``steps``. Beyond ``limit`` it is an upper bound:
            the delays left there are only known to be longer than the limit.

        Raises:
            InputError: if every known delay is shorter than ``age``.
        """
        age = validation.whole(age, "age", 0)
        left = self._estimate.evaluate(age - 1)
        if left <= _ROUNDING:
            raise InputError(
                f"An age of {age} steps is beyond the longest delay known, {self.limit}."
            )
        try:
            u = np.asarray(steps, dtype=float)
        except (TypeError, ValueError):
            u = np.array(np.nan)
        if np.isnan(u).any():
            raise InputError(f"steps must be a number of steps or an array of them, got {steps!r}.")
        values = np.where(u < age, 1.0, self._estimate.evaluate(u) / left)
        return float(values) if values.ndim == 0 else values

    def quantile(self, p: float, age: int = 0) -> float:
        """The smallest whole ``u`` with ``P(tau <= u | tau >= age) >= p``, in steps.

        Args:
            p: strictly between 0 and 1.
            age: of a trial that is still out, in steps; ``quantile(p, age) - age`` is how many
                further asks it takes.

        Raises:
            NotSupportedError: if the known delays do not reach that quantile.
            InputError: if ``p`` or ``age`` is out of range.
        """
        p = validation.probability(p, "p")
        steps = self._estimate.quantiles
        steps = steps[steps >= validation.whole(age, "age", 0)]
        reached = np.flatnonzero(1.0 - self.survival(steps, age) >= p - _ROUNDING)
        if not len(reached):
            highest = 1.0 - self.survival(self.limit, age)
            given = f" of a trial that has been out for {age} asks" if age else ""
            raise NotSupportedError(
                f"The {p:g} quantile of the delay{given} is not known: from {self.answers} "
                f"answers, with {self.out} trials still out, the estimate ends at {highest:.3g}, "
                f"after {self.limit} steps. Ask for a smaller p, or wait for more answers."
            )
        return float(steps[reached[0]])

    def __repr__(self) -> str:
        return f"EmpiricalDelay({self.answers} answers, {self.out} out)"


def _whole(values: Any, name: str) -> np.ndarray:
    try:
        is_tensor = isinstance(values, Tensor)
        given = values if is_tensor else torch.tensor(list(values), dtype=torch.double)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"{name} must be a list, an array or a tensor of whole numbers, got {values!r}."
        ) from error
    return check_delays(given, given.numel(), name).cpu().numpy()
