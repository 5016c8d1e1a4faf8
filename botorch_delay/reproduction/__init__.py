"""The paper's experiments (section 6) by one command: data, figures, and what holds."""

from botorch_delay.reproduction.cells import Setting
from botorch_delay.reproduction.run import Reproduction, describe, reproduce

__all__ = ["Reproduction", "Setting", "describe", "reproduce"]
