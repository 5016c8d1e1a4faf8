"""Learned models: when a point is asked again, and where lists of values are searched."""

from itertools import pairwise

import pytest
import torch
from cases import generator, scattered
from gpytorch.kernels import RBFKernel
from scale import some

import botorch_delay as bd
from botorch_delay.design.ascent import (
    LEADERS,
    LOCAL_REACH,
    nearby,
    redraw,
    with_other_options,
)
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.point_status import REPEATS
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers.maximizer import ANSWERS_PER_REPEAT, AROUND, Maximizer
from botorch_delay.optimizers.recommendation import Judgement
from botorch_delay.optimizers.rules import UCB, Rule

SPACE = bd.Space({"kind": bd.Choice(list("abcd")), "n": bd.Int(0, 30), "m": bd.Int(1, 12)})
POINTS = scattered(60)


def loss(params):
    return "bcad".index(params["kind"]) + 0.01 * (params["n"] - 11) ** 2 + abs(params["m"] - 7)


def played(domain, value, asks, **options):
    """Ask and tell; each answer comes after three further asks."""
    opt = bd.BPEDelayOptimizer(domain, asks, maximize=False, **options)
    out = []
    for _ in range(asks):
        out.append(opt.ask())
        if len(out) == 4:
            trial = out.pop(0)
            opt.tell(trial, value(trial))
    return opt


def repeats(opt):
    return len(opt.trials) - len({tuple(trial.x.tolist()) for trial in opt.trials})


@pytest.mark.usefixtures("small_searches")
def test_a_space_of_lists_is_searched_on_where_answers_have_no_noise():
    opt = played(SPACE, lambda trial: loss(trial.params), 36)
    assert REPEATS <= repeats(opt) <= REPEATS + 2
    assert loss(opt.recommend().params) == 0.0


def test_so_is_a_list_of_points():
    opt = played(bd.FiniteDomain(POINTS), lambda trial: float(trial.x.sum()), 40)
    assert repeats(opt) <= REPEATS + 2


@pytest.mark.usefixtures("small_searches")
def test_with_noise_the_best_is_asked_again():
    noise = 0.3 * torch.randn(34, generator=generator(0), dtype=torch.double)
    noisy = played(SPACE, lambda trial: loss(trial.params) + float(noise[trial.id]), 34)
    assert repeats(noisy) > 2 * REPEATS


def noisy_list(asks):
    points = scattered(200)
    noise = 0.3 * torch.randn(asks, generator=generator(3), dtype=torch.double)
    values = (8.0 * points).sin().prod(dim=1)
    rule_alone = bd.Exploit(UCB(4.0), final_fraction=0.0)
    domain = bd.FiniteDomain(points)
    return played(domain, lambda t: float(values[t.index] + noise[t.id]), asks, exploit=rule_alone)


def noisy_space(asks):
    noise = 0.3 * torch.randn(asks, generator=generator(3), dtype=torch.double)
    rule = bd.Exploit(UCB(4.0), final_fraction=0.0)
    return played(SPACE, lambda t: 0.2 * loss(t.params) + float(noise[t.id]), asks, exploit=rule)


@pytest.mark.parametrize("study", some([noisy_list, noisy_space], 1))
def test_where_there_is_noise_new_points_come_first(study, monkeypatch):
    opt, never = study(60), torch.tensor(torch.inf)
    monkeypatch.setattr(Maximizer, "_best_tried_mean", lambda chooser, tried: never)
    plain = study(60)
    assert opt._feasibility.repeats_differ
    assert repeats(opt) < 0.8 * repeats(plain)


@pytest.mark.usefixtures("small_searches")
def test_where_every_column_has_a_list_only_answered_points_are_recommended(monkeypatch):
    opt = noisy_space(24)
    assert not opt._fitting.upcoming().is_exact
    monkeypatch.setattr(Judgement, "safest_nearby", lambda *arguments: 1 / 0)
    assert opt.recommend().count > 0


class Fixed(Rule):
    scores_are_values = True

    def __init__(self, scores):
        self.scores = scores

    def score(self, model):
        return self.scores

    def function(self, model, starts):
        raise NotImplementedError


def test_a_tried_point_is_asked_again_where_no_new_one_can_be_better():
    opt = noisy_list(60)
    chooser = opt._maximizer
    chooser.update()
    tried = opt._feasibility.tried()
    new = next(row for row in range(200) if row not in tried)
    chooser.rule = Fixed(chooser.model.mean + 0.0)
    scores = chooser.rule.scores
    best = tried[int(scores[tried].argmax())]
    assert chooser.choose(plan_repeats=True) == best
    scores[new] = scores[best]
    assert chooser.choose(plan_repeats=True) == new
    scores[tried[0]] += 9.0
    assert chooser.choose(plan_repeats=True) == new
    assert chooser.choose() == tried[0]
    scores[new] = -torch.inf  # the new point may not be asked
    assert chooser.choose(plan_repeats=True) == tried[0]
    scores[[row for row in range(200) if row not in tried]] = -torch.inf
    assert chooser.choose(plan_repeats=True) == tried[0]


