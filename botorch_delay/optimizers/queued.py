"""The queue wrapper of Joulani et al. (2013), which hides delays from any optimizer."""

from __future__ import annotations

import bisect
import copy
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from botorch_delay import validation
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.exceptions import InputError, NotSupportedError, StorageError
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.events import SETTLED, Event, read_events
from botorch_delay.history.point_status import row_of
from botorch_delay.history.trials import Suggestion, Trial
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.run import exclusive


class QueuedOptimizer(Optimizer):
    """QPM-D: an optimizer that never sees a delay (Joulani, Gyorgy & Szepesvari 2013).

    Each point has a queue of answers. When the base asks for a point whose queue holds an answer,
    it is told that at once and asks again. If the queue is empty, every ask is for that point until
    one of its answers arrives. For K independent arms, delays then cost at most the sum over the
    arms of the largest number of answers outstanding (their theorem 6); with many dependent points
    this says little. Failures are passed on like answers, abandoned trials are not. As all workers
    begin at one point, pass ``max_failures=None`` to ``run`` where a point may always fail.
    Certificates of the wrapper are proved; those of ``base``, whose asks are in another order, are
    not.

    Args:
        base: a fresh optimizer on a finite domain; from now on only the wrapper may use it.

    Attributes:
        base: the wrapped optimizer; not to be used directly.

    Raises:
        NotSupportedError: if ``base`` asks from a box, where hardly any point comes twice.
        InputError: if ``base`` has been used, has exact evaluations, or is queued already.
    """

    def __init__(self, base: Optimizer) -> None:
        validation.instance(base, Optimizer, "base", "an optimizer of this library")
        if isinstance(base, QueuedOptimizer):
            raise InputError("base is a QueuedOptimizer already; a queue needs no second one.")
        if base.domain.count is None:
            raise NotSupportedError(
                f"QueuedOptimizer needs a FiniteDomain, got {base.domain!r}: a queue serves few "
                "independent arms, and on a box hardly any point is asked twice, so the base "
                "would wait for ever."
            )
        if base.exact:
            raise InputError(
                "base has exact evaluations, one of which is enough; a queue evaluates its point "
                "again until an answer comes. Leave out exact, or the queue."
            )
        if base._ledger.event_count:
            raise InputError(
                f"base must be fresh; it has {len(base.trials)} trials and {len(base.attached)} "
                "attached results, or was finished. Attach them to the QueuedOptimizer instead."
            )
        super().__init__(base._config)
        self.base = base
        self._start()

    def _start(self) -> None:
        super()._start()
        self.base = copy.copy(self.base)
        self.base._planned = self._planned
        self.base._start()
        self._fed: dict[int, int] = {}  # by trial id: the base's trial that was told its answer
        self._queues: dict[int, deque[Trial]] = defaultdict(deque)
        self._calling = False  # True in a call of the base, False while its events are replayed

    @property
    @exclusive
    def guarantee(self) -> Guarantee:
        """Nothing is claimed: the base's claim is for answers without delay."""
        base = self.base.guarantee
        missing = (
            "the base's claim is for answers without delay; the queue adds up to one answer "
            f"outstanding at a time for each of {len(self._domain.like)} independent points, which "
            "bounds nothing useful for many dependent ones (Joulani 2013, theorem 6).",
            *base.missing,
        )
        return Guarantee(False, base.delta, base.assumptions, missing)

    def _choose(self) -> Suggestion:
        base = self.base
        while True:
            if not base.pending:
                self._call(base.ask)
            (waiting,) = base.pending
            index = row_of(waiting)
            if not self._queues[index]:
                return Suggestion(index, round=waiting.round, slot=len(self._ledger))
            told = self._queues[index][0]
            if told.value is None:
                self._call(base.mark_failed, waiting, told.reason, fed=told.id)
            else:
                self._call(base.tell, waiting, told.value, told.noise_var, fed=told.id)

    def _call(self, call: Callable[..., Any], *arguments: Any, fed: int | None = None) -> None:
        """Call the base, and record its events in one event of the wrapper."""
        start, self._calling = self.base._ledger.event_count, True
        try:
            call(*arguments)
        finally:  # decisions made before an error count as well
            events = [event.record() for event in self.base._ledger.events(start)]
            if events:
                self._happen("base", data={"fed": fed, "events": events})
            self._calling = False

    def _apply(self, event: Event) -> None:
        super()._apply(event)
        if event.kind in ("attached", "detached", "extended"):
            self.base._apply(event)
        elif event.trial is not None and event.kind in ("completed", "failed"):
            trial = self._ledger[event.trial]
            # Sorted by id: the order in which answers arrive between two asks makes no difference.
            bisect.insort(self._queues[row_of(trial)], trial, key=lambda t: t.id)

    def _apply_decided(self, event: Event) -> None:
        if event.kind != "base":
            super()._apply_decided(event)
            return
        base, data = self.base, event.data
        told = [record["trial"] for record in data["events"] if record["kind"] in SETTLED]
        if (data["fed"] is None) == bool(told):
            raise StorageError("what the base was told is missing.")
        if not self._calling:
            base._replay(read_events(data["events"], self._domain))
        if data["fed"] is not None:
            trial = self._ledger[validation.whole(data["fed"], "fed", 0)]
            queue = self._queues[row_of(trial)]
            if not queue or queue.popleft() is not trial:
                raise StorageError(f"trial {trial.id} is not next in its queue.")
            self._fed[trial.id] = told[0]

    def _decide_after_settled(self, trial: Trial) -> None:
        if trial.id in self._fed:  # corrected after the base was told
            reason = trial.corrections[-1].reason
            self._call(self.base.correct, self._fed[trial.id], trial.value, reason)

    def _close_last(self) -> None:
        self._call(self.base.finish)

    @property
    def _surrogate(self) -> Surrogate:
        return self.base._surrogate

    @property
    def _bounds_are_refuted(self) -> bool:
        return self.base._bounds_are_refuted

    def _described(self) -> dict[str, Any]:
        return {"base": type(self.base).__name__} | super()._described()
