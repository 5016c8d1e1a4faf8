"""Optuna's own suite for samplers of third parties."""

import pytest
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from botorch_delay.integrations.optuna import DelaySampler

pytestmark = pytest.mark.usefixtures("small_searches")


class TestDelaySampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return DelaySampler
