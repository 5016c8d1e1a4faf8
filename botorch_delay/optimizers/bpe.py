"""BPE-Delay: batch pure exploration with delayed feedback (Algorithm 1)."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from botorch.acquisition.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Confidence, FixedBeta, RKHSConfidence
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.delays import DelayLaw
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.elimination.active_set import ActiveSet, RoundBounds
from botorch_delay.elimination.box_active_set import whole_set
from botorch_delay.elimination.closing import RoundAnswers, close_round, everything_left
from botorch_delay.elimination.finite_active_set import FiniteActiveSet
from botorch_delay.elimination.open_round import NO_SLOT, WAITING_SLOT, OpenRound
from botorch_delay.elimination.rounds import (
    Departure,
    GeometricRounds,
    HorizonRounds,
    RoundRecord,
    ScheduledRounds,
)
from botorch_delay.exceptions import (
    EmptyDomainError,
    ExhaustedDesignError,
    InputError,
    NotSupportedError,
    RefutedError,
    RepeatedResultWarning,
    StorageError,
)
from botorch_delay.gp.surrogate import Learned, Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.events import Event, finite, flag, whole
from botorch_delay.history.point_status import Feasibility, row_of
from botorch_delay.history.trials import Attached, Choice, Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.budget import Budget
from botorch_delay.optimizers.claims import History, claim, departures, least_norm, waits_of
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.exploit import DEFAULT_EXPLOIT, Exploit, WithinBudget, as_exploit
from botorch_delay.optimizers.fitting import Fitting
from botorch_delay.optimizers.forecasts import Forecast, Straggler
from botorch_delay.optimizers.locks import exclusive
from botorch_delay.optimizers.policies import make_policy
from botorch_delay.optimizers.policy import Policy
from botorch_delay.optimizers.rules import Rule
from botorch_delay.optimizers.stragglers import EarlyClose, LateReport, forecast, holding

logger = logging.getLogger(__name__)

# How many slots may be missing below one that was served elsewhere.
FURTHEST_SLOT = 10_000

_Exploits = Exploit | WithinBudget | Rule | Callable[..., AcquisitionFunction] | None


class BPEDelayOptimizer(Optimizer):
    """Elimination in rounds of maximum-variance design, with answers that come back late.

    In round r the points are asked where the fantasy deviation sigma, given the points of the
    round so far, is largest on the active set. When the round closes, confidence bounds from
    its answers eliminate every point whose upper bound is below the largest lower bound.

    Without a delay law a round closes when its first q_r design points are settled, and its
    bounds use exactly those. With a law, rounds have the lengths ``t_r = ceil(q_r + u_T(delta))``
    of Algorithm 1 and bounds use whatever of the design has been answered. A round closes only
    inside ``ask``, before the point is chosen; the last one when all its asks are settled, or at
    ``finish``. A design point whose trial fails is asked again, at most twice. So is one that was
    abandoned where the regret bound needs its answer: with valid bounds, noise, no delay law and
    no ``straggler_factor`` of the rounds. Elsewhere the round goes without it.

    Every ask that is no design point plays ``exploit`` on all data, restricted to the active set,
    or towards the end of the horizon asks again for one of its best points (:class:`Exploit`).
    The regret bound charges every ask of a round the same, whatever active point it plays, and
    these points enter neither the round's bounds nor the decision when it closes. So the bound
    stays as it is where design points come first (``explore_fraction`` 1), and grows by at most
    1 / sqrt(rho) where only a share rho of the asks are design points.

    On a box each design point is searched for along the gradient, from a pool of spread points and
    points on the boundary. Where the kernel is learned the pool's spread points are played as they
    are: most of a box's deviation is in its corners, which tell least about the rest.

    Args:
        domain: a finite action set, or a box.
        horizon: T, how many asks are planned; None, with :class:`GeometricRounds`, where no end is.
        covar_module: the kernel, fixed; :class:`Learned`, or None, to learn it and noise from the
            answers: nothing is claimed then, and rounds, rule and recommendation share the one that
            was learned last. Until three answers are in ``exploit`` plays points in a random order.
        noise_var: lambda^2, given if and only if the kernel is; not with ``exact``.
        confidence: bounds that eliminate; ``FixedBeta(6.0)`` if None.
        delay: a delay law, for rounds of fixed length.
        delta: failure probability of the guarantee, in (0, 1).
        rounds: how many design points each round has: :class:`HorizonRounds`, also if None, or
            :class:`GeometricRounds`.
        exploit: what plays the asks that are no design points: a rule, or what
            :class:`BotorchRule` takes, as ``Exploit(rule)``; :class:`Exploit` with its options;
            :class:`WithinBudget`, where the rule plays as long as a regret budget allows it; None
            to continue the design instead, as Algorithm 1 does.
        explore_fraction: rho in (0, 1], the share of asks that are design points; if None 0.005,
            and 1 where ``exploit`` is None or ``WithinBudget``, or a delay law is given.
        evidence: "round": bounds use the round's own design points. "all": with ``FixedBeta`` they
            use all answers there are instead; with ``RKHSConfidence`` the self-normalised bound
            from all answers is intersected with the round's own, delta split evenly. If None
            "all" where bounds are a heuristic anyway and no delay law is given, else "round".
        exact: evaluations have no noise: a kernel is given without a noise variance, a jitter
            stands for it, no point is asked twice, and bounds use all answers.
        seed: of Thompson samples, of searches on a box, and of restarts of a fit.
        maximize: False minimises; all public values keep the user's sign.

    Raises:
        InputError: if an argument is out of its range, only one of kernel and noise is given, or
            options contradict each other.
        NotSupportedError: on a box, for ``evidence="all"`` with ``RKHSConfidence``.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> domain = FiniteDomain(torch.linspace(0, 1, 50, dtype=torch.double).unsqueeze(-1))
        >>> opt = BPEDelayOptimizer(
        ...     domain, horizon=40, covar_module=RBFKernel().double(), noise_var=1e-4
        ... )
        >>> first, second = opt.ask(2)            # two workers
        >>> opt.tell(second, 0.3)                 # answers in any order
        >>> third = opt.ask()
        >>> opt.tell(first, 0.1)
        >>> opt.recommend().index == second.index
        True
    """

    def __init__(
        self,
        domain: Domain,
        horizon: int | None,
        *,
        covar_module: Kernel | Learned | None = None,
        noise_var: float | None = None,
        confidence: Confidence | None = None,
        delay: DelayLaw | None = None,
        delta: float = 0.1,
        rounds: HorizonRounds | GeometricRounds | None = None,
        exploit: _Exploits = DEFAULT_EXPLOIT,
        explore_fraction: float | None = None,
        evidence: str | None = None,
        exact: bool = False,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        config = BPEConfig(
            *(domain, horizon, covar_module, noise_var, exact, seed, maximize),
            confidence=FixedBeta(6.0) if confidence is None else confidence,
            delta=delta,
            delay=delay,
            rounds=HorizonRounds() if rounds is None else rounds,
            exploit=as_exploit(exploit),
            explore_fraction=explore_fraction,
            evidence=evidence,
        )
        super().__init__(config)
        self._config: BPEConfig = config
        domain = config.domain
        self._fixed, self._confidence = config.fixed, config.confidence
        self._delta = config.delta
        self._rule = config.round_rule()
        self._start()
        self._active.check(self._fixed, self._round_bounds(1))
        if self._policy is not None:
            self._policy.check()

    def _start(self) -> None:
        super()._start()
        config, domain = self._config, self._domain
        self._fitting: Fitting = Fitting(config, self._ledger)
        self._active: ActiveSet = whole_set(domain, self._seed)
        self._resets = 0
        self._records: list[RoundRecord] = []
        self._judged: ActiveSet | None = None  # what a round leaves, until its end is applied
        self._open: OpenRound | None = None
        self._feasibility = Feasibility(key=self._active.key, exact=self._exact)
        self._late = LateReport()
        factor = config.straggler_factor
        self._early = None if factor is None else EarlyClose(factor, domain.like)
        self._designed = 0  # design points asked, in all rounds
        self._past = History()
        self._budget = self._make_budget()
        self._policy: Policy | None = None
        if config.rule is not None:
            self._policy = make_policy(config, self._ledger, self._fitting)

    @classmethod
    def as_published(
        cls,
        domain: FiniteDomain,
        horizon: int,
        *,
        covar_module: Kernel,
        noise_var: float,
        confidence: Confidence,
        delay: DelayLaw,
        delta: float = 0.1,
        seed: int = 0,
        maximize: bool = True,
    ) -> BPEDelayOptimizer:
        """Algorithm 1 as printed.

        Rounds of t_r asks, every ask by maximum sigma, bounds from the answered points of the
        round, and in Theorem 1's multiplier the number of points of the whole domain.

        Args:
            domain: the finite action set.
            horizon: T.
            covar_module: the kernel.
            noise_var: lambda^2.
            confidence: the bounds.
            delay: the law that gives u_T(delta); ``NoDelay()`` for BPE (Li & Scarlett 2022).
            delta: failure probability.
            seed: kept for the common signature; nothing in Algorithm 1 is random.
            maximize: False minimises.

        Raises:
            InputError: if an argument is out of its range or missing.
        """
        required = {"covar_module": covar_module, "noise_var": noise_var, "delay": delay}
        for name, value in (required | {"confidence": confidence}).items():
            if value is None:
                raise InputError(f"Algorithm 1 needs {name}; None was given.")
        optimizer = cls(
            domain,
            horizon,
            covar_module=covar_module,
            noise_var=noise_var,
            confidence=confidence,
            delay=delay,
            delta=delta,
            exploit=None,
            seed=seed,
            maximize=maximize,
        )
        optimizer._config = replace(optimizer._config, as_published=True)
        return optimizer

    @classmethod
    def guaranteed(
        cls,
        domain: Domain,
        horizon: int,
        *,
        covar_module: Kernel,
        noise_var: float,
        norm_bound: float,
        noise_std: float,
        delta: float = 0.1,
        seed: int = 0,
        maximize: bool = True,
    ) -> BPEDelayOptimizer:
        """The mode with the least regret among those whose regret bound is proved.

        On a finite set a rule plays :class:`WithinBudget`: with probability 1 - delta regret is at
        most 1.25 times BPE-Delay's own bound, plus what waits cost, and ``certified_regret`` bounds
        it at all times. On a box a tenth of the asks are design points, so that regret is at most
        sqrt(10) times the bound of Theorem 2, plus what waits cost. On both the maximiser is never
        eliminated; nothing is assumed of the delays. ``guarantee`` has the assumptions.

        Args:
            domain: a finite action set, or a box.
            horizon: T.
            covar_module: the kernel.
            noise_var: lambda^2.
            norm_bound: C_k, a bound on the RKHS norm of f.
            noise_std: sigma, the sub-Gaussian scale of the noise.
            delta: failure probability.
            seed: as in the constructor.
            maximize: False minimises.

        Raises:
            InputError: if an argument is out of its range or missing.
        """
        on_set = isinstance(domain, FiniteDomain)
        return cls(
            domain,
            horizon,
            covar_module=covar_module,
            noise_var=noise_var,
            confidence=RKHSConfidence(norm_bound, noise_std),
            delta=delta,
            exploit=WithinBudget() if on_set else Exploit(),
            explore_fraction=None if on_set else 0.1,
            seed=seed,
            maximize=maximize,
        )

    @property
    @exclusive
    def certified_regret(self) -> float:
        """A bound on the cumulative regret of all asks so far, in units of the values.

        It holds with probability ``1 - delta / 4`` at all times at once, whatever the delays.

        Raises:
            NotSupportedError: without :class:`WithinBudget`.
            RefutedError: if the answers contradict ``norm_bound`` and ``noise_std``, or one was
                told with more noise.
        """
        if self._budget is None:
            raise NotSupportedError("Regret is certified with exploit=WithinBudget() alone.")
        assert isinstance(self._confidence, RKHSConfidence)
        if self._past.noisier:
            raise RefutedError(
                "No regret can be certified: an answer was told with a noise variance above "
                f"noise_std squared, {self._confidence.noise_std**2:g}. Make the optimizer with "
                "the largest scale of the noise."
            )
        if self._budget.refuted or self._past.norm > self._confidence.norm_bound:
            raise RefutedError(
                f"No regret can be certified: the answers contradict {self._confidence!r}; they "
                f"need a norm of at least {self._past.norm:.4g} at noise of that scale. Make the "
                "optimizer with a larger norm_bound or noise_std, or another kernel."
            )
        return self._budget.certified

    @property
    def explore_fraction(self) -> float:
        """Rho, the share of asks that are design points while a design lasts."""
        return self._config.fraction

    @property
    @exclusive
    def active_set(self) -> ActiveSet:
        """The points that may still be the maximiser, infeasible ones taken out."""
        return self._active_points()

    @property
    @exclusive
    def eliminated(self) -> Tensor:
        """For each point of the domain the round that took it out, 0 while it is active: ``N``.

        A point is taken out by the bounds of a round, or because it was infeasible when the
        round closed.

        Raises:
            NotSupportedError: on a box, where ``active_set.contains(X)`` tells.
        """
        return self._active.eliminated

    @exclusive
    def round_that_eliminated(self, X: Tensor) -> Tensor:
        """For each point (``n x d``) the round that took it out, 0 while it is active: ``n``.

        Raises:
            InputError: if ``X`` is malformed, or holds points outside of the domain.
        """
        X = validation.matrix(X, "X", empty=True)
        validation.matches(X, "X", self._domain.like)
        if not bool(self._domain.contains(X).all()):
            raise InputError("X holds points that are not in the domain.")
        return self._active.round_that_eliminated(X)

    @property
    def round(self) -> int | None:
        """The number of the open round; None before the first ask and after the last round."""
        return None if self._open is None else self._open.number

    @property
    @exclusive
    def rounds(self) -> list[RoundRecord]:
        """The closed rounds."""
        return list(self._records)

    @property
    @exclusive
    def stragglers(self) -> list[Straggler]:
        """The trials that keep the open round from closing, longest wait first.

        Empty while design points are still to be asked, and under a delay law, where rounds
        wait for nobody. ``mark_abandoned`` frees the round or, where the regret bound needs the
        answer, has the point asked again first.
        """
        if self._open is None or not self._rule.on_arrival:
            return []
        return holding(self._open, self._feasibility, self._ledger, self._estimated_law())

    @exclusive
    def forecast(self) -> Forecast | None:
        """Inside which of the next asks the open round will close; None if no round is open.

        From the delays of answers so far, of trials that are out, and from the number of design
        points that are still to be asked; see :class:`Forecast`.

        Raises:
            NoAnswerError: if the round waits for answers, and none has come to forecast from.
        """
        if self._open is None:
            return None
        return forecast(
            self._open,
            self._feasibility,
            self._ledger,
            self._estimated_law(),
            horizon=self._horizon,
            length=self._rule.length(self._open.number),
            designed=self._designed,
            fraction=self._config.fraction,
            budgeted=self._budget is not None,
        )

    @property
    @exclusive
    def guarantee(self) -> Guarantee:
        """What is claimed for this configuration and its run so far, and why not more."""
        departed: set[Departure] = set()
        departed.update(*(record.departures for record in self._records))
        waits = None
        if (
            self._config.proves
            and self._rule.on_arrival
            and isinstance(self._confidence, RKHSConfidence)
        ):
            strays = self._past.strays
            waits = waits_of(self._records, self._open, self._most_costly, strays)
        past = self._past
        if isinstance(self._rule, ScheduledRounds):  # those that are still running count as well
            limit = len(self._ledger) - 1 - self._rule.wait
            running = sum(trial.id < limit for trial in self._ledger.running())
            past = replace(past, overdue=past.overdue + running)
        if self._open is not None:
            departed |= self._open.departures
        terms, budget = None, self._budget
        if budget is not None:
            waits = (budget.waiting, budget.waits)
            sizes = [record.design_size for record in self._records]
            if self._open is not None:
                sizes.append(min(len(self._open.slots), self._open.design_size))
            terms = budget.terms([record.half_width for record in self._records], sizes)
        return claim(
            self._config,
            resets=self._resets,
            history=past,
            departed=departed,
            waits=waits,
            budget=terms,
            refuted=budget is not None and budget.refuted,
        )

    def _choose(self) -> Choice:
        self._fit_if_due()
        if self._open is None:
            self._happen("opened")
        elif self._is_due(self._open):
            if not self._rule.on_arrival and self._open.is_overdue():
                self._open.departures.add(Departure.OVERDUE)
            if self._open.gave_up():
                self._open.departures.add(Departure.GIVEN_UP)
            self._close(self._round_answers(), last=False)
        assert self._open is not None
        choice = self._next_choice(self._open)
        if self._budget is not None:
            assert choice.index is not None
            choice = replace(choice, data={"price": self._budget.price(choice.index)})
        if self._rule.on_arrival:
            self._late.look(self._open, self._feasibility, self._ledger)
        return choice

    def _next_choice(self, current: OpenRound) -> Choice:
        slot = current.next_retry()
        if slot is not None:
            return self._active.choice(current.slots[slot].key, current.number, slot)
        choice = None
        if self._budget is not None:
            choice = self._play_within(self._budget, current)
        elif self._policy is not None and not self._design_is_due(current):
            choice = self._play(self._policy, current)
            if choice is not None and self._is_held(current):
                choice = replace(choice, slot=WAITING_SLOT)
            if choice is None:  # held points are all that is left; they are no design points here
                choice = self._active.choice(self._next_key(current), current.number, NO_SLOT)
        if choice is None:
            choice = self._active.choice(
                self._next_key(current), current.number, len(current.slots)
            )
        return choice

    def _next_key(self, current: OpenRound) -> int:
        """What the design picks next, on every feasible point if no active one is left."""
        try:
            return current.next_key()
        except ExhaustedDesignError:
            self._reset_active(current)
            return current.next_key()

    def _design_is_due(self, current: OpenRound) -> bool:
        """Whether the next ask is a design point, where a share of the asks are.

        Which points are asked is fixed when the round opens, unless a trial fails; when they are
        asked follows from the number of asks alone if pending points may be repeated.
        """
        return self._is_turn_of_design(current) and not self._is_held(current)

    def _is_turn_of_design(self, current: OpenRound) -> bool:
        """Whether the design still has points to ask and less than its share of the asks."""
        if current.design_is_asked():
            return False
        return self._designed <= self._config.fraction * len(self._ledger)

    def _is_held(self, current: OpenRound) -> bool:
        """Whether the next design point has to wait until no trial of it is running."""
        if self._config.repeat_pending or not self._is_turn_of_design(current):
            return False
        try:
            key = current.next_key()
        except ExhaustedDesignError:
            return False
        return any(self._active.key(trial) == key for trial in self._ledger.running())

    def _play_within(self, budget: Budget, current: OpenRound) -> Choice | None:
        """The rule's point if the budget allows it or the round waits; None for a design point."""
        assert self._policy is not None
        number = current.number
        try:
            row = self._pick(self._policy, self._active_points())
        except EmptyDomainError:
            return None
        assert isinstance(row, int)
        if budget.affords(row, number, len(current.slots)):
            return Choice(row, round=number, slot=NO_SLOT)
        if current.design_is_asked():
            return Choice(row, round=number, slot=WAITING_SLOT)
        return None

    def _play(self, policy: Policy, current: OpenRound) -> Choice | None:
        """An ask outside the design; None if no active point may be asked."""
        number = current.number
        try:
            point = self._pick(policy, self._active)
        except EmptyDomainError:
            return None
        if isinstance(point, int):
            return Choice(point, round=number, slot=NO_SLOT)
        return Choice(None, round=number, slot=NO_SLOT, x=point)

    def _pick(
        self,
        policy: Policy,
        active: ActiveSet,
    ) -> int | Tensor:
        """The rule's point or, towards the end of the horizon, one that is to be confirmed."""
        if self._horizon is not None:
            last = round(self._config.confirm_fraction * self._horizon)
            if len(self._ledger) >= self._horizon - last:
                point = policy.confirm(active)
                if point is not None:
                    return point
        return policy.choose(active)

    @exclusive
    def follow(self, events: Sequence[Event]) -> Trial:
        """Take in an ask that was made elsewhere, with all that it brought about.

        What does not fit here any more is left out: a round that has opened already, or a fit to
        fewer answers. A design point that another trial serves becomes an ask outside the design.

        Args:
            events: of the ask, the ask itself last, with the ids of the trials here.

        Raises:
            InputError: if the point is not in the domain.
            NotSupportedError: with :class:`WithinBudget`, whose prices are of the time of an ask.
            StorageError: if the events do not fit what was asked before.
        """
        if self._budget is not None:
            raise NotSupportedError(
                "With WithinBudget every ask counts with the bounds of its time, which other "
                "processes do not share; use save and load."
            )
        *before, asked = events
        for event in before:
            if self._fits(event):
                self._replay([event])
        data = dict(asked.data)
        X = self._domain.like.new_tensor([data["x"]])
        if not bool(self._domain.contains(X)):
            raise InputError(f"x must be a point of the domain, got {data['x']}.")
        key = self._active.key_of(X[0])
        data["point"] = self._active.choice(key, 1, 0).index
        current, number, slot = self._open, data["round"], data["slot"]
        if current is not None:
            if number > current.number or (number == current.number and slot >= 0):
                fits = number == current.number and self._make_room(current, slot, key)
                # One that does not fit comes on top of the design, as while a round waits.
                data |= {"round": current.number, "slot": slot if fits else WAITING_SLOT}
        elif self._finished:  # asked elsewhere while the last ask was out
            data |= {"round": len(self._records), "slot": NO_SLOT}
        else:
            raise StorageError("The ask that opened the first round is missing.")
        self._replay([replace(asked, trial=len(self._ledger), data=data)])
        return self._ledger[-1]

    def _fits(self, event: Event) -> bool:
        """Whether what an ask elsewhere brought about is news here."""
        if event.kind == "opened":
            return self._open is None and not self._finished
        if event.kind == "fitted":
            return bool(event.data["answers"] > self._fitting.fitted_to)
        return self._open is not None and (
            event.kind != "closed" or event.data["record"]["number"] == self._open.number
        )

    def _make_room(self, current: OpenRound, slot: int, key: int) -> bool:
        """Whether a point that was chosen elsewhere can serve a slot; earlier slots are opened.

        Those wait to be asked: their trials are not known yet, or never came to be. A slot that
        is further away than any run leaves them is none: a damaged event must not cost hours.
        """
        if slot > len(current.slots) + FURTHEST_SLOT:
            return False
        try:
            while slot > len(current.slots):
                missing = self._active.choice(current.next_key(), current.number, slot)
                point = self._domain.like[missing.index] if missing.x is None else missing.x
                self._happen("dealt", data={"x": point.tolist(), "point": missing.index})
        except ExhaustedDesignError:
            return False
        return current.admits(slot, key)

    def _decided(self, event: Event) -> None:
        data, current = event.data, self._open
        if event.kind == "opened" and current is None and not (self._records or self._finished):
            self._open = self._new_round(1, 1)
        elif event.kind == "closed" and current is not None:
            self._take_closing(current, data)
        elif event.kind == "reset" and current is not None:
            self._take_reset(current, entirely=flag(data["whole"]))
        elif event.kind == "dealt" and current is not None:
            current.deal(self._active.key_of(self._domain.like.new_tensor(data["x"])))
        elif event.kind == "tested" and self._config.proves:
            self._past = self._past.tested_norm(finite(data["norm"]), whole(data["answers"]))
        else:
            super()._decided(event)
            if event.kind == "fitted" and current is not None:
                current.use(self._fitting.surrogate)

    def _asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        # An ask made elsewhere may be of an earlier round, or come after the last one.
        current = self._open if self._open and trial.round == self._open.number else None
        if current is None and trial.round > len(self._records):
            raise StorageError(f"trial {trial.id} is of round {trial.round}, which is not open.")
        key = self._active.key(trial)
        if current is not None and trial.slot >= 0 and not current.admits(trial.slot, key):
            raise StorageError(f"trial {trial.id} has an impossible slot, {trial.slot}.")
        if self._policy is not None:
            self._policy.data.asked(trial)
        new = trial.slot >= 0 and not (current is not None and current.is_served(trial.slot))
        self._designed += new
        if self._budget is not None:
            # Of BPE-Delay's own asks these are none that its bound counts.
            beyond = current is not None and trial.slot >= current.design_size
            again = trial.slot >= 0 and (not new or beyond)
            waiting = again or trial.slot == WAITING_SLOT
            self._budget.ask(row_of(trial), finite(data["price"]), waiting=waiting)
        if current is not None:
            current.take(trial)
        elif self._config.proves:
            self._past = replace(self._past, strays=self._past.strays + 1)
        self._feasibility.add(trial)
        self._update_standing(trial)

    def _settled(self, trial: Trial) -> None:
        self._feasibility.note(trial)
        if self._policy is not None:
            self._policy.data.settled(trial)
        if self._budget is not None and trial.state is TrialState.COMPLETED:
            self._budget.tell(trial)
        current = self._open
        if current is not None and trial.round == current.number:
            current.settle(trial)
        self._update_standing(trial)
        if self._config.proves:
            self._look_back(trial)

    def _look_back(self, trial: Trial) -> None:
        """Keep what a claim may not survive of a trial that was settled."""
        assert self._fixed is not None
        current = self._open
        wait = self._rule.wait if isinstance(self._rule, ScheduledRounds) else None
        over = self._finished or len(self._ledger) == self._horizon
        again = (
            self._needs_all
            and current is not None
            and trial.round == current.number
            and 0 <= trial.slot < current.design_size
        )
        taken = len(self._ledger) - 1 - trial.id
        past = self._past.settled(trial, again=again, taken=taken, wait=wait, over=over)
        if trial.noise_var is not None:
            past = past.told(trial.noise_var, self._fixed, self._confidence)
        self._past = past
        if current is not None and not over:
            on_arrival = self._rule.on_arrival
            current.departures |= departures(
                current, trial, self._fixed, on_arrival=on_arrival, exact=self._exact
            )

    def _after_settled(self, trial: Trial) -> None:
        if trial.state is TrialState.COMPLETED:
            self._late.answered(len(self._ledger) - 1 - trial.id)
        confidence, count = self._confidence, self._ledger.answer_count
        tests = self._config.proves and isinstance(confidence, RKHSConfidence)
        if tests and self._past.needs_test(count):
            assert self._fixed is not None
            assert isinstance(confidence, RKHSConfidence)
            norm = least_norm(self._fixed, confidence, self._delta, self._told_answers)
            self._happen("tested", data={"norm": norm, "answers": count})
        current = self._open
        if current is not None and len(self._ledger) == self._horizon and current.all_settled():
            self._close_last()

    def _told_answers(self, largest: float) -> tuple[Answers, int]:
        """The answers that were told with a noise variance of at most so much.

        And how many asks had been made up to the last of all answers.
        """
        ids = self._ledger.answered()
        answers = self._data(ids)
        fits = ~(answers.noise_var > largest)
        if not bool(fits.all()):
            answers = answers.at(fits.to(answers.X.device))
        return answers, ids[-1] + 1

    def _update_standing(self, trial: Trial) -> None:
        key = self._active.key(trial)
        if self._open is not None and (self._exact or key in self._feasibility.suspects):
            self._open.set_standing(key, self._feasibility.standing(key))

    def _attached(self, result: Attached) -> None:
        if self._policy is not None:
            self._policy.data.attached()
        if self._exact:
            for key in self._active.keys_of([result]):
                self._feasibility.know(key)
                if self._open is not None:
                    self._open.set_standing(key, self._feasibility.standing(key))

    def _after_attached(self, count: int) -> None:
        if self._config.proves and self._config.evidence == "all" and not self._exact:
            repeats = self._ledger.repeated(count)
            if repeats:
                warnings.warn(
                    f"{repeats} of the attached results were attached before, with the same point "
                    "and value. Each counts as an evaluation of its own, on which bounds rest; "
                    "attach an evaluation once.",
                    RepeatedResultWarning,
                    stacklevel=4,
                )

    def _close_last(self) -> None:
        if self._open is not None:
            answers = self._round_answers()
            if self._config.proves and not self._exact and not self._ends_as_planned(self._open):
                answers = replace(answers, ids=(), own=self._data(()))
            self._close(answers, last=True)
        self._finished = True

    def _ends_as_planned(self, current: OpenRound) -> bool:
        """Whether values have no say in how many design points the last round has.

        They do where a run is ended early, or where they decide when a design point is asked:
        Lemma 1 says nothing of such a round, unless its design is complete.
        """
        if self._rule.on_arrival and current.design_is_settled():
            return True
        # A delay law leaves answers out by Algorithm 1's own rule, whatever their noise.
        arrived = not (self._rule.on_arrival and current.outstanding()[0])
        counted = self._policy is None or self._config.repeat_pending
        ended = arrived and len(self._ledger) == self._horizon
        return ended and counted and self._budget is None

    def _is_due(self, current: OpenRound) -> bool:
        """Whether the open round closes before the next point is chosen."""
        return current.is_due() or self._closes_early(current)

    def _closes_early(self, current: OpenRound) -> bool:
        if self._early is None or not current.design_is_asked():
            return False
        rows = self._active.without(self._feasibility.infeasible()).rows
        assert rows is not None
        return self._early.allows(current, rows)

    def _round_answers(self) -> RoundAnswers:
        """The answers by which the open round is judged, if it closes now."""
        assert self._open is not None
        used = tuple(self._open.answered(self._open.design_size if self._rule.on_arrival else None))
        if self._config.evidence != "all":
            return RoundAnswers(used, self._data(used), merged=self._merges)
        # On a box an active set is made again from the answers of trials alone.
        pooled = None if self._active.rows is None else self._all_data()
        used = tuple(self._ledger.answered()) if self._merges else used
        return RoundAnswers(used, self._data(used), pooled, self._merges)

    @property
    def _merges(self) -> bool:
        """Whether bounds from all answers take the place of the round's own."""
        return not self._config.proves or self._exact

    def _new_round(self, number: int, previous_size: int) -> OpenRound:
        return OpenRound(
            number,
            self._rule.design_size(number, previous_size),
            self._rule.length(number),
            self._fitting.surrogate,
            self._active,
            {key: self._feasibility.standing(key) for key in self._feasibility.marked()},
            needs_all=self._needs_all,
        )

    @property
    def _needs_all(self) -> bool:
        """Whether the regret bound needs the answer of every design point of a round."""
        waits = self._rule.on_arrival and self._early is None
        return self._config.proves and not self._exact and waits

    def _round_bounds(self, number: int) -> RoundBounds:
        """How wide the bounds of a round are."""
        delta = self._delta
        if self._config.budget_factor is not None:
            delta /= 2.0  # the other half is for the bounds of the budget
        if self._config.evidence == "all" and not self._merges:
            delta /= 2.0  # the other half is for the bounds from all answers
        points = self._active.union(whole=self._config.as_published)
        return RoundBounds(
            self._confidence,
            delta,
            self._rule.share(number),
            points,
            self._config.proves,
            self._sign,
        )

    def _close(self, answers: RoundAnswers, *, last: bool) -> None:
        """Close the open round and, unless it was the last, open the next."""
        current = self._open
        assert current is not None
        infeasible = self._feasibility.infeasible()
        bounds = self._round_bounds(current.number)
        record, active = close_round(current, answers, self._active, infeasible, bounds)
        self._judged = active
        left = active.left_of(self._active)
        self._happen("closed", data={"record": record.describe(), "left": left, "last": last})
        logger.info(
            "round %d closed after %d asks: %d answers used, %.6g of %.6g %s stay active",
            record.number,
            record.length,
            record.observed,
            record.active_after,
            record.active_before,
            active.unit,
        )

    def _take_closing(self, current: OpenRound, data: Mapping[str, Any]) -> None:
        """The end of a round as it was decided, here or elsewhere."""
        active, self._judged = self._judged, None  # it is made where it happens now
        record, last = RoundRecord.read(data["record"]), flag(data["last"])
        known = all(trial_id < len(self._ledger) for trial_id in record.trial_ids)
        whole_design = last or record.design_size == current.design_size
        if record.number != current.number or not (known and whole_design):
            raise StorageError(f"round {record.number} cannot have closed so.")

        def judged() -> tuple[Surrogate, Answers, RoundBounds]:
            used = [self._ledger[trial_id] for trial_id in record.trial_ids]
            answers = Answers.of(used, self._sign, self._domain.like)
            surrogate = self._fixed or Surrogate.rebuild(record.surrogate or {}, self._domain)
            bounds = self._round_bounds(record.number)
            return surrogate.standardized(answers.y), answers, bounds

        if active is None:
            active = self._active.after_record(record, data["left"], judged)
        self._active = active
        self._records.append(record)
        self._finished |= last
        self._open = None if last else self._new_round(record.number + 1, current.design_size)
        self._follow_active()

    def _follow_active(self) -> None:
        """On a box, let the asks outside the design choose among points of the active set."""
        if self._policy is not None:
            self._policy.use_active(self._active)

    def _reset_active(self, current: OpenRound) -> None:
        """Go on with every feasible point where none of the active ones may be asked.

        Where they may not because their values are known exactly, they stay the active ones.
        """
        everything_left(self._active, self._feasibility, current.number)  # says so if none is left
        feasible = self._active.without(self._feasibility.infeasible())
        self._happen("reset", data={"whole": feasible.is_empty})

    def _take_reset(self, current: OpenRound, *, entirely: bool) -> None:
        left = self._active.restored(self._feasibility.infeasible(), current.number)
        if entirely:
            self._active = left
        self._resets += 1
        current.restart(left)
        self._follow_active()

    def _active_points(self) -> ActiveSet:
        """The active set, without infeasible points and those that a budget's bounds rule out."""
        active = self._active.without(self._feasibility.infeasible())
        if self._budget is None:
            return active
        assert isinstance(active, FiniteActiveSet)
        return active.only(self._budget.active(active.rows))

    def _judgement(self) -> tuple[Surrogate, Confidence, float]:
        return self._fitting.current(), self._confidence, self._delta

    def _make_budget(self) -> Budget | None:
        if self._config.budget_factor is None:
            return None
        assert isinstance(self._domain, FiniteDomain)
        assert isinstance(self._confidence, RKHSConfidence)
        assert self._fixed is not None
        assert self._horizon is not None
        return Budget(
            self._domain,
            self._fixed,
            self._confidence,
            self._rule,
            self._horizon,
            self._delta,
            self._config.budget_factor,
            self._sign,
        )

    @functools.cached_property
    def _most_costly(self) -> float:
        """What any ask can cost at most: functions of norm C differ by at most 2 C max sqrt(k)."""
        assert self._fixed is not None
        assert isinstance(self._confidence, RKHSConfidence)
        largest = self._active.largest_deviation(self._fixed.covar_module)
        return 2.0 * self._confidence.norm_bound * largest
