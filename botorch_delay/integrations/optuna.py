"""BPE-Delay as a sampler for Optuna.

Each trial keeps the record of its ask as a system attribute. Whenever a point is needed the trials
are read from the study's storage, so that every process that opens the study sees the same rounds.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from botorch_delay import validation
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    NoAnswerError,
)
from botorch_delay.history.point_status import PRUNED
from botorch_delay.history.trials import TrialState
from botorch_delay.integrations.engine_run import EngineRun, Settings
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.replica import PastTrial

try:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, TPESampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.study import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import TrialState as Theirs

    from botorch_delay.integrations.optuna_space import (
        CONSTRAINED,
        NEVER_SUGGESTED,
        NONE_SHARED,
        as_parameter,
        checked_space,
        has_constraints,
        shared_by_all,
        space_warning,
        usable,
        varying_in,
    )
except ImportError as error:
    raise validation.missing("optuna", "DelaySampler needs Optuna") from error

__all__ = ["DelaySampler"]

logger = logging.getLogger(__name__)

ATTRIBUTE = "botorch_delay"  # the system attribute with the record of a trial's ask
MAX_ATTEMPTS = 10  # tries to choose a point that no other process has just taken
MAX_RUNS = 8  # optimizers that a sampler keeps, one per study and search space
_now = datetime.now  # as Optuna stores times: local, without a zone


class DelaySampler(BaseSampler):
    """BPE-Delay for Optuna studies with one objective.

    It works with any ``n_jobs``, with ``study.ask`` and ``study.tell``, and with many processes on
    one storage if their samplers have the same arguments; trials of other samplers count as
    results. Running trials are pending points. The point of a failed trial may be asked again, at
    most twice. Regions where more trials failed or were pruned than completed are avoided while
    there are others; values of pruned trials are not used. Lost design points are asked again, too,
    if a regret bound needs their answers.

    The parameters of ``search_space`` are chosen together; without it those that all completed
    trials have (before the first result, that any trial has). They may be conditional: one that the
    objective does not suggest makes no difference. Optuna's TPE chooses each of the others on its
    own, as well as those that an enqueued trial leaves open.

    Args:
        horizon: how many asks are planned; one more is an error. Without ``search_space`` the first
            trial does not count. None if no end is planned: rounds then grow by a factor of 2.
        seed: of everything random, equal in all processes; studies with the same seed are alike.
        search_space: distributions by name, to fix the space before the first trial.
        stale_after: seconds after its start at which a running trial counts as lost, which frees
            its point; None for never. A late result is still used. Heartbeats of an ``RDBStorage``
            are honoured in any case.
        options: of :class:`botorch_delay.BPEDelayOptimizer`: ``exploit``, ``confidence``, .... A
            ``covar_module`` sees parameters as numbers, sorted by name, and categories as their
            positions. A rule does not repeat pending points unless given as ``Exploit(rule)``.

    Raises:
        InputError: for invalid arguments; from every method if the study has several objectives.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> study = optuna.create_study(sampler=DelaySampler(seed=1), direction="maximize")
        >>> study.optimize(lambda trial: -trial.suggest_float("x", -1, 2) ** 2, n_trials=6)
        >>> len(study.trials)
        6
    """

    def __init__(
        self,
        horizon: int | None = None,
        *,
        seed: int = 0,
        search_space: Mapping[str, BaseDistribution] | None = None,
        stale_after: float | None = None,
        **options: Any,
    ) -> None:
        self._settings = Settings(horizon, seed, options, DelaySampler)
        self._stale_after = (
            None if stale_after is None else validation.positive(stale_after, "stale_after")
        )
        self._search_space = None if search_space is None else checked_space(search_space)
        self._cache = _Cache()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The parameters that are chosen together, with their distributions."""
        study = _checked(study)
        with self._cache.lock:
            space, place = self._find_space(study), (study._storage, study._study_id)
            completed, given = usable(study), self._search_space is not None
            if (*place, CONSTRAINED) not in self._cache.warned and has_constraints(completed):
                self._cache.warned.add((*place, CONSTRAINED))
                logger.warning("%s", CONSTRAINED)
            unwarned = place not in self._cache.warned
            if unwarned and (warning := space_warning(completed, space, given=given)):
                self._cache.warned.add(place)
                logger.warning("%s", warning)
            return space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point of a trial.

        Raises:
            HorizonError: if more trials are asked for than the horizon.
            EmptyDomainError: if every point has failed.
        """
        study = _checked(study)
        varying = varying_in(search_space)
        brought = varying.keys() & trial.params.keys()  # as of a retried trial
        if brought or not varying or "fixed_params" in trial.system_attrs:
            return {}
        with self._cache.lock:
            try:
                return self._run(study, varying).propose(trial)
            except HorizonError as error:
                raise HorizonError(
                    f"All trials of the horizon, {self._settings.horizon}, have been asked for. To "
                    "go on, give the study a sampler with another horizon, which counts further "
                    "trials only, or with none; it uses the results so far."
                ) from error

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A value by TPE, for a parameter that is not chosen together with others."""
        _checked(study)
        seed = zlib.crc32(f"{self._settings.seed} {trial.number} {param_name}".encode())
        choose = TPESampler(seed=seed).sample_independent
        return choose(study, trial, param_name, param_distribution)

    def optimizer(self, study: Study) -> BPEDelayOptimizer:
        """The optimizer as of now, for reading: its rounds, active set, recommendation.

        Its columns are the parameters that are chosen together, sorted by name. It does not know
        which trials were pruned, so use :meth:`guarantee` for what is claimed.

        Raises:
            NoAnswerError: if no search space is known yet.
        """
        return self._synced(study).optimizer

    def recommend(self, study: Study, *, tried: bool = False) -> dict[str, Any]:
        """The recommended parameters, from all results; NoAnswerError before the first.

        Parameters not chosen together are left out, unless all completed trials agree on them.

        Args:
            study: the study.
            tried: whether to recommend only parameters of trials with a result.
        """
        run = self._synced(study)
        names = run.domain.columns.parameters
        if (completed := usable(study)) and not any(names & t.params.keys() for t in completed):
            raise NoAnswerError(NEVER_SUGGESTED.format(", ".join(names)))
        if not completed:
            raise NoAnswerError("No trial of this study has completed yet; recommend() needs one.")
        found = run.recommend(tried=tried)
        every = [trial.params.items() for trial in completed]
        constant = dict(item for item in every[0] if all(item in items for items in every))
        return constant | found

    def guarantee(self, study: Study) -> Guarantee:
        """What is claimed for this study, and why not more; raises as :meth:`optimizer` does."""
        return self._synced(study).guarantee

    def _find_space(self, study: Study) -> dict[str, BaseDistribution]:
        if self._search_space is not None:
            return dict(self._search_space)
        place = (study._storage, study._study_id)
        return shared_by_all(study, self._cache.spaces.setdefault(place, IntersectionSearchSpace()))

    def _run(self, study: Study, distributions: Mapping[str, BaseDistribution]) -> _StudyRun:
        place = (study._storage, study._study_id, repr(distributions))
        run = self._cache.runs.pop(place, None)
        if run is None:
            run = _StudyRun(study, distributions, self._settings, self._stale_after)
        self._cache.runs[place] = run  # the most recently used one comes last
        while len(self._cache.runs) > MAX_RUNS:
            del self._cache.runs[next(iter(self._cache.runs))]
        return run

    def _synced(self, study: Study) -> _StudyRun:
        validation.instance(study, Study, "study", "an optuna.Study")
        study = _checked(study)
        with self._cache.lock:
            space = self._find_space(study)
            if not space:
                none_yet = "No trial of the study has parameters yet."
                raise NoAnswerError(NONE_SHARED if usable(study) else none_yet)
            run = self._run(study, space)
            run.sync(study.get_trials(deepcopy=False))
            return run