def test_index_methods_and_given_kernels_repeat_points_as_published(monkeypatch):
    monkeypatch.setattr(Maximizer, "_best_tried_mean", lambda chooser, tried: 1 / 0)
    domain = bd.FiniteDomain(POINTS)
    given = bd.BPEDelayOptimizer(domain, 20, covar_module=RBFKernel().double(), noise_var=0.1)
    for opt in (bd.AcquisitionOptimizer(domain, rule=UCB(2.0)), given):
        for trial in opt.ask(6):
            opt.tell(trial, float(trial.x.sum()))
        opt.ask(2)


def test_where_all_points_are_known_they_are_asked_again():
    opt = played(bd.FiniteDomain(POINTS[:5]), lambda trial: float(trial.x.sum()), 20)
    assert repeats(opt) == 15


def test_now_and_then_a_repeat_shows_whether_they_still_agree():
    opt = bd.RandomOptimizer(bd.FiniteDomain(POINTS))
    opt.attach(POINTS[:1].expand(REPEATS + 1, -1), torch.zeros(REPEATS + 1).double())
    agree = opt._feasibility.repeats_agree
    assert agree()
    opt.attach(POINTS[1:], torch.zeros(59).double())
    assert not agree()
    opt.attach(POINTS[5], 0.0)
    assert agree()


def test_a_late_answer_counts_once():
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS[:1]), rule=bd.UCB(1e-9))
    late = opt.ask()
    opt.mark_abandoned(late)
    opt.tell(late, 1.0)
    running = opt.ask(REPEATS + 1)
    assert not opt._feasibility.repeats_agree()
    opt.tell(running[0], 1.0)
    assert opt._feasibility.repeats_agree()


def test_repeats_agree_once_there_are_some_without_another_value():
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS[:2]), rule=bd.UCB(1e-9))
    agree = opt._feasibility.repeats_agree
    trials = opt.ask(2)
    opt.attach(trials[0].x, 1.0)
    assert not agree()
    extra = opt.ask(REPEATS - 1)
    assert not agree()  # nothing has been answered twice yet
    for trial in trials + extra:
        opt.tell(trial, 1.0)
    assert agree()
    opt.correct(trials[0], 2.0)
    assert not agree()
    opt.correct(trials[0], 1.0)
    opt.attach(trials[1].x, 3.0)
    assert not agree()
    opt.detach(opt.attached[-1])
    assert agree()
    opt.mark_failed(opt.ask())
    assert agree()
    late = opt.ask()
    opt.mark_abandoned(late)
    opt.tell(late, 1.0)
    opt.correct(trials[1], None)
    opt.ask()
    counts = [0, 0]
    for trial in opt.trials:
        counts[trial.index] += trial.state in (TrialState.RUNNING, TrialState.COMPLETED)
    for result in opt.attached:
        counts[result.index] += 1
    assert opt._feasibility._tries == {row: tries for row, tries in enumerate(counts) if tries}
    assert opt._feasibility._tries.total() == sum(counts)


def levy(x):
    w = 1 + (20 * x - 11) / 4
    first, rest, last = w[0], w[:-1], w[-1]
    middle = ((rest - 1) ** 2 * (1 + 10 * torch.sin(torch.pi * rest + 1) ** 2)).sum()
    ends = torch.sin(torch.pi * first) ** 2
    return float(ends + middle + (last - 1) ** 2 * (1 + torch.sin(2 * torch.pi * last) ** 2))


def cube(columns):
    return bd.BoxDomain(torch.tensor([[0.0] * columns, [1.0] * columns], dtype=torch.double))


@pytest.mark.usefixtures("small_searches")
def test_on_a_box_a_few_repeats_of_the_best_point_show_that_there_is_no_noise():
    opt = played(cube(2), lambda trial: float((trial.x - 0.3).square().sum()), 50)
    asked = [tuple(trial.x.tolist()) for trial in opt.trials]
    again = [i for i, x in enumerate(asked) if x in asked[:i]]
    assert len(again) == REPEATS
    assert all(later - earlier >= ANSWERS_PER_REPEAT for earlier, later in pairwise(again))
    for number in again:
        known = [trial.value for trial in opt.trials[: number - 3]]
        assert opt.trials[number].value <= sorted(known)[2] + 1e-6
    opt.attach(opt.trials[again[0]].x, 5.0)  # two different answers: there is noise
    assert opt._feasibility.repeats_differ


