"""What all engines share: settings of an optimizer, and an optimizer in step with trials."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import (
    InputError,
    InputTypeError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.gp.surrogate import Learned
from botorch_delay.history.events import truncated
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.exploit import DEFAULT_EXPLOIT, WithinBudget, as_exploit
from botorch_delay.optimizers.replica import PastTrial, Replica

logger = logging.getLogger(__name__)

STOPPED_EARLY = (
    "trials were stopped early because of their values, which bounds from the others do not "
    "account for"
)
_NOT_OPTIONS = {"domain", "horizon", "seed", "maximize"}  # engines set these themselves


_ANY = torch.tensor([[0.0], [1.0]], dtype=torch.double)  # stand-in points, to check options


class Settings:
    """How an engine makes a :class:`botorch_delay.BPEDelayOptimizer`, whatever the space.

    A rule does not repeat pending points unless an ``Exploit`` is given, as users of an engine take
    equal trials for a mistake. Without a horizon rounds double in size, unless ``rounds`` is given.
    A regret budget is refused, as it depends on when answers came: engines do not report that.
    """

    def __init__(
        self,
        horizon: int | None,
        seed: int,
        options: Mapping[str, Any],
        engine: type[Any] = BPEDelayOptimizer,  # the class that was given the options
    ) -> None:
        parameters = inspect.signature(BPEDelayOptimizer).parameters
        known = sorted(parameters.keys() - _NOT_OPTIONS)
        if unknown := [name for name in options if name not in known]:
            own = [name for name in inspect.signature(engine).parameters if name != "options"]
            meant = get_close_matches(unknown[0], [*own, *known], n=1)
            hint = "".join(f" Did you mean {name}?" for name in meant)
            if unknown[0] == "maximize":
                hint = " The study's own direction, objective or mode says which values are good."
            raise InputTypeError(
                f"{engine.__name__} has no option {unknown[0]!r}.{hint} It takes {', '.join(own)}, "
                f"and options of BPEDelayOptimizer: {', '.join(known)}."
            )
        exploit = as_exploit(options.get("exploit", DEFAULT_EXPLOIT))
        if isinstance(exploit, WithinBudget):
            raise NotSupportedError("WithinBudget is for ask() and tell() only; leave it out here.")
        if exploit is not None and exploit is not options.get("exploit"):
            exploit = replace(exploit, repeat_pending=False)
        self.options = {**options, "exploit": exploit}
        kernel = options.get("covar_module")
        if isinstance(kernel, Kernel):  # its columns are not known yet
            kernel = RBFKernel().double()
        elif isinstance(kernel, Learned):
            kernel = None
        made = self.options | {"covar_module": kernel}
        checked = BPEDelayOptimizer(FiniteDomain(_ANY), horizon, seed=seed, **made)
        self.horizon, self.seed = checked.horizon, validation.seed(seed)

    def make(self, domain: Domain, maximize: bool) -> BPEDelayOptimizer:
        """An optimizer before any ask."""
        return BPEDelayOptimizer(
            domain, self.horizon, seed=self.seed, maximize=maximize, **self.options
        )


class EngineRun:
    """An optimizer that follows the trials of one search space in an engine's study.

    The engine keeps the record of each ask with its trial. A trial whose record is of another
    study, space, or settings counts as a result obtained elsewhere.

    Attributes:
        key: identifies runs with this name, space, settings and direction.
        ended: numbers of trials that will not change any more; the engine may add some.
        stopped_early: whether the engine ended any trial before its answer; for the engine to set.
        remedy: what users can do if trials run for other search spaces.
    """

    remedy: ClassVar[str] = "give every worker the same arguments"

    def __init__(self, name: str, space: Space, settings: Settings, maximize: bool) -> None:
        self.domain = space.domain
        self.replica = Replica(lambda: settings.make(self.domain, maximize))
        self.ended: set[int] = set()
        self.stopped_early = False
        config = self.optimizer.state_dict()["config"]
        told = [name, self.domain.fingerprint(), json.dumps(config)]
        self.key = hashlib.blake2b("\n".join(told).encode(), digest_size=12).hexdigest()
        self._warned = False

    @property
    def optimizer(self) -> BPEDelayOptimizer:
        """The optimizer as of the last ``take_in``, for reading."""
        return self.replica.optimizer

    def take_in(self, trials: Iterable[PastTrial | None]) -> None:
        """As :meth:`Replica.sync`, skipping None; an error leaves ``ended`` as it was before."""
        ended = set(self.ended)
        try:
            self.replica.sync(past for past in trials if past is not None)
        except BaseException:
            self.ended = ended
            raise

    @property
    def guarantee(self) -> Guarantee:
        """What is claimed for the study: nothing if trials were stopped early."""
        claimed = self.optimizer.guarantee
        if not self.stopped_early:
            return claimed
        return replace(claimed, holds=False, missing=(*claimed.missing, STOPPED_EARLY))

    def recommend(self, *, tried: bool = False) -> dict[str, Any]:
        """The recommended parameters, from all results."""
        return self.params(self.optimizer.recommend(tried=tried).x)

    def params(self, x: Tensor) -> dict[str, Any]:
        """The parameters at a point (``d``), in the form that the engine uses."""
        return self.domain.params(x)

    def ask(self, number: int, **options: Any) -> dict[str, Any]:
        """The record of an ask, JSON-ready, for the engine to keep; as :meth:`Replica.ask`."""
        asked = self.replica.ask(number, **options)
        x = asked.trial.x.tolist()
        return {"run": self.key, "number": number, "x": x, "ask": asked.record}

    def point(self, record: Mapping[str, Any]) -> Tensor:
        """The point of a record, ``d``."""
        return self.domain.like.new_tensor(record["x"])

    def record_of(self, record: Any, *, running: bool) -> Mapping[str, Any] | None:
        """The record if it is of this run, else None; warns once of a running trial of another run.

        StorageError if it is malformed; the part in "ask" is checked later, by the replica.
        """
        if not isinstance(record, Mapping):
            return None
        if record.get("run") == self.key:
            try:
                validation.whole(record["number"], "number", 0)
                if "ask" not in record or self.point(record).shape != (self.domain.dim,):
                    raise ValueError(f"expected x, of {self.domain.dim} numbers, and ask")
            except (LookupError, TypeError, ValueError) as error:
                raise StorageError(
                    f"The record of trial {record.get('number')} is malformed: {truncated(error)}"
                ) from error
            return record
        if running and not self._warned:
            self._warned = True
            logger.warning(
                "trial %s runs for another search space or with other arguments, so its point "
                "does not count as pending here; %s",
                *(record.get("number"), self.remedy),
            )
        return None

    def past_ask(
        self, record: Mapping[str, Any], state: TrialState, value: float | None = None, **more: Any
    ) -> PastTrial:
        """A trial that was asked here; ``more`` are other fields of it, as for :meth:`with_end`."""
        point = self.point(record)
        running = PastTrial(record["number"], point, TrialState.RUNNING, record=record["ask"])
        return self.with_end(running, state, value, **more)

    def with_end(
        self, past: PastTrial, state: TrialState, value: float | None = None, **more: Any
    ) -> PastTrial:
        """A trial with its new state and value; it counts as failed if the value cannot be used."""
        if state is TrialState.COMPLETED:
            try:
                value = validation.answer(value, self.domain.like, hint="")
            except InputError as error:
                state, value, more["reason"] = TrialState.FAILED, None, str(error)
        if state in (TrialState.COMPLETED, TrialState.FAILED):
            self.ended.add(past.number)
        return replace(past, state=state, value=value, **more)

    def past_result(
        self,
        number: int,
        params: Mapping[str, Any],
        value: float | None,
        noise_var: float | None = None,
    ) -> PastTrial | None:
        """A result obtained elsewhere; None, with a warning, if it cannot be used."""
        self.ended.add(number)
        params = {name: params[name] for name in self.domain.columns.parameters if name in params}
        try:
            value = validation.answer(value, self.domain.like, hint="")
            x = self.domain.point(params, outside=True)
        except InputError as error:
            logger.warning("the result of trial %s is not used: %s", number, error)
            return None
        return PastTrial(number, x, TrialState.COMPLETED, value, noise_var=noise_var)


class Readable(ABC):
    """What users read from an engine that has one run, always up to date."""

    @abstractmethod
    def _synced(self) -> EngineRun: ...

    @property
    def optimizer(self) -> BPEDelayOptimizer:
        """The optimizer underneath, for reading: its trials, rounds, bounds."""
        return self._synced().optimizer

    @property
    def guarantee(self) -> Guarantee:
        """What is claimed for this run, and why not more."""
        return self._synced().guarantee

    def recommend(self, *, tried: bool = False) -> dict[str, Any]:
        """The recommended parameters, see :meth:`BPEDelayOptimizer.recommend`.

        Args:
            tried: whether to recommend only parameters of trials with a result.

        Raises:
            NoAnswerError: before any answer.
        """
        return self._synced().recommend(tried=tried)
