"""What an integration says where its engine is not installed."""

import importlib
import sys

import pytest

from botorch_delay.exceptions import MissingExtraError


@pytest.mark.parametrize("module", ["ax", "ax_space"])
def test_ax(monkeypatch, module):
    for name in [name for name in sys.modules if name.split(".")[0] == "ax"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ax", None)
    for name in ("ax", "ax_space"):
        monkeypatch.delitem(sys.modules, f"botorch_delay.integrations.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'botorch-delay\[ax\]'"):
        importlib.import_module(f"botorch_delay.integrations.{module}")
