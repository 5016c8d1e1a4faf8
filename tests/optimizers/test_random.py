import copy
import threading
from itertools import pairwise

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from cases import generator, line, scattered, se
from torch.quasirandom import SobolEngine

import botorch_delay as bd
from botorch_delay.exceptions import EmptyDomainError, NoAnswerError
from botorch_delay.history.point_status import Feasibility

BOUNDS = torch.tensor([[1e-5, 16.0, 0.0, -1.0], [1e-1, 256.0, 2.0, 1.0]], dtype=torch.double)


def box():
    return bd.BoxDomain(
        BOUNDS, discrete_dims={1: [16, 32, 256]}, cat_dims={2: [0, 1, 2]}, log_dims=[0]
    )


def test_on_a_set_nothing_repeats_before_all_were_asked():
    opt = bd.RandomOptimizer(bd.FiniteDomain(scattered(20)), seed=3)
    for number in range(1, 4):
        asked = opt.ask(20)
        assert sorted(t.index for t in asked) == list(range(20))
        assert {t.round for t in asked} == {number}
    orders = [[t.index for t in opt.trials[20 * i :][:20]] for i in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_seeds_give_different_orders():
    orders = [
        [t.index for t in bd.RandomOptimizer(bd.FiniteDomain(scattered(20)), seed=s).ask(20)]
        for s in (0, 1, 0)
    ]
    assert orders[0] == orders[2] != orders[1]


def test_an_abandoned_point_comes_again_in_the_same_pass():
    opt = bd.RandomOptimizer(bd.FiniteDomain(scattered(6)))
    first = opt.ask(4)
    opt.mark_abandoned(first[1])
    rest = opt.ask(3)
    assert first[1].index == rest[0].index
    assert len({t.index for t in opt.trials}) == 6
    assert {t.round for t in rest} == {1}


def test_a_late_answer_takes_the_point_out_of_the_pass_again():
    opt = bd.RandomOptimizer(bd.FiniteDomain(scattered(6)))
    first = opt.ask()
    opt.mark_abandoned(first)
    opt.tell(first, 1.0)
    assert sorted(t.index for t in opt.ask(5)) == sorted(set(range(6)) - {first.index})


def test_points_that_keep_failing_are_left_out():
    opt = bd.RandomOptimizer(bd.FiniteDomain(scattered(3)))
    for _ in range(9):
        opt.mark_failed(opt.ask(), "crashed")
    with pytest.raises(EmptyDomainError, match="None of the 3 points"):
        opt.ask()


def test_on_a_box_the_points_are_scrambled_sobol():
    opt = bd.RandomOptimizer(bd.BoxDomain(BOUNDS[:, 2:]), seed=7)
    X = torch.stack([t.x for t in opt.ask(10)])
    unit = SobolEngine(2, scramble=True, seed=7).draw(10, dtype=torch.double)
    low, high = BOUNDS[:, 2:]
    torch.testing.assert_close(X, low + unit * (high - low))
    assert all(t.index is None for t in opt.trials)


def test_grids_categories_and_logarithms_are_respected():
    domain = box()
    opt = bd.RandomOptimizer(domain, seed=1)
    X = torch.stack([t.x for t in opt.ask(240)])
    assert bool(domain.contains(X).all())
    for column, values in ((1, [16, 32, 256]), (2, [0, 1, 2])):
        shares = [(X[:, column] == value).double().mean().item() for value in values]
        assert all(abs(share - 1 / 3) < 0.05 for share in shares)
    assert abs((X[:, 0] < 1e-3).double().mean().item() - 0.5) < 0.05
    assert not domain.contains(torch.tensor([[1e-3, 64.0, 0.0, 0.0]], dtype=torch.double))


def test_without_noise_recommendations_on_a_box_are_answered_points():
    opt = bd.RandomOptimizer(box(), maximize=False)
    with pytest.raises(NoAnswerError):
        opt.recommend()
    for trial in opt.ask(12):
        opt.tell(trial, trial.x[3].item() ** 2 + trial.x[2].item())
    opt.attach(BOUNDS[1] + 1.0, -5.0)  # outside the domain: counts, but cannot be recommended
    best = opt.recommend()
    assert best.index is None
    assert any(torch.equal(best.x, t.x) for t in opt.trials)
    assert best.lower <= best.mean <= best.upper


def test_a_given_kernel_is_used_to_recommend():
    opt = bd.RandomOptimizer(
        bd.FiniteDomain(scattered(8)), horizon=4, covar_module=se(), noise_var=1e-2
    )
    for trial in opt.ask(4):
        opt.tell(trial, trial.x.sum().item())
    assert opt.recommend().index == max(opt.trials, key=lambda t: t.value).index
    with pytest.raises(bd.exceptions.HorizonError):
        opt.ask()
    assert not opt.guarantee.holds


def test_float32_boxes():
    with pytest.warns(InputDataWarning, match="Double"):
        domain = bd.BoxDomain(BOUNDS.float(), log_dims=[0])
    X = domain.from_unit(torch.rand(500, 4, generator=generator(0)))
    assert X.dtype == torch.float32
    assert bool(domain.contains(X).all())


def test_exact_evaluations_of_a_box_of_listed_values_are_not_repeated():
    space = bd.Space(a=bd.Int(1, 3), b=bd.Choice(["x", "y"]))
    opt = bd.RandomOptimizer(space, exact=True)
    asked = [tuple(opt.ask().params.values()) for _ in range(6)]
    assert len(set(asked)) == 6
    with pytest.raises(EmptyDomainError, match="each of the 6 points has one"):
        opt.ask()
    other = bd.AcquisitionOptimizer(space, exact=True)
    for k in range(6):
        other.tell(other.ask(), float(k))
    with pytest.raises(EmptyDomainError, match="each of the 6 points has one"):
        other.ask()


def test_an_ask_on_a_box_takes_no_longer_for_all_that_was_asked(monkeypatch):
    opt = bd.RandomOptimizer(bd.Space(a=bd.Int(1, 9), b=bd.Int(1, 9)), exact=True)
    looked = []
    monkeypatch.setattr(Feasibility, "status", lambda tries, key: looked.append(key))
    monkeypatch.setattr(Feasibility, "unavailable", lambda tries: 1 / 0)
    opt.ask(40)
    assert len(looked) < 40


def test_settings_that_keep_failing_are_left_out():
    opt = bd.RandomOptimizer(bd.Space(a=bd.Int(1, 2), b=bd.Choice(["x", "y"])))
    for _ in range(12):
        opt.mark_failed(opt.ask(), "crashed")
    with pytest.raises(EmptyDomainError, match="None of the 4 points"):
        opt.ask()


def test_a_copy_of_a_subclass_is_made_as_it_says():
    class Logged(bd.RandomOptimizer):
        def __init__(self, domain):
            super().__init__(domain)
            self.lock = threading.Lock()  # a lock cannot be copied

        def __getstate__(self):
            return {name: part for name, part in self.__dict__.items() if name != "lock"}

    opt = Logged(bd.FiniteDomain(line(9)))
    opt.ask()
    assert copy.deepcopy(opt).ask().index == opt.ask().index


@pytest.mark.parametrize("space", ["box", "steps", "constrained"])
def test_on_a_box_every_point_is_asked_before_none_is_left(space):
    ends = torch.tensor([[0.0] * 3, [11.0] * 3], dtype=torch.double)
    lists = {dim: range(12) for dim in range(3)}
    at_most = [(torch.arange(3), -torch.ones(3, dtype=torch.double), -6.0)]
    domain, count = {
        "box": (bd.BoxDomain(ends, lists), 12**3),
        "steps": (bd.Space(a=bd.Int(0, 2999)), 3000),
        "constrained": (bd.BoxDomain(ends, lists, constraints=at_most), 84),
    }[space]
    opt = bd.RandomOptimizer(domain, exact=True)
    for trial in range(count):
        opt.tell(opt.ask(), float(trial))
    assert len({tuple(trial.x.tolist()) for trial in opt.trials}) == count
    with pytest.raises(EmptyDomainError, match="No point is left"):
        opt.ask()


def test_points_that_fail_are_skipped_once():
    ends = torch.tensor([[0.0, 0.0], [3.0, 3.0]], dtype=torch.double)
    opt = bd.RandomOptimizer(bd.BoxDomain(ends, {0: range(4), 1: range(4)}))
    for _ in range(60):
        trial = opt.ask()
        if trial.x[0] < 2:
            opt.mark_failed(trial)
        else:
            opt.tell(trial, 0.0)
    later = [tuple(trial.x.tolist()) for trial in opt.trials[-20:]]
    assert all(one != other for one, other in pairwise(later))