def test_on_a_box_a_repeat_shows_noise_that_was_taken_for_the_function():
    noise = 15.0 * torch.randn(64, generator=generator(2), dtype=torch.double)
    by_rule = bd.Exploit(final_fraction=0.0)
    opt = played(cube(4), lambda trial: levy(trial.x) + float(noise[trial.id]), 64, exploit=by_rule)
    assert opt._feasibility.repeats_differ
    assert repeats(opt) == REPEATS  # noise differs from roughness by how far repeats are apart
    before = [trial for trial in opt.trials if trial.id < ANSWERS_PER_REPEAT]
    alone = bd.BPEDelayOptimizer(cube(4), 64, maximize=False)
    for trial in before:
        alone.attach(trial.x, trial.value)
    assert alone._fitting.upcoming().is_exact
    assert not opt._fitting.upcoming().is_exact


@pytest.mark.parametrize(
    "domain", [cube(4), bd.FiniteDomain(scattered(200, 4))], ids=["box", "set"]
)
def test_the_best_point_is_repeated_after_a_dozen_answers_that_seem_exact(domain):
    X = scattered(200, 4)[-ANSWERS_PER_REPEAT:]
    y = torch.tensor([levy(x) for x in X], dtype=torch.double)
    for count in (ANSWERS_PER_REPEAT - 1, ANSWERS_PER_REPEAT):
        opt = bd.BPEDelayOptimizer(domain, 60, maximize=False)
        opt.attach(X[:count], y[:count])
        assert opt._fitting.upcoming().is_exact
        opt.ask()  # a design point
        best, trial = X[y[:count].argmin()], opt.ask()
        assert torch.equal(trial.x, best) == (count == ANSWERS_PER_REPEAT)
        assert not torch.equal(opt.ask().x, best)  # while it is pending


def rough(x):
    """A bowl with steps in it, which look like noise."""
    return float((x - 0.3).square().sum() + 0.05 * torch.sin(1000.0 * x).sum())


@pytest.mark.usefixtures("small_searches")
@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
def test_where_repeats_agree_the_best_answer_is_recommended_as_it_is(monkeypatch):
    opt = played(cube(3), lambda trial: rough(trial.x), 45)
    assert repeats(opt) == REPEATS
    monkeypatch.setattr(Surrogate, "is_exact", False)  # whatever the fit says
    best = min((trial for trial in opt.trials if trial.value is not None), key=lambda t: t.value)
    found = opt.recommend()
    assert torch.equal(found.x, best.x)
    assert found.mean == found.lower == found.upper == best.value
    assert "answer itself" in found.interval
    opt.attach(opt.trials[0].x, 5.0)  # a different answer: there is noise
    found = opt.recommend()
    assert found.lower < found.mean < found.upper
    assert "heuristic" in found.interval


@pytest.mark.usefixtures("small_searches")
def test_before_repeats_agree_the_interval_says_that_noise_was_not_ruled_out():
    opt = played(cube(2), lambda trial: float((trial.x - 0.3).square().sum()), 10)
    assert opt._fitting.upcoming().is_exact
    assert "too few repeats" in opt.recommend().interval
    exact = played(cube(2), lambda trial: float((trial.x - 0.3).square().sum()), 10, exact=True)
    assert "repeats" not in exact.recommend().interval


def test_repeats_of_a_value_that_other_points_share_say_nothing_of_noise():
    # An accuracy from few samples is 1 everywhere near the best.
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS[:4]), 20)
    for _ in range(14):
        trial = opt.ask()
        opt.tell(trial, min(1.0, 0.5 + float(trial.index)))
    assert repeats(opt) >= REPEATS
    assert len({t.index for t in opt.trials if t.value == 1.0}) > 1
    assert not opt._feasibility.answers_agree()
    assert "answer itself" not in opt.recommend().interval


def test_answers_whose_noise_is_known_are_not_taken_for_exact():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS[:4]), 20)
    for _ in range(12):
        trial = opt.ask()
        opt.tell(trial, float(trial.x.sum()), noise_var=0.1)  # equal by chance
    assert repeats(opt) >= REPEATS
    assert "answer itself" not in opt.recommend().interval


def test_answers_from_elsewhere_do_not_show_that_evaluations_are_exact():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 20)
    for _ in range(2):
        opt.attach(POINTS[:4], POINTS[:4].sum(dim=1))  # the same results twice
    assert "heuristic" in opt.recommend().interval


@pytest.mark.usefixtures("small_searches")
def test_other_optimizers_and_exact_ones_repeat_nothing_for_that():
    for opt in (
        bd.AcquisitionOptimizer(cube(2), horizon=24, rule=bd.UCB(2.0), maximize=False),
        bd.BPEDelayOptimizer(cube(2), 24, exact=True, maximize=False),
    ):
        for _ in range(24):
            trial = opt.ask()
            opt.tell(trial, float((trial.x - 0.3).square().sum()))
        assert repeats(opt) == 0