class _Cache:
    """What a sampler knows about its studies; the lock is for the threads of ``n_jobs``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: dict[Any, _StudyRun] = {}
        self.spaces: dict[Any, IntersectionSearchSpace] = {}
        self.warned: set[Any] = set()  # studies warned about once

    def __reduce__(self) -> tuple[type[_Cache], tuple[()]]:
        return _Cache, ()  # a pickled sampler starts with an empty one


class _StudyRun(EngineRun):
    """The optimizer of one search space in one study; ``stale_after`` is in seconds, or None."""

    remedy: ClassVar[str] = (
        "give every worker the same arguments, with search_space: without it, a trial that "
        "began before the parameters were known belongs to another space"
    )

    def __init__(
        self,
        study: Study,
        distributions: Mapping[str, BaseDistribution],
        settings: Settings,
        stale_after: float | None,
    ) -> None:
        space = Space({name: as_parameter(name, d) for name, d in distributions.items()})
        maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
        super().__init__(study.study_name, space, settings, maximize)
        self._study = study
        self._storage: Any = study._storage
        self._stale_after = stale_after

    def propose(self, trial: FrozenTrial) -> dict[str, Any]:
        """The parameters for a trial; its ask is recorded in the storage."""
        number, trials = trial.number, self._study.get_trials(deepcopy=False)
        lost = self.sync(trials)
        known = self.replica.trial(number)
        if known is not None:
            return self.domain.params(known.x)
        skip, ahead = 0, True
        for _ in range(MAX_ATTEMPTS):
            before = _asking_before(trial, trials, lost) if ahead else 0
            try:
                record = self.ask(number, before=before, skip=skip)
            except (EmptyDomainError, HorizonError):
                if not skip:
                    raise
                record = self.ask(number, before=before)
            try:
                self._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, record)
            except BaseException:
                self.replica.forget(number)
                raise
            # A process that writes its record later than this sees this one when it reads, as here.
            trials = self._study.get_trials(deepcopy=False)
            others = [other for other in trials if other.number != number]
            twins = [
                other.number
                for other in others
                if other.number not in lost
                and other.state is Theirs.RUNNING
                and (self._record(other) or {}).get("x") == record["x"]
            ]
            asked = {n: self.replica.trial(n) for n in twins}  # as far as the optimizer knows
            news = [n for n, own in asked.items() if own is None or own.x.tolist() != record["x"]]
            if not twins or not (news or before or skip):
                break  # no other claims it, or only claimed points are left
            if news:
                # The twins may choose again too, from the same data. So each skips a different
                # number of points, and never returns to a point that it gave up.
                skip += sum(twin < number for twin in news)
            else:  # points may be left, but too few to pass over some for the others
                skip, ahead = 0, False
            self.replica.forget(number)
            lost = self.sync(others)
        else:  # no free point was found: keep the last one
            self.sync(trials)
        return self.domain.params(self.point(record))

    def sync(self, trials: Iterable[FrozenTrial]) -> set[int]:
        """Update the optimizer; returns the numbers of the running trials that are lost."""
        lost = self._lost(trials)
        self.take_in(self._past(trials, lost))
        return lost

    def _past(self, trials: Iterable[FrozenTrial], lost: set[int]) -> Iterator[PastTrial | None]:
        """The trials that are new or may have changed."""
        for trial in trials:
            if trial.number in self.ended or trial.state is Theirs.WAITING:
                continue
            if trial.state.is_finished():
                self.ended.add(trial.number)
            self.stopped_early |= trial.state is Theirs.PRUNED
            record, is_complete = self._record(trial), trial.state is Theirs.COMPLETE
            if record is not None and is_complete:
                yield from self._answered(trial, record)
            elif record is not None:
                state = TrialState.FAILED  # also if pruned: its point is not worth another trial
                if trial.number in lost:
                    state = TrialState.ABANDONED
                elif trial.state is Theirs.RUNNING:
                    state = TrialState.RUNNING
                reason = PRUNED if trial.state is Theirs.PRUNED else ""
                yield self.past_ask(record, state, reason=reason)
            elif is_complete:
                yield self.past_result(trial.number, trial.params, trial.values[0])

    def _answered(
        self, trial: FrozenTrial, record: Mapping[str, Any]
    ) -> Iterator[PastTrial | None]:
        """A completed trial that was asked here.

        Parameters that the objective did not suggest made no difference. If it evaluated another
        value than asked for, as when a range depends on another parameter, that is a result from
        elsewhere, and the point that was asked for counts as failed.
        """
        asked, value = self.domain.params(self.point(record)), trial.values[0]
        suggested = {name: trial.params[name] for name in asked if name in trial.params}
        if suggested and suggested.items() <= asked.items():
            yield self.past_ask(record, TrialState.COMPLETED, value)
            return
        if not suggested:  # the value says nothing about the point
            yield self.past_ask(record, TrialState.ABANDONED)
            return
        yield self.past_ask(record, TrialState.FAILED, reason="other values were evaluated")
        yield self.past_result(-1 - trial.number, asked | suggested, value)

    def _record(self, trial: FrozenTrial) -> Mapping[str, Any] | None:
        """The record of a trial that was asked here."""
        record = trial.system_attrs.get(ATTRIBUTE)
        if not isinstance(record, dict) or record.get("number") != trial.number:
            return None  # a copied or retried trial has the attribute of the original
        return self.record_of(record, running=trial.state is Theirs.RUNNING)

    def _lost(self, trials: Iterable[FrozenTrial]) -> set[int]:
        """Numbers of the running trials whose worker is lost."""
        running = [trial for trial in trials if trial.state is Theirs.RUNNING]
        lost, now = set(), _now()
        if self._stale_after is not None:
            long = timedelta(seconds=self._stale_after)
            lost = {each.number for each in running if now - (each.datetime_start or now) > long}
        heartbeat = getattr(self._storage, "get_heartbeat_interval", lambda: None)
        if running and heartbeat() is not None:
            silent = set(self._storage._get_stale_trial_ids(self._study._study_id))
            lost |= {trial.number for trial in running if trial._trial_id in silent}
        return lost


def _asking_before(trial: FrozenTrial, trials: Sequence[FrozenTrial], lost: set[int]) -> int:
    """How many trials with lower numbers are about to ask for their points."""
    return sum(
        other.number < trial.number
        and other.state is Theirs.RUNNING
        and not other.params
        and other.number not in lost
        and not {ATTRIBUTE, "fixed_params"} & other.system_attrs.keys()
        for other in trials
    )


def _checked(study: Study) -> Study:
    """The whole study, as Hyperband shows samplers one bracket only; it must have one objective.

    Values of completed trials can be compared whatever their brackets.
    """
    study = getattr(study, "_study", study)
    if len(study.directions) > 1:
        raise InputError(
            f"DelaySampler optimises one objective, and the study has {len(study.directions)}; use "
            "one of Optuna's samplers for several, or combine the objectives to one value."
        )
    return study
