"""There is one learned surrogate at any time, and everything in the optimizer uses it."""

import copy
import math

import pytest
import torch
from cases import normal, scattered

import botorch_delay as bd
from botorch_delay.optimizers import run

pytestmark = pytest.mark.usefixtures("small_searches")

FINITE = bd.FiniteDomain(scattered(60))
BOX = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
MAKERS = {
    "bpe": lambda: bd.BPEDelayOptimizer(FINITE, 60),
    "bpe, design": lambda: bd.BPEDelayOptimizer(FINITE, 60, exploit=None),
    "bpe, box": lambda: bd.BPEDelayOptimizer(BOX, 60),
    "index": lambda: bd.AcquisitionOptimizer(FINITE, horizon=60),
    "queued": lambda: bd.QueuedOptimizer(bd.BPEDelayOptimizer(FINITE, 60)),
}
SOME = ["bpe", "bpe, box", "index", "queued"]
every_optimizer = pytest.mark.parametrize("make", [MAKERS[name] for name in SOME], ids=SOME)


def value(trial):
    return -(trial.x - 0.3).square().sum().item()


def play(opt, asks):
    for _ in range(asks):
        trial = opt.ask()
        opt.tell(trial, value(trial))


@pytest.fixture
def fits(monkeypatch):
    """The number of answers that each fit used."""
    found, fit = [], run.fit_surrogate

    def counted(domain, answers, **options):
        found.append(len(answers))
        return fit(domain, answers, **options)

    monkeypatch.setattr(run, "fit_surrogate", counted)
    return found


def test_with_many_pending_fits_come_less_often(fits, monkeypatch):
    monkeypatch.setattr(run, "PENDING_PER_ANSWER", 4)
    opt = MAKERS["bpe, box"]()
    trials = opt.ask(27)
    for trial in trials[:17]:
        opt.tell(trial, value(trial))
        opt.ask()
    assert fits[-3:] == [3, 10, 17]  # every 26 / 4 answers, more than a fifth


def test_while_all_answers_are_equal_spread_points_are_asked(fits):
    opt = MAKERS["bpe, box"]()
    for _ in range(23):
        opt.tell(opt.ask(), 5.0)
    X = torch.stack([trial.x for trial in opt.trials])
    apart = torch.pdist(X)
    assert float(apart.min()) > 0.02
    assert int(((X < 0.02) | (X > 0.98)).any(dim=1).sum()) < 6  # not the corners and edges
    assert not opt._fitting.surrogate.scaled
    trial = opt.ask()
    opt.tell(trial, 6.0)
    opt.ask()
    assert fits[-1] == 24  # at once, not after a fifth more answers
    assert opt._fitting.surrogate.scaled
    near = [float((opt.ask().x - trial.x).norm()) for _ in range(4)]
    assert min(near) < 0.3


@every_optimizer
def test_a_copy_learns_from_its_own_answers(make):
    opt = make()
    play(opt, 2)
    twin = copy.deepcopy(opt)
    play(opt, 2)
    play(twin, 2)
    assert [t.x.tolist() for t in twin.trials] == [t.x.tolist() for t in opt.trials]
    assert twin.hyperparameters == opt.hyperparameters
    play(twin, 1)
    assert len(opt.trials) == 4
    alone = make()
    play(alone, 5)
    assert [t.x.tolist() for t in twin.trials] == [t.x.tolist() for t in alone.trials]


@every_optimizer
def test_a_learned_study_is_saved_and_loaded(make, tmp_path):
    opt = make()
    play(opt, 4)
    opt.save(tmp_path / "study.db")
    loaded = bd.load(tmp_path / "study.db")
    play(opt, 2)
    play(loaded, 2)
    assert [t.x.tolist() for t in loaded.trials] == [t.x.tolist() for t in opt.trials]


