"""Trials as a policy counts them: averaged answers, pending points, and what may be asked."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from botorch_delay.domains.finite import PointKeys
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.point_status import Feasibility
from botorch_delay.history.trials import Attached, Ledger, Trial, TrialState
from botorch_delay.optimizers.rules import Censor, Hallucinate, Pending


class PolicyData:
    """What all trials so far mean to a policy.

    Each point has a key: a candidate's row, or a number below 0 for a point that is none.

    Args:
        ledger: the trials; read, never written.
        pending: how pending points enter.
        sign: -1 where the user minimises.
        exact: whether evaluations are, so that no point is asked twice.

    Attributes:
        answers: give the mean.
        feasibility: of the points.
        running: by key, how many trials are.
        behind: whether all trials are to be counted by :meth:`restart` before anything is read.
        widths: sigma at the last points, when they were asked.
    """

    def __init__(
        self,
        ledger: Ledger,
        pending: Pending,
        *,
        sign: float,
        exact: bool,
    ) -> None:
        self._ledger, self._pending, self._sign, self._exact = ledger, pending, sign, exact
        self.widths: list[float] = []
        self.behind = True

    def restart(self, surrogate: Surrogate, candidates: Tensor) -> None:
        """Count all trials anew, with another surrogate or other candidates."""
        self._surrogate = surrogate
        self._keys = PointKeys()
        self.answers = Averages(surrogate, candidates)
        self._asked: Averages | None = None
        if isinstance(self._pending, Hallucinate):
            self._asked = Averages(surrogate, candidates)
        self.feasibility = Feasibility(self._ledger.trials, self.key, exact=self._exact)
        self.running = Counter(self.key(trial) for trial in self._ledger.running())
        for trial in self._ledger.trials:
            self._count(trial)
        for number, result in enumerate(self._ledger.attached):
            self._count_attached(number, result)
        self.behind = False

    @property
    def with_pending(self) -> Averages:
        """What gives the deviation: with pending points, where there are any to count."""
        if self._asked is None or self._asked.size == self.answers.size:
            return self.answers
        return self._asked

    @property
    def elsewhere(self) -> list[Tensor]:
        """The points that are no candidates, each ``d``: that of key -1, of key -2, and so on."""
        return self._keys.points

    def key(self, trial: Trial) -> int:
        """The key of a trial's point."""
        return self._keys.of(trial.x, trial.index)

    def width_at(self, point: int | Tensor) -> float | None:
        """Sigma at the point that is about to be asked, where the rule adds it up; else None."""
        if not (isinstance(self._pending, Censor) and self._pending.inflate):
            return None
        if isinstance(point, int):
            return self.with_pending.at_candidates.deviation[point].item()
        inputs = self._surrogate.inputs(point.unsqueeze(0))
        return self.with_pending.anywhere.at(inputs).deviation.item()

    def asked(self, trial: Trial, width: float | None = None) -> None:
        """A new trial was asked; :meth:`width_at` said so much of its point."""
        if width is not None:
            assert isinstance(self._pending, Censor)
            assert self._pending.max_delay is not None
            self.widths = [*self.widths, width][-self._pending.max_delay :]
        if not self.behind:
            self.feasibility.add(trial)
            self.running[self.key(trial)] += 1
            self._count(trial)

    def settled(self, trial: Trial) -> None:
        """A trial was answered, failed or abandoned."""
        if not self.behind:
            self.feasibility.note(trial)
            self.running[self.key(trial)] -= not trial.late
            self._count(trial)

    def attached(self) -> None:
        """A result came from elsewhere, the last one that the ledger holds."""
        if not self.behind:
            number = len(self._ledger.attached) - 1
            self._count_attached(number, self._ledger.attached[number])

    def pending_points(self) -> Tensor | None:
        """Points that count as pending in a model, ``p x e`` in its inputs; None without any."""
        if self._asked is None:
            return None
        points = [t.x for t in self._ledger.running()]
        known = {self.key(t) for t in self._ledger.trials if t.state is not TrialState.FAILED}
        failed = sorted(key for key in self.feasibility.suspects if key not in known)
        points += [self._asked.point(key) for key in failed]
        return self._surrogate.inputs(torch.stack(points)) if points else None

    def _count(self, trial: Trial) -> None:
        """Enter a trial where its state says that it counts, and take it out elsewhere."""
        key, x, value = self.key(trial), trial.x, trial.value
        counted = trial.state is not TrialState.ABANDONED
        if isinstance(self._pending, Censor) and counted:
            limit, delay = self._pending.max_delay, trial.delay
            if value is None or (limit is not None and delay is not None and delay > limit):
                value = self._pending.worst_value
        if value is not None:
            self.answers.put(key, trial.id, x, self._sign * value, trial.noise_var)
        else:
            self.answers.drop(key, trial.id)
        if self._asked is not None:
            if counted:
                self._asked.put(key, trial.id, x, None, trial.noise_var)
            else:
                self._asked.drop(key, trial.id)

    def _count_attached(self, number: int, result: Attached) -> None:
        key = self._keys.of(result.x, result.index)
        self.feasibility.know(key)
        source = -1 - number
        self.answers.put(key, source, result.x, self._sign * result.value, None)
        if self._asked is not None:
            self._asked.put(key, source, result.x, None, None)
