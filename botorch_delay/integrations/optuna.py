"""BPE-Delay as a sampler for Optuna.

Everything is read from the study's storage whenever a point is needed: finished, running, failed
and pruned trials. Each trial keeps, as a system attribute, the point that it was given and the
record of that ask (see :mod:`botorch_delay.optimizers.replica`), so that every process that opens
the study sees the same rounds, whoever closed them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import torch

from botorch_delay import validation
from botorch_delay.confidence.bounds import Guarantee
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    InputTypeError,
    MissingExtraError,
    NoAnswerError,
)
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.replica import PastTrial, Replica

try:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.study import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import TrialState as Theirs
except ImportError as error:
    raise MissingExtraError(
        "DelaySampler needs Optuna: pip install 'botorch-delay[optuna]'."
    ) from error

from botorch_delay.integrations.options import engine_options
from botorch_delay.integrations.optuna_space import OptunaSpace, single_value

__all__ = ["DelaySampler"]

logger = logging.getLogger(__name__)

# The system attribute in which a trial keeps its point and the record of its ask.
ATTRIBUTE = "botorch_delay"
# How often a point is chosen anew because another process has just given it away.
MAX_ATTEMPTS = 10
# Studies and search spaces that a sampler keeps optimizers for.
MAX_SESSIONS = 8
PRUNED = (
    "trials were pruned: they stop for their values, which a bound from the others does not count"
)


class DelaySampler(BaseSampler):
    """BPE-Delay for Optuna's studies with one objective.

    ``study.optimize`` with any ``n_jobs``, ``study.ask`` and ``study.tell``, and many processes on
    one storage. Running trials are pending points. A trial that fails has its point asked again
    at most twice; a pruned one frees its point and its value is not used. Where a regret
    bound needs their answers, design points that were pruned or lost are asked again too.

    Parameters of the relative search space are chosen together: those that every completed trial
    has, before the first result those that any trial has. All others, conditional ones among
    them, are drawn at random, and so are those that an enqueued trial leaves open.

    In every process the sampler needs the same arguments: asks of samplers with other arguments
    count as results only.

    Args:
        horizon: how many trials are planned; beyond, asking is an error. None where no end is
            planned: rounds then grow by a factor of 2.
        seed: of everything random, the same in all processes.
        search_space: distributions by name, if they are to be known before the first trial.
        stale_after: seconds after its start at which a running trial counts as lost with its
            worker, and its point and its round are freed; None for never. A result that comes
            after all is still used. Heartbeats of an ``RDBStorage`` are honoured in any case.
        options: further options of :class:`botorch_delay.BPEDelayOptimizer`: ``explore_fraction``,
            ``exploit``, ``evidence``, ``confidence``, and so on. A ``covar_module`` sees the
            parameters as numbers, in the order of their names, categories as positions.
            A rule does not repeat pending points, unless it is given as ``Exploit(rule)``.

    Raises:
        InputError: if an argument is out of its range or unknown.

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
        self._horizon = None if horizon is None else validation.whole(horizon, "horizon", 1)
        self._seed = validation.seed(seed)
        self._stale_after = (
            None if stale_after is None else validation.positive(stale_after, "stale_after")
        )
        self._given_space = None if search_space is None else _check_space(search_space)
        self._options = engine_options(options, horizon)
        self._forget_studies()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The parameters that are chosen together, with their distributions; a copy."""
        _check_single(study)
        with self._lock:
            return dict(self._find_space(study))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point of a trial.

        Raises:
            InputError: if the study has several objectives.
            HorizonError: if more trials are asked for than the horizon.
            EmptyDomainError: if every point has failed.
        """
        _check_single(study)
        varying = {name: d for name, d in search_space.items() if not d.single()}
        if not varying or "fixed_params" in trial.system_attrs:
            return {}
        if any(name in trial.params for name in varying):  # a retried trial brings them along
            return {}
        with self._lock:
            return self._session(study, varying).ask(study, trial)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value, the same for a seed, a trial and a name."""
        _check_single(study)
        if param_distribution.single():
            return single_value(param_distribution)
        space = OptunaSpace({param_name: param_distribution})
        name = f"{self._seed} {trial.number} {param_name}"
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
        generator = torch.Generator().manual_seed(seed)
        unit = torch.rand(1, 1, generator=generator, dtype=torch.double)
        return space.params(space.domain.from_unit(unit)[0])[param_name]

    def optimizer(self, study: Study) -> BPEDelayOptimizer:
        """The optimizer as of now, to be read: its rounds, active set, recommendation.

        It minimises where the study does. Its points have one column per parameter of the
        relative search space, in the order of the names. What is claimed :meth:`guarantee` tells:
        the optimizer does not know which trials were pruned.

        Raises:
            InputError: if the study has several objectives.
            NoAnswerError: if no search space is known yet.
        """
        return self._synced(study).replica.optimizer

    def recommend(self, study: Study) -> dict[str, Any]:
        """The parameters with the best posterior mean among those tried.

        Raises:
            InputError: if the study has several objectives.
            NoAnswerError: before the first result.
        """
        session = self._synced(study)
        return session.space.params(session.replica.optimizer.recommend().x)

    def guarantee(self, study: Study) -> Guarantee:
        """What is claimed for this study, and why not more.

        Raises:
            InputError: if the study has several objectives.
            NoAnswerError: if no search space is known yet.
        """
        claimed = self.optimizer(study).guarantee
        if not any(trial.state is Theirs.PRUNED for trial in study.get_trials(deepcopy=False)):
            return claimed
        return replace(claimed, holds=False, missing=(*claimed.missing, PRUNED))

    def reseed_rng(self) -> None:
        """Nothing to do: random numbers follow from the seed and the number of a trial."""

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_horizon", "_seed", "_stale_after", "_given_space", "_options")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_studies()

    def _forget_studies(self) -> None:
        self._lock = threading.RLock()  # one sampler is shared by the threads of n_jobs
        self._sessions: dict[Any, _Session] = {}
        self._intersections: dict[Any, IntersectionSearchSpace] = {}

    def _find_space(self, study: Study) -> dict[str, BaseDistribution]:
        if self._given_space is not None:
            return self._given_space
        place = (study._storage, study._study_id)
        if place not in self._intersections:
            self._intersections[place] = IntersectionSearchSpace()
        found = self._intersections[place].calculate(study)
        if not found:
            trials = study.get_trials(deepcopy=False)
            if not any(trial.state is Theirs.COMPLETE for trial in trials):
                found = _union(trials)
        return {name: d for name, d in found.items() if not d.single()}

    def _session(self, study: Study, distributions: Mapping[str, BaseDistribution]) -> _Session:
        space = OptunaSpace(distributions)
        place = (study._storage, study._study_id, space.describe())
        session = self._sessions.pop(place, None)
        if session is None:
            session = _Session(self._make, space, study, self._stale_after)
        self._sessions[place] = session  # the last one used comes last
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def _synced(self, study: Study) -> _Session:
        _check_single(study)
        with self._lock:
            space = self._find_space(study)
            if not space:
                raise NoAnswerError("The study has no trial yet that tells its parameters.")
            session = self._session(study, space)
            session.sync(study, study.get_trials(deepcopy=False))
            return session

    def _make(self, space: OptunaSpace, maximize: bool) -> BPEDelayOptimizer:
        return BPEDelayOptimizer(
            space.domain, self._horizon, seed=self._seed, maximize=maximize, **self._options
        )


class _Session:
    """The optimizer of one search space in one study.

    Args:
        make: makes the optimizer, from the space and whether to maximise.
        space: what is searched.
        study: whose trials are read.
        stale_after: in seconds, or None.
    """

    def __init__(
        self, make: Any, space: OptunaSpace, study: Study, stale_after: float | None
    ) -> None:
        self.space = space
        maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
        self.replica = Replica(lambda: make(space, maximize))
        self._stale_after = stale_after
        self._done: set[int] = set()
        self._place = _digest(study.study_name, space.describe())
        self._settings = _digest(json.dumps(self.replica.optimizer.state_dict()["config"]))
        self._warned = False

    def ask(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """The parameters of a trial, noted with it."""
        trials = study.get_trials(deepcopy=False)
        lost = self.sync(study, trials)
        known = self.replica.trial(trial.number)
        if known is not None:
            return self.space.params(known.x)
        behind = 0
        for _ in range(MAX_ATTEMPTS):
            ahead = self._ahead_of(trial, trials, lost)
            try:
                asked = self.replica.ask(trial.number, ahead, skip=behind)
            except (EmptyDomainError, HorizonError):
                if not behind:
                    raise
                asked = self.replica.ask(trial.number, ahead)
            x = asked.trial.x.tolist()
            claim: dict[str, Any] = {
                "number": trial.number,
                "place": self._place,
                "settings": self._settings,
                "x": x,
                "ask": asked.record,
            }
            try:
                study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, claim)
            except BaseException:
                self.replica.forget(trial.number)
                raise
            # What another process writes from now on, it writes after it could see this.
            trials = study.get_trials(deepcopy=False)
            held = [other for other in trials if other.number not in lost]
            twins = [other.number for other in held if self._is_twin(other, trial, x)]
            if not twins:
                break
            # They may be choosing anew too, from the same data: each takes another point.
            behind = sum(number < trial.number for number in twins)
            self.replica.forget(trial.number)
            others = [other for other in trials if other.number != trial.number]
            lost = self.sync(study, others)
        else:  # fewer points than workers
            self.sync(study, trials)
        return self.space.params(asked.trial.x)

    def sync(self, study: Study, trials: Iterable[FrozenTrial]) -> set[int]:
        """Take in what is new; numbers of the running trials whose worker is lost."""
        lost = self._lost(study, trials)
        self.replica.sync(self._news(trials, lost))
        return lost

    def _news(self, trials: Iterable[FrozenTrial], lost: set[int]) -> Iterator[PastTrial]:
        for trial in trials:
            if trial.number in self._done or trial.state is Theirs.WAITING:
                continue
            past = self._past(trial, trial.number in lost)
            if trial.state.is_finished():
                self._done.add(trial.number)
            if past is not None:
                yield past

    def _past(self, trial: FrozenTrial, lost: bool) -> PastTrial | None:
        claim = self._claim(trial)
        value = trial.values[0] if trial.state is Theirs.COMPLETE else math.nan
        if claim is None:
            x = self.space.point(trial.params) if math.isfinite(value) else None
            done = TrialState.COMPLETED
            return None if x is None else PastTrial(trial.number, x, done, value)
        x = torch.tensor(claim["x"], dtype=torch.double)
        past = PastTrial(trial.number, x, TrialState.RUNNING, record=claim["ask"])
        if trial.state is Theirs.COMPLETE:
            asked = self.space.params(x)
            if any(trial.params.get(name) != asked[name] for name in asked):
                return replace(past, state=TrialState.ABANDONED)  # something else was evaluated
            if math.isfinite(value):
                return replace(past, state=TrialState.COMPLETED, value=value)
            return replace(past, state=TrialState.FAILED, reason=f"the value is {value}")
        if trial.state is Theirs.FAIL:
            return replace(past, state=TrialState.FAILED)
        if trial.state is Theirs.PRUNED or lost:
            return replace(past, state=TrialState.ABANDONED)
        return past

    def _claim(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """What a trial notes of its ask, if it was asked here.

        Trials that are copied, by another study or to be tried again, bring the attribute along.
        """
        claim = trial.system_attrs.get(ATTRIBUTE)
        if not isinstance(claim, dict) or claim.get("number") != trial.number:
            return None
        if claim.get("place") != self._place:
            return None
        if claim.get("settings") != self._settings:
            if trial.state is Theirs.RUNNING and not self._warned:
                self._warned = True
                logger.warning(
                    "trial %d is running for a sampler with other arguments, whose points are not "
                    "known to be pending here; give every worker's DelaySampler the same arguments",
                    trial.number,
                )
            return None
        return claim

    def _ahead_of(self, trial: FrozenTrial, trials: Sequence[FrozenTrial], lost: set[int]) -> int:
        """How many trials with lower numbers are about to ask for their points."""
        return sum(
            other.number < trial.number
            and other.state is Theirs.RUNNING
            and not other.params
            and other.number not in lost
            and not {ATTRIBUTE, "fixed_params"} & other.system_attrs.keys()
            for other in trials
        )

    def _is_twin(self, other: FrozenTrial, trial: FrozenTrial, x: list[float]) -> bool:
        """Whether another running trial has the same point."""
        if other.state is not Theirs.RUNNING or other.number == trial.number:
            return False
        claim = self._claim(other)
        return claim is not None and claim["x"] == x

    def _lost(self, study: Study, trials: Iterable[FrozenTrial]) -> set[int]:
        """Numbers of the running trials whose worker is lost."""
        running = [trial for trial in trials if trial.state is Theirs.RUNNING]
        lost: set[int] = set()
        if self._stale_after is not None:
            for trial in running:
                assert trial.datetime_start is not None
                age = (_now() - trial.datetime_start).total_seconds()
                if age > self._stale_after:
                    lost.add(trial.number)
        storage: Any = study._storage
        if running and getattr(storage, "get_heartbeat_interval", lambda: None)() is not None:
            silent = set(storage._get_stale_trial_ids(study._study_id))
            lost |= {trial.number for trial in running if trial._trial_id in silent}
        return lost


def _now() -> datetime:
    """As Optuna notes times: local, without a zone."""
    return datetime.now()


def _union(trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """The parameters that some trial has, but those on which trials disagree."""
    found: dict[str, BaseDistribution] = {}
    disputed: set[str] = set()
    for trial in trials:
        for name, distribution in trial.distributions.items():
            if found.setdefault(name, distribution) != distribution:
                disputed.add(name)
    return {name: found[name] for name in sorted(found) if name not in disputed}


def _check_single(study: Study) -> None:
    if len(study.directions) > 1:
        raise InputError(
            f"DelaySampler optimises one objective, and the study has {len(study.directions)}; use "
            "one of Optuna's samplers for several, or combine the objectives to one value."
        )


def _check_space(search_space: Any) -> dict[str, BaseDistribution]:
    if not isinstance(search_space, Mapping) or not all(
        isinstance(name, str) and isinstance(distribution, BaseDistribution)
        for name, distribution in search_space.items()
    ):
        raise InputTypeError(
            "search_space must map names to distributions, as in "
            "{'x': optuna.distributions.FloatDistribution(0, 1)}."
        )
    return {name: d for name, d in sorted(search_space.items()) if not d.single()}


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()