@pytest.mark.parametrize("name", ["bpe", "bpe, design", "bpe, box"])
def test_rounds_rule_and_recommendation_use_the_same_kernel(name):
    opt = MAKERS[name]()
    learned = set()
    for _ in range(12):
        trial = opt.ask()
        used = opt._fitting.surrogate
        assert opt._rounds.open.surrogate is used
        if opt._maximizer is not None and trial.slot < 0:
            assert opt._maximizer.model.surrogate is used
        if opt.rounds and opt.rounds[-1].number == opt.round - 1 and trial.slot == 0:
            assert (
                opt.rounds[-1].hyperparameters["covar_module"]
                == (used.hyperparameters()["covar_module"])
            )
        scales = used.covar_module.lengthscale.flatten().tolist()
        assert list(opt.hyperparameters.lengthscale) == scales
        learned.add(tuple(scales))
        opt.tell(trial, value(trial))
    assert opt.rounds
    assert len(learned) > 5


@every_optimizer
def test_a_fit_is_made_once_for_the_same_answers(make, fits):
    opt = make()
    play(opt, 8)
    fits.clear()
    opt.recommend()
    trial = opt.ask()
    opt.notes["operator"] = "A"
    for _ in range(2):
        opt.recommend()
        _ = opt.hyperparameters
    assert fits in ([], [8])
    fits.clear()
    opt.tell(trial, value(trial))
    play(opt, 4)
    assert len(fits) == len(set(fits)) <= 3  # one fit per fifth more answers


@every_optimizer
def test_reading_changes_no_ask(make):
    quiet, read = make(), make()
    for _ in range(5):
        one, other = quiet.ask(), read.ask()
        assert torch.equal(one.x, other.x)
        for opt, trial in ((quiet, one), (read, other)):
            opt.tell(trial, value(trial))
        read.recommend()
        _ = read.hyperparameters
        if len(read.trials) == 4:
            read.stopping_gap()
    assert quiet.hyperparameters == read.hyperparameters


@pytest.mark.parametrize("domain", [FINITE, BOX])
def test_after_all_answers_were_withdrawn_nothing_is_learned_from_them(domain):
    opt = bd.BPEDelayOptimizer(domain, 60)
    fresh = opt.hyperparameters
    play(opt, 6)
    opt.ask()
    assert opt.hyperparameters != fresh
    for trial in opt.trials[:6]:
        opt.correct(trial, None)
    opt.ask()
    assert opt._fitting.fitted_to == 0
    assert opt.hyperparameters == fresh


def test_asks_do_not_depend_on_the_units_of_values_and_their_noise():
    points = torch.linspace(0.0, 1.0, 101, dtype=torch.double).unsqueeze(-1)

    def asked(unit):
        opt = bd.BPEDelayOptimizer(bd.FiniteDomain(points), horizon=60)
        in_flight, noise = opt.ask(4), iter(normal(40, seed=5).tolist())
        while len(opt.trials) < 22:
            trial = in_flight.pop(0)
            y = math.sin(9.0 * float(trial.x)) + 0.5 * float(trial.x) + 0.1 * next(noise)
            opt.tell(trial, unit * y, noise_var=(0.1 * unit) ** 2)
            in_flight.append(opt.ask())
        return [trial.index for trial in opt.trials]

    assert asked(2.0**-10) == asked(1.0) == asked(2.0**10)


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
@pytest.mark.parametrize("name", SOME)
def test_a_loss_that_explodes_between_two_fits_is_ranked_at_once(name, fits):
    opt = MAKERS[name]()
    points = scattered(50, seed=1) if "box" in name else FINITE.points[:50]
    opt.attach(points, -(points - 0.3).square().sum(dim=1))
    opt.ask()
    best, fits[:] = opt.recommend(), []
    opt.attach(points[0] if "box" not in name else points[0] + 1e-3, -1.2)  # about the worst so far
    opt.recommend()
    assert not fits
    opt.attach(points[1] if "box" not in name else points[1] + 1e-3, -1e4)
    assert opt.recommend().mean == pytest.approx(best.mean, abs=0.05)
    near = (opt.ask().x - 0.3).square().sum() < 0.1
    assert near or name == "queued"  # its queues hold points asked before
    assert fits == [52]
    opt.attach(points[2] if "box" not in name else points[2] + 1e-3, -1.5e4)
    opt.ask()
    assert fits == [52]  # not an outlier any more beside -1e4
