"""The surrogate of an optimizer: one at any time, for rounds, rule and recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from botorch_delay.exceptions import StorageError
from botorch_delay.gp.surrogate import (
    MIN_ANSWERS_TO_FIT,
    Surrogate,
    fit_surrogate,
)
from botorch_delay.history.answers import Answers
from botorch_delay.history.states import brief, is_whole
from botorch_delay.history.trials import Ledger
from botorch_delay.optimizers.config import Config

# A learned kernel is fitted again when there are this many times the answers of the last fit.
GROWTH_TO_REFIT = 1.2


class Fitting:
    """Kernel and noise: fixed, or learned and fitted again as answers come in.

    A learned surrogate is fitted again, inside an ask, once the answers have grown by a fifth. A
    fit depends on the answers alone, so that :meth:`current`, which looks ahead for those who
    only read, changes nothing that is asked later.

    Args:
        config: of the optimizer, with the kernel or how it is learned.
        ledger: the answers; read, never written.
        worst_value: a value that tells about the scale of values while there are too few answers
            for a fit, in the user's sign; None if there is none.

    Attributes:
        fixed: kernel and noise as the user gave them; None to learn them.
        surrogate: the one in use.
        fitted_to: how many answers it was fitted to, attached results included.
    """

    def __init__(self, config: Config, ledger: Ledger, *, worst_value: float | None = None) -> None:
        self._config, self._ledger, self._worst_value = config, ledger, worst_value
        self.fixed = config.fixed
        self.surrogate = config.fixed or self._fit(None)
        self.fitted_to = 0
        self._ahead: tuple[int, Surrogate] | None = None  # to how many answers

    @property
    def learned(self) -> bool:
        """Whether kernel and noise are learned."""
        return self.fixed is None

    def update(self) -> None:
        """Fit again if that is due. What can fail is done before anything changes."""
        surrogate, answers = self.current(), self._answers
        if surrogate is not self.surrogate:
            self.surrogate, self.fitted_to, self._ahead = surrogate, answers, None

    def current(self) -> Surrogate:
        """The surrogate that the next ask would use."""
        answers = self._answers
        if not self._is_due(answers):
            return self.surrogate
        if self._ahead is None or self._ahead[0] != answers:
            self._ahead = (answers, self._fit(self.surrogate))
        return self._ahead[1]

    def resume(self, surrogate: Surrogate, fitted_to: int) -> None:
        """Use a surrogate that was fitted before, or elsewhere, to so many answers."""
        self.surrogate, self.fitted_to, self._ahead = surrogate, fitted_to, None

    def describe(self) -> dict[str, Any]:
        """What cannot be derived from the trials, JSON-ready."""
        return {
            "surrogate": self.surrogate.describe() if self.learned else None,
            "fitted_to": self.fitted_to,
        }

    def read(self, values: Any, answers: int) -> tuple[Surrogate, int]:
        """Surrogate and number of answers of a stored :meth:`describe`; nothing is changed.

        Args:
            values: as stored.
            answers: how many are stored, attached results included.

        Raises:
            StorageError: if they are malformed.
        """
        if not isinstance(values, Mapping):
            raise StorageError(f"A fit is stored as {brief(values)}.")
        fitted_to, record = values.get("fitted_to"), values.get("surrogate")
        if not isinstance(fitted_to, int) or not is_whole(fitted_to, 0) or fitted_to > answers:
            raise StorageError(f"The last fit was to {brief(fitted_to)} answers, it says.")
        if self.fixed is not None and (record is not None or fitted_to):
            raise StorageError("A fit is stored, and the kernel is not learned.")
        if self.fixed is None and not isinstance(record, Mapping):
            raise StorageError("The learned kernel is missing.")
        return self.fixed or Surrogate.rebuild(record or {}, self._config.domain), fitted_to

    @property
    def _answers(self) -> int:
        return self._ledger.answer_count + len(self._ledger.attached)

    def _is_due(self, answers: int) -> bool:
        if not self.learned or answers == self.fitted_to:
            return False
        # Before there can be a fit, every answer tells something about the scale of values.
        return answers < MIN_ANSWERS_TO_FIT or answers >= GROWTH_TO_REFIT * self.fitted_to

    def _fit(self, previous: Surrogate | None) -> Surrogate:
        config, ledger = self._config, self._ledger
        answers = Answers.gathered(
            config.domain, config.sign, ledger, ledger.answered(), ledger.attached
        )
        if self._worst_value is not None and 0 < len(answers) < MIN_ANSWERS_TO_FIT:
            worst = answers.y.new_tensor([config.sign * self._worst_value])
            answers = replace(answers, y=torch.cat([answers.y[:1], worst]))
        return fit_surrogate(
            config.domain,
            answers,
            seed=config.seed,
            previous=previous,
            warm_start=config.warm_start,
            exact=config.exact,
        )
