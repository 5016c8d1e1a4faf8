"""How often asks, tells, designs and fits wait for a device; ``waits.py`` prints the table."""

import pytest
from cases import scattered, se
from waits import MODES, Mode, played, points

import botorch_delay as bd
from botorch_delay.gp.hyperparameters import Objective

pytestmark = pytest.mark.cuda


@pytest.fixture
def gpu(device):
    if device is None:
        pytest.skip("only a simulated device counts")
    return device


@pytest.mark.parametrize("name", MODES)
def test_asks_and_tells_wait_for_the_device_a_few_times(name, gpu):
    mode, found = MODES[name], played(MODES[name], gpu, 10)
    assert found.typical <= mode.ask, found.table()
    assert max(found.asks) <= mode.most, found.asks
    assert max(found.tells) <= mode.tell, found.tells


def test_more_candidates_are_not_waited_for_more_often(gpu):
    kernel = se().cuda()

    def mode(n):
        return Mode(lambda: bd.AcquisitionOptimizer(points(n), covar_module=kernel, noise_var=1e-2))

    few, many = (played(mode(n), gpu, 8) for n in (300, 6_000))
    assert many.asks == few.asks


def test_a_design_is_waited_for_only_when_all_picks_are_made(gpu):
    kernel, X = se().cuda(), scattered(5_000).cuda()
    found = []
    for n in (5, 20):
        gpu.clear()
        bd.greedy_max_variance(kernel, X, 1e-3, n)
        found.append(gpu.count())
    assert found[0] == found[1] <= 9, gpu.waits


def test_a_fit_waits_less_often_than_its_objective_is_evaluated(gpu, monkeypatch):
    evaluate, evaluations = Objective.__call__, []

    def counted(self, theta):
        evaluations.append(1)
        return evaluate(self, theta)

    monkeypatch.setattr(Objective, "__call__", counted)
    opt = bd.AcquisitionOptimizer(points(200))
    X = scattered(20, 3)
    opt.attach(X.cuda(), -(X - 0.4).square().sum(dim=1).cuda())
    gpu.clear()
    opt.ask()
    assert 0 < gpu.count() <= len(evaluations), (gpu.waits, len(evaluations))
    evaluations.clear()
    gpu.clear()
    opt.ask()
    assert not evaluations
    assert gpu.count() <= 10
