"""The queue wrapper of Joulani et al. (2013), which hides delays from any optimizer."""

from __future__ import annotations

import bisect
import copy
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch

from botorch_delay.confidence.bounds import Confidence
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import (
    InputError,
    InputTypeError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.states import is_whole
from botorch_delay.history.trials import Attached, Choice, Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.locks import exclusive


class QueuedOptimizer(Optimizer):
    """QPM-D: an optimizer that never sees a delay (Joulani, Gyorgy & Szepesvari 2013).

    Answers wait in a queue for their point. When the base asks for a point whose queue is not
    empty it is told at once and asks again; when the queue is empty the point is evaluated,
    and evaluated again at every further ask until one of its answers has come. For K
    independent arms the delay then costs an additive term, at most the sum over the arms of
    the largest number of answers outstanding (their theorem 6). With many dependent points it
    says little: answers of neighbours are not used while it waits.

    A failure is passed on like an answer. An abandoned trial is not. A file holds what the
    base was told, in order, and loading plays that again: it takes as long as the base took.

    Args:
        base: a fresh optimizer on a finite domain; it belongs to the wrapper from now on.

    Raises:
        InputTypeError: if ``base`` is no optimizer.
        NotSupportedError: if it asks from a box, where no point comes twice.
        InputError: if it has been used already.

    Example:
        >>> from botorch_delay.optimizers.random import RandomOptimizer
        >>> from botorch_delay.domains.finite import FiniteDomain
        >>> arms = FiniteDomain(torch.arange(3, dtype=torch.double).unsqueeze(-1))
        >>> opt = QueuedOptimizer(RandomOptimizer(arms))
        >>> first, again = opt.ask(2)          # the base waits for its first arm
        >>> first.index == again.index
        True
    """

    def __init__(self, base: Optimizer) -> None:
        if not isinstance(base, Optimizer):
            raise InputTypeError(
                f"base must be an optimizer of this library, got {type(base).__name__}."
            )
        if isinstance(base, QueuedOptimizer):
            raise InputError("base is a QueuedOptimizer already; a queue needs no second one.")
        if not isinstance(base.domain, FiniteDomain):
            raise NotSupportedError(
                f"QueuedOptimizer needs a FiniteDomain, got {base.domain!r}: a queue serves few "
                "independent arms, and on a box hardly any point is asked twice, so that the base "
                "would wait for ever."
            )
        if base.exact:
            raise InputError(
                "base has exact evaluations, of which one tells all; a queue evaluates its point "
                "again until an answer comes. Leave out exact, or the queue."
            )
        super().__init__(base._config)
        if base._finished:
            raise InputError("base must be fresh; it has been finished.")
        if base.trials or base.attached:
            raise InputError(
                f"base must be fresh; it has {len(base.trials)} trials and {len(base.attached)} "
                "attached results. Attach them to the QueuedOptimizer instead."
            )
        self._base = base
        self._pristine = copy.deepcopy(base)
        self._queues: dict[int, deque[Trial]] = defaultdict(deque)
        self._consumed: list[int] = []  # trials that the base was told of, in order
        self._attached_at: list[int] = []  # after how many asks and tells of the base
        self._waiting: Trial | None = None  # the base's own trial

    @property
    def base(self) -> Optimizer:
        """The wrapped optimizer; not to be used directly."""
        return self._base

    @property
    @exclusive
    def queued(self) -> list[Trial]:
        """Answered and failed trials that the base has not been told of, by id."""
        return sorted((t for queue in self._queues.values() for t in queue), key=lambda t: t.id)

    @property
    def guarantee(self) -> Guarantee:
        """What the base claims is claimed without delay, and does not carry over."""
        base = self._base.guarantee
        missing = (
            "the base's claim is for answers without delay; the queue adds up to one answer "
            f"outstanding at a time for each of {len(self._domain.like)} independent points, which "
            "bounds nothing useful for many dependent ones (Joulani 2013, theorem 6).",
            *base.missing,
        )
        return Guarantee(False, base.delta, base.assumptions, missing)

    def _choose(self) -> Choice:
        while True:
            if self._waiting is None:
                self._waiting = self._base.ask()
            index = self._waiting.index
            assert index is not None
            if not self._queues[index]:
                return Choice(index, round=self._waiting.round, slot=len(self._ledger))
            self._feed(self._queues[index].popleft())

    def _feed(self, trial: Trial) -> None:
        """Tell the base what became of the point that it waits for."""
        assert self._waiting is not None
        waiting, self._waiting = self._waiting, None
        self._consumed.append(trial.id)
        if trial.value is None:
            self._base.mark_failed(waiting, trial.reason)
        else:
            self._base.tell(waiting, trial.value, trial.noise_var)

    def _settled(self, trial: Trial) -> None:
        assert trial.index is not None
        if trial.state is not TrialState.ABANDONED:
            # By id: what the base is told does not depend on the order of answers between asks.
            bisect.insort(self._queues[trial.index], trial, key=lambda t: t.id)

    def _attached(self, results: list[Attached]) -> None:
        for result in results:
            self._attached_at.append(2 * len(self._consumed) + (self._waiting is not None))
            self._base.attach(result.x, result.value)

    def _close_last(self) -> None:
        self._base.finish()

    def _judgement(self) -> tuple[Surrogate, Confidence, float]:
        return self._base._judgement()

    def _described(self) -> dict[str, Any]:
        base = {"optimizer": type(self._base).__name__, "config": self._config.describe()}
        return {"base": base} | self._domain.describe()

    def _progress(self) -> dict[str, Any]:
        return {
            "rounds": [],
            "arrays": {"consumed": torch.tensor(self._consumed, dtype=torch.long)},
            "arrays_version": len(self._consumed),
            "values": {
                "attached_at": list(self._attached_at),
                "waiting": self._waiting is not None,
                "queued": [t.id for queue in self._queues.values() for t in queue],
            },
        }

    def _check_progress(
        self, progress: Mapping[str, Any], trials: list[Trial], attached: list[Attached]
    ) -> QueuedOptimizer:
        """Play the base's history again: it is a function of what it was told, in order."""
        consumed, values = progress["arrays"].get("consumed"), progress["values"]
        if consumed is None or consumed.dtype is not torch.long or consumed.dim() != 1:
            raise StorageError("The stored queue is malformed: consumed is no list of trials.")
        told, queued = consumed.tolist(), _whole_numbers(values, "queued")
        settled = [t.id for t in trials if t.state in (TrialState.COMPLETED, TrialState.FAILED)]
        if sorted(told + queued) != settled:
            raise StorageError("The stored queue does not match the settled trials.")
        waiting = values.get("waiting")
        if not isinstance(waiting, bool):
            raise StorageError("The stored queue is malformed: waiting is no truth value.")
        calls = 2 * len(told) + waiting
        attached_at = _whole_numbers(values, "attached_at")
        if len(attached_at) != len(attached) or any(at > calls for at in attached_at):
            raise StorageError("The stored queue does not match the attached results.")
        again = QueuedOptimizer(copy.deepcopy(self._pristine))
        for call in range(calls + 1):
            for at, result in zip(attached_at, attached, strict=True):
                if at == call:
                    again._attached([result])
            if call == calls:
                break
            if again._waiting is None:
                again._waiting = again._base.ask()
                continue
            trial = trials[told[call // 2]]
            if trial.index != again._waiting.index:
                raise StorageError(
                    f"The stored queue cannot be replayed: trial {trial.id} is not of the point "
                    "that the wrapped optimizer asks for."
                )
            again._feed(trial)
        for trial_id in queued:
            again._settled(trials[trial_id])
        return again

    def _restore(self, progress: QueuedOptimizer) -> None:
        self._base, self._queues = progress._base, progress._queues
        self._consumed, self._attached_at = progress._consumed, progress._attached_at
        self._waiting = progress._waiting
        if self._finished:
            self._base.finish()


def _whole_numbers(values: Mapping[str, Any], key: str) -> list[int]:
    numbers = values.get(key)
    if not isinstance(numbers, list) or not all(is_whole(number, 0) for number in numbers):
        raise StorageError(f"The stored queue is malformed: {key} is no list of whole numbers.")
    return numbers
