"""BPE-Delay: batch pure exploration with delayed feedback (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import (
    DEFAULT_CONFIDENCE,
    DEFAULT_DELTA,
    Confidence,
    RKHSConfidence,
)
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.delays import DelayLaw
from botorch_delay.domains.devices import sent
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.space import Space, as_domain
from botorch_delay.elimination.active_set import ActiveSet, FiniteActiveSet
from botorch_delay.elimination.open_round import NO_SLOT, WAITING_SLOT
from botorch_delay.elimination.rounds import OPEN_ENDED, GeometricRounds, HorizonRounds, RoundRecord
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    NotSupportedError,
    RefutedWarning,
    warn,
)
from botorch_delay.gp.surrogate import Learned
from botorch_delay.history.events import Event
from botorch_delay.history.trials import Attached, Suggestion, Trial
from botorch_delay.optimizers.audit import Audit
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.budget import Budget
from botorch_delay.optimizers.certificate import Certificate
from botorch_delay.optimizers.certifying import CertifyingUCB
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.exploit import DEFAULT_EXPLOIT, Exploits, WithinBudget, as_exploit
from botorch_delay.optimizers.forecasts import Forecast, Straggler
from botorch_delay.optimizers.maximizer import Maximizer
from botorch_delay.optimizers.recommendation import REFUTED
from botorch_delay.optimizers.round_sequence import RoundSequence
from botorch_delay.optimizers.run import exclusive

CONTRADICTED = (
    "The answers contradict norm_bound and noise_std: nothing is claimed any more, and the best "
    "point may have been ruled out. One of the two is too small, the kernel is wrong, or values "
    "are far from 0, where the prior mean is (subtract a typical value from all). See guarantee."
)


class BPEDelayOptimizer(Optimizer):
    """BPE-Delay: ask at any time, tell in any order, eliminate points in rounds.

    Example:
        >>> import torch
        >>> from botorch_delay import FiniteDomain
        >>> points = torch.linspace(0, 1, 50, dtype=torch.double).unsqueeze(-1)
        >>> opt = BPEDelayOptimizer(FiniteDomain(points), horizon=40)
        >>> first, second = opt.ask(2)            # two workers
        >>> opt.tell(second, 0.3)                 # answers in any order
        >>> third = opt.ask()                     # the first is still out, and counted in
        >>> opt.tell(first, 0.1)
        >>> opt.recommend().index == second.index
        True

    In round r each design point is the active point where sigma, given the round's design points so
    far, is largest. When the round closes, confidence bounds from its answers eliminate every point
    whose upper bound is below the largest lower bound.

    Without a delay law a round closes when its first q_r design points are settled, and its bounds
    use exactly those (heuristic bounds may use all answers, see ``evidence``). With a law, rounds
    have the lengths ``t_r = ceil(q_r + u_T(delta))`` of Algorithm 1, and bounds use the design
    points answered by then. A round closes inside ``ask``, before the point is chosen; the last one
    when all its asks are settled, or at ``finish``. A design point whose trial fails is asked
    again, at most twice; so is an abandoned one where the regret bound needs its answer (valid
    bounds, noise, and neither a law nor ``straggler_factor``).

    Every other ask follows ``exploit``, which uses all data, on the active set. With a learned
    kernel it may leave the active set once there are twice as many answers as when points were
    first eliminated, and while the best answer is at an eliminated point.

    The regret bound charges every ask of a round the same, whatever active point it is, and asks
    outside the design affect neither the round's bounds nor when it closes. So the bound is
    unchanged if design points come first (``explore_fraction`` 1). If a share rho of the asks are
    design points, its worst-case form, in terms of the maximal information gain, grows by a factor
    of at most 1 / sqrt(rho); the bound with the actual posterior deviations may grow by more.

    Args:
        domain: a finite action set, a box, or a :class:`Space`.
        horizon: T, the number of asks planned; None for no planned end.
        covar_module: a kernel, which stays fixed; or :class:`Learned`, or None, to learn kernel and
            noise from the answers: then nothing is guaranteed, and the rule asks points in a random
            order until there are three answers that are not all equal.
        noise_var: the variance of the noise (lambda^2), in squared units of the values; required
            with a given kernel (unless ``exact``), refused otherwise.
        confidence: the confidence bounds that eliminate points; ``FixedBeta(6.0)`` if None.
        delay: a delay law, for rounds of fixed length; None for rounds that close on arrival.
        delta: failure probability of the guarantee, in (0, 1).
        rounds: how many design points each round has: :class:`HorizonRounds` or
            :class:`GeometricRounds`. If None, the former, or without a horizon rounds of 1, 2, 4,
            ... design points.
        exploit: what chooses the asks that are not design points: an :class:`Exploit`; a rule, or
            whatever :class:`BotorchRule` takes, which stands for ``Exploit(rule)``; a
            :class:`WithinBudget`; or None, to continue the design as Algorithm 1 does.
        explore_fraction: rho in (0, 1], the share of asks that are design points. If None, 0.005,
            but 1 if ``exploit`` is None or ``WithinBudget``, or with a delay law.
        evidence: "round": bounds use the round's own design points. "all": heuristic bounds use all
            answers instead; proved bounds are intersected with those of ``Confidence.adaptive``
            from all answers, delta split evenly. If None, "all" with ``exact``, or for heuristic
            bounds with an :class:`Exploit` and no delay law; else "round".
        exact: whether evaluations are noise-free: then a jitter replaces ``noise_var``, no point
            with an answer or a running trial is asked again, and bounds use all answers.
        seed: for Thompson samples, random numbers of a :class:`BotorchRule`, values drawn for
            pending points, searches on a box and, with a learned kernel, the order of the first
            points and the restarts of fits.
        maximize: whether large values are good; public values keep the user's sign.

    Raises:
        InputError: if an option is invalid, or cannot be combined with the others.
        NotSupportedError: on a box, for ``WithinBudget``, ``straggler_factor``, ``evidence="all"``
            with proved bounds, or proved bounds under a kernel without a known Lipschitz constant.
    """

    def __init__(
        self,
        domain: Domain | Space,
        horizon: int | None,
        *,
        covar_module: Kernel | Learned | None = None,
        noise_var: float | None = None,
        confidence: Confidence | None = None,
        delay: DelayLaw | None = None,
        delta: float = DEFAULT_DELTA,
        rounds: HorizonRounds | GeometricRounds | None = None,
        exploit: Exploits = DEFAULT_EXPLOIT,
        explore_fraction: float | None = None,
        evidence: str | None = None,
        exact: bool = False,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        default = OPEN_ENDED if horizon is None else HorizonRounds()
        config = BPEConfig(
            *(as_domain(domain), horizon, covar_module, noise_var, exact, seed),
            maximize=maximize,
            confidence=DEFAULT_CONFIDENCE if confidence is None else confidence,
            delta=delta,
            delay=delay,
            rounds=default if rounds is None else rounds,
            exploit=as_exploit(exploit),
            explore_fraction=explore_fraction,
            evidence=evidence,
        )
        super().__init__(config)
        self._config: BPEConfig = config
        self._start()
        self._rounds.active.check(self._fitting.surrogate, self._rounds.bounds(1))
        if self._maximizer is not None:
            self._maximizer.check()

    def _start(self) -> None:
        super()._start()
        config = self._config
        shared = config, self._ledger, self._fitting, self._feasibility
        self._rounds = RoundSequence(*shared)
        self._maximizer = Maximizer(*shared) if config.rule else None
        self._budget = Budget(config, self._ledger, self._rounds) if config.budget_factor else None
        self._audit = Audit(config, self._ledger, self._rounds, self._budget)
        # The number of corrections when it was last warned that answers contradict the constants.
        self._warned = -1
        model = None if self._maximizer is None else self._maximizer.model
        audit = self._audit if config.proves else None
        every = self._feasibility, self._rounds, model, audit, self._budget
        self._observers = [observer for observer in every if observer is not None]

    @exclusive
    def __str__(self) -> str:
        void = f"; {REFUTED}" if self._bounds_are_refuted else ""
        return f"{super().__str__()}\n{self._rounds}{void}"

    @classmethod
    def as_published(
        cls,
        domain: Domain | Space,
        horizon: int,
        *,
        covar_module: Kernel,
        noise_var: float,
        confidence: Confidence,
        delay: DelayLaw,
        delta: float = DEFAULT_DELTA,
        seed: int = 0,
        maximize: bool = True,
    ) -> BPEDelayOptimizer:
        """Algorithm 1 as printed; arguments as in the constructor.

        Every ask maximises sigma, and Theorem 1's multiplier uses the number of points of the whole
        domain. The printed half-width is ``RKHSConfidence(..., tight=False)``; ``delay=NoDelay()``
        gives BPE (Li & Scarlett 2022). ``seed`` has no effect on a finite set. On a box, which the
        paper does not have, rounds and bounds are those of the constructor with ``exploit=None``.
        """
        needed = {"covar_module": covar_module, "noise_var": noise_var}
        needed |= {"delay": delay, "confidence": confidence}
        for name, value in needed.items():
            if value is None:
                raise InputError(f"Algorithm 1 needs {name}; None was given.")
        options: dict[str, Any] = {"delta": delta, "seed": seed, "maximize": maximize}
        optimizer = cls(domain, horizon, exploit=None, **needed, **options)
        optimizer._config.as_published = True
        return optimizer

    @classmethod
    def guaranteed(
        cls,
        domain: Domain | Space,
        horizon: int,
        *,
        covar_module: Kernel,
        noise_var: float,
        norm_bound: float,
        noise_std: float,
        delta: float = DEFAULT_DELTA,
        seed: int = 0,
        maximize: bool = True,
    ) -> BPEDelayOptimizer:
        """A regret bound proved before the run and, on a finite set, a certificate during it.

        On a finite set :class:`CertifyingUCB` chooses asks :class:`WithinBudget`: with probability
        1 - delta regret is at most 1.25 times BPE-Delay's own bound, plus what extra asks cost, and
        ``certificate``, which the rule keeps small, bounds it at all times. (For less regret under
        the same bound, construct with ``exploit=WithinBudget()``.) On a box a tenth of the asks are
        design points: regret is at most sqrt(10) times the worst-case form of BPE-Delay's bound,
        which has the maximal information gain in place of deviations, plus what extra asks cost.
        The maximiser is never eliminated. Delays may depend on points, and on values as long as no
        trial fails or is abandoned; ``guarantee`` lists the assumptions.

        The arguments are those of the constructor and two constants above 0: ``norm_bound``, C_k, a
        bound on the RKHS norm of f, and ``noise_std``, sigma, the sub-Gaussian scale of the noise,
        in units of the values.

        Raises:
            InputError: if an argument is missing or cannot be used.
            NotSupportedError: on a box, if no Lipschitz constant is known for the kernel.
        """
        given: dict[str, Any] = {"horizon": horizon, "covar_module": covar_module}
        given |= {"noise_var": noise_var}
        for name, value in given.items():
            if value is None or isinstance(value, Learned):
                raise InputError(f"A guarantee needs {name}, got {value!r}; pass {name}.")
        delta = validation.probability(delta, "delta")
        given |= {"delta": delta, "seed": seed, "maximize": maximize}
        if as_domain(domain).count is None:
            given["explore_fraction"] = 0.1
        else:
            given["exploit"] = WithinBudget(CertifyingUCB(norm_bound, noise_std, delta / 2.0))
        return cls(domain, confidence=RKHSConfidence(norm_bound, noise_std), **given)

    @property
    @exclusive
    def active_set(self) -> ActiveSet:
        """The points that may still be the maximiser, without infeasible ones."""
        return self._active_points()

    @property
    @exclusive
    def round(self) -> int | None:
        """The number of the open round; None before the first ask and after the last round."""
        return None if self._rounds.open is None else self._rounds.open.number

    @property
    @exclusive
    def rounds(self) -> list[RoundRecord]:
        """The closed rounds."""
        return list(self._rounds.records)

    @property
    @exclusive
    def stragglers(self) -> list[Straggler]:
        """The trials that keep the open round from closing, longest wait first.

        Empty while design points are still to be asked, and under a delay law. ``mark_abandoned``
        frees the round; where the regret bound needs the answer, the point is asked again first.
        """
        return self._rounds.stragglers(self._estimated_law())

    @exclusive
    def forecast(self) -> Forecast | None:
        """When the open round will close; None without one, or if a delay law fixes its length.

        Raises:
            NoAnswerError: if the round waits for answers, and there is none to estimate a law from.
        """
        return self._rounds.forecast(self._estimated_law())

    @property
    @exclusive
    def guarantee(self) -> Guarantee:
        return self._audit.guarantee()

    @property
    @exclusive
    def certificate(self) -> Certificate:
        return self._audit.certificate(super().certificate)

    @property
    def _bounds_are_refuted(self) -> bool:
        return self._audit.is_refuted

    def _choose(self) -> Suggestion:
        self._fit_if_due()
        rounds, budget = self._rounds, self._budget
        if rounds.open is None:
            self._happen("opened")
        elif rounds.is_due(rounds.open):
            self._happen("closed", data=rounds.close(rounds.open, last=False))
        current = rounds.open
        assert current is not None
        place: int | Tensor | None = None
        slot, again = len(current.slots), current.next_retry()
        if again is not None:
            place, slot = self._feasibility.place(current.slots[again].key), again
        elif budget is not None:
            place = self._play()
            assert not isinstance(place, Tensor)  # a budget needs a finite set
            if place is not None:
                if budget.affords(place, current.number, slot):
                    slot = NO_SLOT
                elif current.design_is_asked():
                    # While the round waits, the rule's point is asked even beyond the budget.
                    slot = WAITING_SLOT
                else:
                    place = None
        elif self._maximizer is not None:
            due = rounds.designed <= self._config.fraction * len(self._ledger)
            due = due and not current.design_is_asked()
            if not due or rounds.is_held(current):
                # If a trial of the next design point is running, the rule's point replaces it.
                place = self._play()
                slot = WAITING_SLOT if due and place is not None else NO_SLOT
        if place is None:  # a design point; it has no slot if it replaces a rule's point
            key = current.next_key()
            if key is None:  # no active point may be asked: go on with every feasible one
                self._happen("reset", data=rounds.reset(current))
                key = current.next_key()
            if key is None:
                raise self._feasibility.nothing_to_ask()
            place = self._feasibility.place(key)
        data: dict[str, Any] = {}
        if budget is not None:
            assert isinstance(place, int)
            # On top of the round's plan: again, while it waits, or beyond its first q_r points.
            extra = again is not None or slot == WAITING_SLOT or slot >= current.design_size
            data = {"price": budget.price(place), "extra": extra}
        return Suggestion(place, current.number, slot, data)

    def _play(self) -> int | Tensor | None:
        """Where the rule asks, outside the design; None if no active point may be asked."""
        assert self._maximizer is not None
        active: ActiveSet | None = self._rounds.active
        if self._budget is not None:
            active = self._active_points()
        elif self._rounds.is_outdated:
            active = None
        share, horizon = self._config.final_fraction, self._config.horizon
        final = horizon is not None and len(self._ledger) >= horizon - round(share * horizon)
        try:
            return self._maximizer.choose(active, plan_repeats=True, final=final)
        except EmptyDomainError:
            return None

    @exclusive
    def follow(self, events: Sequence[Event]) -> Trial:
        """Apply an ask that another process made, as far as it still fits the state here.

        Args:
            events: what that ask decided, then the ask itself, with the trial ids of this run.

        Raises:
            InputError: if the point is not in the domain.
            NotSupportedError: with :class:`WithinBudget`: prices depend on the time of an ask.
            StorageError: if the events do not fit what was asked before.
        """
        if self._budget is not None:
            raise NotSupportedError(
                "With WithinBudget every ask is priced by the bounds at its time, which other "
                "processes do not share; use save and load."
            )
        *before, asked = events
        for event in before:
            if event.kind == "fitted":
                news = event.data["answers"] > self._fitting.fitted_to
            else:
                news = self._rounds.is_news(event, finished=self._finished)
            if news:
                self._replay([event])
        X, rounds = sent([asked.data["x"]], self._domain.like), self._rounds
        if not bool(self._domain.contains(X)):
            raise InputError(f"x must be a point of the domain, got {asked.data['x']}.")
        while (missing := rounds.design_point_before(asked.data)) is not None:
            self._happen("reserved", data=missing)
        data = rounds.placed(asked.data, finished=self._finished)
        self._replay([replace(asked, trial=len(self._ledger), data=data)])
        return self._ledger[-1]

    def _apply_decided(self, event: Event) -> None:
        data, rounds, current = event.data, self._rounds, self._rounds.open
        if event.kind == "opened" and current is None and not self._finished:
            rounds.apply_opened()
        elif event.kind == "closed" and current is not None:
            rounds.apply_close(current, data)
            self._finished |= rounds.open is None
        elif event.kind == "reset" and current is not None:
            rounds.apply_reset(current, whole=validation.flag(data["whole"], "whole"))
        elif event.kind == "reserved" and current is not None:
            current.reserve(rounds.active.key_of(sent(data["x"], self._domain.like)))
        elif event.kind == "tested":
            self._audit.take_test(data)
        else:
            super()._apply_decided(event)
            if event.kind == "fitted" and current is not None:
                current.use(self._fitting.surrogate)

    def _decide_after_settled(self, trial: Trial) -> None:
        if (tested := self._audit.test()) is not None:
            self._happen("tested", data=tested)
        if len(self._ledger) == self.horizon and not any(
            self._rounds.of(running) for running in self._ledger.running()
        ):
            self._close_last()

    def _warn_doubtful(self, new: Sequence[Trial | Attached], known: int) -> None:
        super()._warn_doubtful(new, known)
        audit = self._audit
        if self._warned != audit.amended and audit.is_refuted:
            self._warned = audit.amended
            warn(CONTRADICTED, RefutedWarning)

    def _close_last(self) -> None:
        if (current := self._rounds.open) is not None:
            self._happen("closed", data=self._rounds.close(current, last=True))

    def _searched_points(self) -> ActiveSet:
        if not self._rounds.is_outdated:
            return self._active_points()
        return self._rounds.active.restored(self._feasibility.infeasible(), 0)

    def _active_points(self) -> ActiveSet:
        """The active set without infeasible points and without those a budget's bounds rule out."""
        active = self._rounds.feasible
        if self._budget is not None:
            assert isinstance(active, FiniteActiveSet)
            active = active.only(self._budget.active(active.rows))
        return active