def test_the_best_answer_is_not_trusted_where_answers_of_a_point_differ(monkeypatch):
    X = scattered(12, 4)
    y = torch.tensor([levy(x) for x in X], dtype=torch.double)
    opt = bd.BPEDelayOptimizer(cube(4), 60, maximize=False)
    opt.attach(X, y)
    monkeypatch.setattr(Surrogate, "is_exact", True)  # whatever the fit says
    best = int(y.argmin())
    assert torch.equal(opt.recommend().x, X[best])
    opt.attach(X[best], float(y.max()))
    upper = opt.predict(X).upper
    assert int(upper.argmin()) != best
    assert torch.equal(opt.recommend().x, X[upper.argmin()])


BOX = SPACE.domain


def test_redrawn_points_differ_in_one_column():
    X = BOX.from_unit(scattered(4000, 3))
    drawn = redraw(BOX, X, generator(1))
    assert bool(BOX.contains(drawn).all())
    changed = drawn != X
    assert int(changed.sum(dim=1).max()) == 1
    kinds = drawn[:, 0][changed[:, 0]].unique(return_counts=True)[1]
    assert len(kinds) == 4
    assert int(kinds.min()) > 200  # of about 1300 changed kinds
    away = (drawn - X).abs()[:, 1][changed[:, 1]]
    assert {1.0, 2.0, 20.0} <= set(away.tolist())
    assert 0.1 < float((away == 1.0).double().mean()) < 0.4  # neighbours are not rare


@pytest.mark.usefixtures("small_searches")
def test_climbs_on_lists_begin_beside_the_best_answers():
    opt = played(SPACE, lambda trial: loss(trial.params), 20)
    best = torch.stack(opt._maximizer.model.answers.best(LEADERS))
    near = nearby(opt.domain, best, AROUND, LOCAL_REACH, generator(0))
    changed = (near.unsqueeze(1) != best).sum(dim=2).amin(dim=1)
    assert {0, 1} == set(changed.tolist())


OPTIONS = "abcdefgh"
MANY_OPTIONS = bd.Space(
    {name: bd.Float(0, 1) for name in "vwxyz"} | {"kind": bd.Choice(list(OPTIONS))}
)


def loss_of_option(params):
    best = zip("vwxyz", (0.63, 0.27, 0.4, 0.8, 0.1), strict=True)
    offset = 0.07 * "hbcadefg".index(params["kind"])
    return offset + sum(4 * (params[name] - at) ** 2 for name, at in best)


@pytest.mark.parametrize("seed", some([4, 5, 6], 1))
def test_no_other_option_at_the_best_settings_has_a_larger_bound_than_what_is_asked(seed):
    opt = bd.BPEDelayOptimizer(MANY_OPTIONS, 28, maximize=False, seed=seed)
    out, compared = [], 0
    while len(opt.trials) < opt.horizon:
        out.append(opt.ask())
        if len(out) < 3:
            continue
        opt.tell(out[0], loss_of_option(out.pop(0).params))
        asked = opt._maximizer.choose()
        model = opt._maximizer.model
        if model.is_blind:
            continue
        others = torch.stack(model.answers.best(LEADERS)).repeat(len(OPTIONS), 1)
        others[:, -1] = torch.arange(len(others)) // (len(others) // len(OPTIONS))
        X = torch.cat([asked.unsqueeze(0), others])
        bound = model.mean_at(X) + 2.0**0.5 * model.deviation_at(X)
        compared += 1
        assert bool((bound[0] >= bound[1:] - 0.01).all())
    assert compared > 20


def test_other_options_are_beside_the_points_and_allowed():
    low = bd.Choice(["p", "q"])
    space = bd.Space(
        {"x": bd.Float(0, 1), "n": bd.Int(1, 9), "kind": bd.Choice(list("abcd")), "other": low},
        feasible=lambda params: params["kind"] != "d",
    )
    box = space.domain
    X = box.from_unit(scattered(400, 4))
    X = X[box.holds(X)]
    found = with_other_options(box, X, generator(1))
    assert torch.equal(found[: len(X)], X)
    assert len(X) < len(found) < 2 * len(X)  # without those that are infeasible
    assert bool(box.holds(found).all())
    changed = (found[len(X) :].unsqueeze(1) != X).sum(dim=2).amin(dim=1)
    assert {0, 1} == set(changed.tolist())
    assert {0.0, 1.0, 2.0} == set(found[len(X) :, 2].tolist())


def test_a_point_with_a_negative_zero_is_the_one_with_zero():
    box = bd.BoxDomain(torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, 9)
    opt.attach(torch.tensor([[0.0, 0.5], [-0.0, 0.5]], dtype=torch.double), [1.0, 2.0])
    assert [found.count for found in opt.replicates()] == [2]
    assert opt._feasibility.repeats == 1
    assert opt._feasibility.repeats_differ
