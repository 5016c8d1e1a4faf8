import importlib
import sys

import pytest

from botorch_delay.exceptions import MissingExtraError


@pytest.mark.parametrize("engine", ["ax", "optuna", "ray"])
def test_an_engine_that_is_not_installed_is_named(monkeypatch, engine):
    name = f"botorch_delay.integrations.{engine}"
    for module in (name, f"{name}_space"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for module in [engine, *(m for m in sys.modules if m.startswith(f"{engine}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'botorch-delay\[{engine}\]'"):
        importlib.import_module(name)
