"""Which points may be asked: after failures, and where evaluations are exact."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from botorch_delay.domains.domain import Domain, PointKeys
from botorch_delay.exceptions import EmptyDomainError
from botorch_delay.history.trials import Attached, Trial, TrialObserver, TrialState

# Failures that make a point infeasible: it is asked again at most twice.
MAX_FAILURES = 3
# Evaluations are taken as exact after at least this many repeats, and this share of all tries, if
# none differs. (If an evaluation picks one of four stored runs, one in four agrees by chance.)
REPEATS, REPEATED_SHARE = 3, 0.05
# ``Trial.reason`` of trials stopped early as unpromising: they do not make their point infeasible,
# but like all failures they keep rules away from places where failures outweigh answers.
PRUNED = "pruned: what it had shown by then was not worth going on"


class PointStatus(enum.Enum):
    """Whether a point may be asked."""

    OPEN = "open"
    HELD = "held"  # it failed, and would be infeasible if its running trials failed, too
    INFEASIBLE = "infeasible"  # it failed too often
    KNOWN = "known"  # evaluations are exact, and it has been asked


class Feasibility(TrialObserver):
    """The status of each point, a function of its trials alone.

    Only trials asked after the last answered one count. Three failures among them make the point
    infeasible; after the first failure, it is asked only while fewer than three have failed or are
    running. The order in which answers and failures arrive makes no difference, and a point that
    crashes now and then stays feasible. Pruned trials do not count.

    Where evaluations are exact, a point with an answer or a running trial is not asked again.
    """

    def __init__(self, domain: Domain, *, exact: bool) -> None:
        self.keys, self._domain, self._exact = PointKeys(), domain, exact
        self._key_of: dict[int, int] = {}  # of trials by id, of attached results by -1 - id
        self._trials: dict[int, list[Trial]] = defaultdict(list)
        self._attached: dict[int, dict[int, float]] = defaultdict(dict)  # values, by key and id
        self.suspects: set[int] = set()  # points with a failed trial
        self._tries: Counter[int] = Counter()  # number of answers and running trials, if any
        self._tried = 0  # their sum; adding them up in each ask would take ever longer
        self._running = 0  # running trials, the part of that sum without an answer yet
        self._first: dict[int, float] = {}  # the answer that others are compared with
        self._differing: set[int] = set()  # points whose answers differ

    def key(self, place: Trial | Attached) -> int:
        if place.index is not None:
            return place.index
        source = place.id if isinstance(place, Trial) else -1 - place.id
        if source not in self._key_of:
            self._key_of[source] = self.keys.of(place.point)
        return self._key_of[source]

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``, on the CPU."""
        return self._domain.on_cpu[key] if key >= 0 else self.keys.point(key)

    def place(self, key: int) -> int | Tensor:
        """The point with a key as a :class:`Suggestion` has it: its row, or on a box the point."""
        return key if key >= 0 else self.keys.point(key)

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        key = self.key(trial)
        self._trials[key].append(trial)
        self._running += 1
        self._add_tries(key, 1)

    def settled(self, trial: Trial) -> None:
        key, answered = self.key(trial), trial.state is TrialState.COMPLETED
        if trial.state is TrialState.FAILED:
            self.suspects.add(key)
        self._running -= not trial.came_back
        if answered is trial.came_back:  # no longer a try, or again one
            self._add_tries(key, 1 if answered else -1)
        if trial.value is not None:
            self._compare(key, trial.value)

    def corrected(self, trial: Trial, before: TrialState) -> None:
        if trial.state is TrialState.FAILED:
            self.suspects.add(self.key(trial))
        self._count(self.key(trial))

    def attached(self, result: Attached) -> None:
        key = self.key(result)
        if bool(self._domain.contains(result.x.unsqueeze(0))):
            self._attached[key][result.id] = result.value
            self._add_tries(key, 1)
            self._compare(key, result.value)

    def detached(self, result: Attached) -> None:
        self._attached[self.key(result)].pop(result.id, None)
        self._count(self.key(result))

    def status(self, key: int) -> PointStatus:
        if self._exact and key in self._tries:
            return PointStatus.KNOWN
        if key not in self.suspects:
            return PointStatus.OPEN
        failures, running = self.failures(key)
        if failures >= MAX_FAILURES:
            return PointStatus.INFEASIBLE
        held = failures and failures + running >= MAX_FAILURES
        return PointStatus.HELD if held else PointStatus.OPEN

    def is_open(self, x: Tensor) -> bool:
        """Whether a point of a box, ``d``, may be asked."""
        key = self.keys.known(x)
        return key is None or self.status(key) is PointStatus.OPEN

    def failures(self, key: int) -> tuple[int, int]:
        """How many trials of a point have failed since its last answer, and how many run.

        Trials that were pruned say nothing about their point.
        """
        failures = running = 0
        for trial in reversed(self.trials(key)):
            if trial.state is TrialState.COMPLETED:
                break
            failures += trial.state is TrialState.FAILED and trial.reason != PRUNED
            running += trial.state is TrialState.RUNNING
        return failures, running

    def tried(self) -> list[int]:
        """Points with an answer or a running trial, increasing."""
        return sorted(self._tries)

    @property
    def repeats(self) -> int:
        """The number of tries of points that had been tried before.

        Running trials count as tries, so that workers do not all repeat points at once.
        """
        return self._tried - len(self._tries)

    @property
    def repeats_differ(self) -> bool:
        """Whether some point gave different answers."""
        return bool(self._differing)

    def first_answer(self, place: Trial | Attached) -> float | None:
        """The first answer at a trial's or result's point, with which others are compared."""
        return self._first.get(self.key(place))

    def repeats_agree(self) -> bool:
        """Whether there are enough :attr:`repeats`, and answers to some that do not differ.

        This decides for rules; for recommendations :meth:`answers_agree` does.
        """
        enough = max(REPEATS, REPEATED_SHARE * self._tried)
        answered = self._tried - self._running > len(self._first)
        return not self._differing and answered and self.repeats >= enough

    def answers_agree(self) -> bool:
        """Whether enough answers repeat a point, and none differs or has a known noise variance.

        Unlike :meth:`repeats_agree`, this counts only trials, each once it is answered, and does
        not ask for a share of them. Repeats of a value that another point has as well do not
        count: an accuracy may be 1 everywhere near the best, whatever the noise below.
        """
        answered = [
            [trial for trial in trials if trial.state is TrialState.COMPLETED]
            for trials in self._trials.values()
        ]
        if self._differing or any(trial.noise_var for trials in answered for trial in trials):
            return False
        points: Counter[float | None] = Counter(self._first.values())
        alone = [trials for trials in answered if trials and points[trials[0].value] == 1]
        return sum(len(trials) - 1 for trials in alone) >= REPEATS

    def _add_tries(self, key: int, more: int) -> None:
        self._tried += more
        self._tries[key] += more
        if not self._tries[key]:
            del self._tries[key]

    def _compare(self, key: int, value: float) -> None:
        if self._first.setdefault(key, value) != value:
            self._differing.add(key)

    def _count(self, key: int) -> None:
        """Count the tries of a point and compare its answers from scratch."""
        trials = self.trials(key)
        answers = [trial.value for trial in trials if trial.value is not None]
        answers += self._attached.get(key, {}).values()
        tries = len(answers) + sum(trial.state is TrialState.RUNNING for trial in trials)
        self._add_tries(key, tries - self._tries[key])
        self._first.pop(key, None)
        self._differing.discard(key)
        for answer in answers:
            self._compare(key, answer)

    def ask_counts(self) -> list[int]:
        """The number of asks of each point that was asked."""
        return [len(trials) for trials in self._trials.values()]

    def trials(self, key: int) -> list[Trial]:
        """The trials of a point, in the order of their ids."""
        return self._trials.get(key, [])

    def running(self, key: int) -> list[int]:
        """Ids of the running trials of a point, increasing."""
        return [trial.id for trial in self.trials(key) if trial.state is TrialState.RUNNING]

    def fruitless(self) -> list[int]:
        """Points all of whose trials have failed, increasing."""
        return sorted(
            key
            for key in self.suspects
            if all(trial.state is TrialState.FAILED for trial in self.trials(key))
        )

    def known(self) -> set[int]:
        """Points not asked again because evaluations are exact."""
        return set(self._tries) if self._exact else set()

    def unavailable(self) -> list[int]:
        """All points that may not be asked now, increasing."""
        closed = {key for key in self.suspects if self.status(key) is not PointStatus.OPEN}
        return sorted(closed.union(self._tries) if self._exact else closed)

    def infeasible(self) -> list[int]:
        """All infeasible points, increasing."""
        return sorted(k for k in self.suspects if self.status(k) is PointStatus.INFEASIBLE)

    def nothing_to_ask(self) -> EmptyDomainError:
        """The error where no point may be asked."""
        count = len(self.unavailable())
        if self._exact:
            return EmptyDomainError(
                "No point is left to ask: evaluations are exact, so a point with an answer or a "
                f"running trial is not asked again, and each of the {count} points has one or is "
                "infeasible; recommend() names the best that was answered."
            )
        return EmptyDomainError(
            f"None of the {count} points can be asked now: after a failure a point is asked again "
            f"at most {MAX_FAILURES - 1} times. See opt.trials."
        )


def row_of(trial: Trial) -> int:
    """The row of a trial in a finite domain, which is its key as well."""
    assert trial.index is not None
    return trial.index
