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
from botorch_delay.history.events import whole
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
        learned: whether kernel and noise are learned.
        surrogate: the one in use.
        fitted_to: how many answers it was fitted to, attached results included.
    """

    def __init__(self, config: Config, ledger: Ledger, *, worst_value: float | None = None) -> None:
        self._config, self._ledger, self._worst_value = config, ledger, worst_value
        self.learned = config.learned
        self.surrogate = config.fixed or self._fit(None)
        self.fitted_to = 0
        self._ahead: tuple[int, Surrogate] | None = None  # to how many answers

    def current(self) -> Surrogate:
        """The surrogate that the next ask would use."""
        answers = self._answers
        if not self.learned or answers == self.fitted_to:
            return self.surrogate
        # Before there can be a fit, every answer tells something about the scale of values.
        if MIN_ANSWERS_TO_FIT <= answers < GROWTH_TO_REFIT * self.fitted_to:
            return self.surrogate
        if self._ahead is None or self._ahead[0] != answers:
            self._ahead = (answers, self._fit(self.surrogate))
        return self._ahead[1]

    def fit(self) -> dict[str, Any] | None:
        """What :meth:`take` needs to use a new surrogate, JSON-ready; None if there is none."""
        surrogate = self.current()
        if surrogate is self.surrogate:
            return None
        return {"surrogate": surrogate.describe(), "answers": self._answers}

    def take(self, fitted: Mapping[str, Any]) -> None:
        """Use a surrogate that was fitted.

        Args:
            fitted: what :meth:`fit` gave, here or elsewhere.

        Raises:
            StorageError: if it is malformed.
        """
        answers = whole(fitted["answers"])
        if not self.learned or answers > self._answers:
            raise StorageError(f"a fit to {answers} answers, of {self._answers}.")
        self.surrogate = Surrogate.rebuild(fitted["surrogate"], self._config.domain)
        self.fitted_to, self._ahead = answers, None

    def forget(self) -> None:
        """An answer that was fitted has changed: the next ask fits again."""
        self.fitted_to, self._ahead = 0, None

    @property
    def _answers(self) -> int:
        return self._ledger.answer_count + len(self._ledger.attached)

    def _fit(self, previous: Surrogate | None) -> Surrogate:
        config, ledger = self._config, self._ledger
        answers = Answers.of(config.domain, config.sign, ledger.results())
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
            warp=config.warp,
        )
