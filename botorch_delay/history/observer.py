"""What is told of each change of the trials of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botorch_delay.history.trials import Attached, Trial, TrialState


class TrialObserver:
    """Part of an optimizer's state: it takes in events after the ledger has them."""

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        """A trial was asked, with the data of the event."""

    def settled(self, trial: Trial) -> None:
        """A trial was answered, failed or abandoned."""

    def corrected(self, trial: Trial, before: TrialState) -> None:
        """A trial was given another value, or another end, than it had before."""

    def attached(self, result: Attached) -> None:
        """A result came from elsewhere."""

    def detached(self, result: Attached) -> None:
        """A result from elsewhere was taken back."""

    def extended(self, before: int) -> None:
        """More asks are planned than ``before``."""
