"""Optuna's own suite for samplers of third parties."""

from functools import partial

import pytest
from cases import se
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from botorch_delay.integrations.optuna import DelaySampler


class TestDelaySampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return partial(DelaySampler, covar_module=se(), noise_var=1e-2)  # fits cost most
