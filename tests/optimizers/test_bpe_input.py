import math

import numpy as np
import pytest
import torch
from botorch.acquisition.analytic import PosteriorMean
from botorch.exceptions.warnings import InputDataWarning
from bpe_cases import NOISE, make, state_of
from cases import scattered, se
from gpytorch.kernels import LinearKernel, PolynomialKernel, RBFKernel

import botorch_delay as bd
from botorch_delay.exceptions import (
    BotorchDelayError,
    HorizonError,
    InputError,
    InputTypeError,
    NoAnswerError,
    TrialError,
)

# Bad input


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"horizon": 0}, InputError, "at least 1"),
        ({"horizon": 2.5}, InputTypeError, "whole"),
        ({"horizon": "10"}, InputTypeError, "whole"),
        ({"horizon": True}, InputTypeError, "whole"),
        ({"delta": 0.0}, InputError, "between 0 and 1"),
        ({"delta": 1.0}, InputError, "between 0 and 1"),
        ({"delta": math.nan}, InputError, "finite"),
        ({"noise_var": 0.0}, InputError, "above 0"),
        ({"noise_var": -1.0}, InputError, "above 0"),
        ({"noise_var": math.inf}, InputError, "finite"),
        ({"noise_var": None}, InputError, "covar_module was given without noise_var"),
        ({"covar_module": None}, InputError, "noise_var was given without covar_module"),
        ({"covar_module": RBFKernel()}, InputTypeError, "float32"),
        ({"covar_module": "rbf"}, InputTypeError, "Kernel"),
        ({"confidence": 6.0}, InputTypeError, "FixedBeta"),
        ({"delay": 50}, InputTypeError, "delay law"),
        ({"seed": -1}, InputError, "at least 0"),
        ({"seed": 0.5}, InputTypeError, "whole"),
        ({"maximize": 1}, InputTypeError, "True or False"),
        ({"exploit": "ucb"}, InputTypeError, "exploit must be a rule such as UCB"),
        ({"exploit": bd.Rule}, InputTypeError, "exploit must be a rule such as UCB"),
        ({"exploit": lambda model: PosteriorMean(model)}, InputError, "cannot use pending points"),
        ({"rounds": "geometric"}, InputTypeError, "GeometricRounds"),
        ({"horizon": None, "rounds": bd.HorizonRounds()}, InputError, "GeometricRounds"),
        ({"explore_fraction": 0.1}, InputError, "needs a rule"),
        ({"explore_fraction": 0.0, "exploit": bd.UCB(6.0)}, InputError, "above 0"),
        ({"explore_fraction": "x", "exploit": bd.UCB(6.0)}, InputTypeError, "explore_fraction"),
        (
            {"delay": bd.NoDelay(), "explore_fraction": 0.5, "exploit": bd.UCB(6.0)},
            InputError,
            "leave out delay",
        ),
        ({"delay": bd.NoDelay(), "rounds": bd.GeometricRounds(4, 2.0)}, InputError, "leave out"),
        ({"evidence": "some"}, InputError, "'round' or 'all'"),
        ({"evidence": "some", "exact": True, "noise_var": None}, InputError, "got 'some'"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        make(**change)


def test_a_domain_must_be_one():
    with pytest.raises(InputTypeError, match="FiniteDomain"):
        bd.BPEDelayOptimizer(scattered(5), 10)
    with pytest.raises(InputError, match="confidence"):
        bd.BPEDelayOptimizer.as_published(
            bd.FiniteDomain(scattered(5)),
            10,
            covar_module=se(),
            noise_var=1.0,
            confidence=None,
            delay=bd.NoDelay(),
        )


@pytest.mark.usefixtures("small_searches")
def test_as_published_on_a_box_is_the_constructor_without_a_rule():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    given = {"covar_module": se(), "noise_var": 1.0, "confidence": bd.FixedBeta(4.0)}
    given |= {"delay": bd.NoDelay()}
    published = bd.BPEDelayOptimizer.as_published(box, 20, **given)
    plain = bd.BPEDelayOptimizer(box, 20, exploit=None, **given)
    for _ in range(20):
        trials = published.ask(), plain.ask()
        assert torch.equal(trials[0].x, trials[1].x)
        for opt, trial in zip((published, plain), trials, strict=True):
            opt.tell(trial, trial.x.sin())
    assert [r.cutoff for r in published.rounds] == [r.cutoff for r in plain.rounds]


def test_results_come_in_any_precision_and_form():
    opt, x = make(), torch.zeros(2, 2).double()
    opt.attach(x, torch.tensor([0.5, 1.5], dtype=torch.float32))
    opt.attach(x, torch.tensor([[2], [3]]))
    opt.attach(x[0], [4.0])
    assert [result.value for result in opt.attached] == [0.5, 1.5, 2.0, 3.0, 4.0]
    with pytest.raises(InputTypeError, match=r"got str .a.\. Pass one .* Leave out a result"):
        opt.attach(x[0], "a")
    with pytest.raises(InputError, match="y must have shape 1 or 1 x 1"):
        opt.attach(x[0], [4.0, 5.0])


def test_refused_calls_change_nothing():
    opt = make()
    trials = opt.ask(5)
    opt.tell(trials[0], 0.5)
    opt.mark_failed(trials[1])
    opt.mark_abandoned(trials[2])
    foreign = make().ask()
    refused = [
        (lambda: opt.ask(0), InputError),
        (lambda: opt.ask(-1), InputError),
        (lambda: opt.ask(1.5), InputTypeError),
        (lambda: opt.ask(1000), HorizonError),
        (lambda: opt.tell(trials[3], math.nan), InputError),
        (lambda: opt.tell(trials[3], math.inf), InputError),
        (lambda: opt.tell(trials[3], torch.tensor([0.5, 1.0])), InputError),
        (lambda: opt.tell(trials[3], torch.tensor(math.nan)), InputError),
        (lambda: opt.tell(trials[3], "0.5"), InputTypeError),
        (lambda: opt.tell(trials[3], None), InputTypeError),
        (lambda: opt.tell(trials[3], True), InputTypeError),
        (lambda: opt.tell(trials[3], 1j), InputTypeError),
        (lambda: opt.tell(trials[3], 10**400), InputError),
        (lambda: opt.tell(trials[3], 1e160), InputError),
        (lambda: opt.tell(torch.tensor([1, 2]), 0.5), TrialError),
        (lambda: opt.ask(torch.tensor(True)), InputTypeError),
        (lambda: opt.attach(torch.zeros(2).double(), 1e160), InputError),
        (lambda: opt.tell(trials[3], np.array([1.0, 2.0])), InputTypeError),
        (lambda: opt.tell(trials[3], 0.5, noise_var=0.0), InputError),
        (lambda: opt.tell(trials[3], 0.5, noise_var=math.nan), InputError),
        (lambda: opt.tell(trials[0], 0.5), TrialError),
        (lambda: opt.tell(trials[1], 0.5), TrialError),
        (lambda: opt.tell(77, 0.5), TrialError),
        (lambda: opt.tell(-1, 0.5), TrialError),
        (lambda: opt.tell("0", 0.5), TrialError),
        (lambda: opt.tell(foreign, 0.5), TrialError),
        (lambda: opt.mark_failed(trials[0]), TrialError),
        (lambda: opt.mark_failed(trials[2]), TrialError),
        (lambda: opt.mark_failed(trials[3], reason=3), InputTypeError),
        (lambda: opt.mark_abandoned(trials[1]), TrialError),
        (lambda: opt.mark_abandoned(99), TrialError),
        (lambda: opt.attach(torch.zeros(3).double(), 0.5), InputError),
        (lambda: opt.attach(torch.zeros(2), 0.5), InputTypeError),
        (lambda: opt.attach(torch.zeros(2).double(), math.nan), InputError),
        (lambda: opt.attach(torch.zeros(2, 2).double(), [0.5, "0.5"]), InputTypeError),
        (lambda: opt.attach(torch.zeros(2, 2).double(), torch.zeros(3).double()), InputError),
        (lambda: opt.attach([0.0, 0.0], 0.5), InputTypeError),
    ]
    before = state_of(opt)
    for number, (call, error) in enumerate(refused):
        with pytest.raises(error) as caught:
            call()
        assert isinstance(caught.value, BotorchDelayError), number
        assert state_of(opt) == before, number


@pytest.mark.parametrize("answer", [[0.5], np.array([0.5, 1.0]), "0.5", None])
def test_what_is_no_number_is_told_what_to_pass(answer):
    opt = make()
    with pytest.raises(
        InputTypeError, match=r"got [\w '.(),]+\. Pass one number, such as float\(value\)"
    ):
        opt.tell(opt.ask(), answer)


def test_noise_that_vanishes_in_the_domain_s_dtype_is_refused():
    with pytest.warns(InputDataWarning, match="Double"):
        domain = bd.FiniteDomain(scattered(20).float())
    kernel = se().float()
    with pytest.raises(InputError, match="noise_var must lie between"):
        bd.BPEDelayOptimizer(domain, 10, covar_module=kernel, noise_var=1e-50)
    opt = bd.BPEDelayOptimizer(domain, 10, covar_module=kernel, noise_var=NOISE)
    trial = opt.ask()
    with pytest.raises(InputError, match="noise_var must lie between"):
        opt.tell(trial, 0.1, noise_var=1e-50)
    assert trial.value is None


def test_a_kernel_without_variance_is_refused():
    domain = bd.FiniteDomain(torch.zeros(1, 1, dtype=torch.double))
    with pytest.raises(InputError, match="variance of 0 at every point"):
        bd.BPEDelayOptimizer(domain, 10, covar_module=LinearKernel().double(), exact=True)


def test_a_kernel_that_overflows_somewhere_is_refused():
    points = torch.linspace(0, 1000, 20).double().unsqueeze(-1)
    kernel = PolynomialKernel(power=200).double()
    with pytest.raises(InputError, match="at point"):
        bd.BPEDelayOptimizer(bd.FiniteDomain(points), 10, covar_module=kernel, noise_var=NOISE)


def test_values_that_are_infinite_in_the_domain_s_dtype_are_refused():
    with pytest.warns(InputDataWarning, match="Double"):
        domain = bd.FiniteDomain(scattered(20).float())
    opt = bd.BPEDelayOptimizer(domain, 10, covar_module=se().float(), noise_var=NOISE)
    trial = opt.ask()
    with pytest.raises(InputError, match="rescale"):
        opt.tell(trial, 1e39)


def test_values_of_all_scalar_kinds_are_taken():
    opt = make()
    kinds = [1, 0.5, np.float32(0.5), np.int64(2), np.array(0.25), torch.tensor(0.5)]
    kinds.append(torch.tensor(0.5, requires_grad=True))
    trials = opt.ask(len(kinds))
    for trial, kind in zip(trials, kinds, strict=True):
        opt.tell(trial.id, kind)
        assert type(trial.value) is float


def test_no_recommendation_before_any_answer():
    opt = make()
    opt.ask(3)
    with pytest.raises(NoAnswerError, match="no answer yet"):
        opt.recommend()
